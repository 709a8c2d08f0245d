//! The sessions of a store.

use picofleet_session::Millis;
use picofleet_session::storage::{PAGE_MAX, SessionQuery, SessionRecord, StorageError, Store, TaskFilter, TaskQuery};
use serde::Serialize;

use crate::config::StoreUrl;
use crate::output::{self, Format, Table};

/// A session in the list.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Listed {
    #[serde(flatten)]
    record: SessionRecord,
    /// The sequence of its newest commit.
    seq: i64,
    /// The time of that.
    at: Millis,
    /// Its tasks that are not over, as far as a page shows them.
    live_tasks: usize,
}

pub(super) async fn list(store: &dyn Store, url: &StoreUrl, limit: u32, format: Format) -> anyhow::Result<()> {
    let mut listed = Vec::new();
    let mut cursor = None;
    let more = loop {
        let left = limit.saturating_sub(u32::try_from(listed.len()).unwrap_or(u32::MAX));
        if left == 0 {
            break cursor.is_some();
        }
        let page = store.sessions(SessionQuery::default(), left.min(PAGE_MAX), cursor).await?;
        for record in page.items {
            listed.extend(look(store, record).await?);
        }
        cursor = page.next;
        if cursor.is_none() {
            break false;
        }
    };
    if listed.is_empty() && format == Format::Table {
        return output::remark(&format!("there is no session in {url}"));
    }
    match format {
        Format::Json => output::json(&listed)?,
        Format::Table => output::data(&table(listed))?,
    }
    if more { output::remark(&format!("there are more than {limit}: list them with a larger --limit")) } else { Ok(()) }
}

fn table(listed: Vec<Listed>) -> String {
    let mut table = Table::new(&["SESSION", "STATE", "CREATED", "COMMIT", "LAST COMMIT", "LIVE TASKS", "KEY"]);
    for Listed { record, seq, at, live_tasks } in listed {
        let live = if live_tasks == PAGE_MAX as usize { format!("{live_tasks} or more") } else { live_tasks.to_string() };
        let key = record.key.unwrap_or_default();
        let (created, at) = (output::time(record.created_at), output::time(at));
        table.row([record.id.to_string(), record.state.as_str().to_owned(), created, seq.to_string(), at, live, key]);
    }
    table.text()
}

/// A session of a page; `None` where it was deleted since.
async fn look(store: &dyn Store, record: SessionRecord) -> Result<Option<Listed>, StorageError> {
    match read(store, record).await {
        Err(StorageError::NotFound { .. }) => Ok(None),
        read => read.map(Some),
    }
}

async fn read(store: &dyn Store, record: SessionRecord) -> Result<Listed, StorageError> {
    let reader = store.reader(record.id).await?;
    let head = reader.head().await?;
    let query = TaskQuery { status: Some(TaskFilter::Live), ..TaskQuery::default() };
    let live_tasks = reader.scan_tasks(query, PAGE_MAX, None).await?.items.len();
    Ok(Listed { record, seq: head.seq.0, at: head.at, live_tasks })
}

#[cfg(test)]
mod tests {
    use picofleet_session::storage::SessionCreate;
    use picofleet_storage::memory::MemoryStore;

    use super::*;

    #[tokio::test]
    async fn a_session_that_is_deleted_meanwhile_is_left_out() {
        let store = MemoryStore::new();
        let record = store.create(SessionCreate::new(Millis(1))).await.unwrap().session;
        assert_eq!(look(&store, record.clone()).await.unwrap().map(|listed| listed.record), Some(record.clone()));
        store.delete(record.id, Millis(2)).await.unwrap();
        assert!(look(&store, record).await.unwrap().is_none());
    }
}
