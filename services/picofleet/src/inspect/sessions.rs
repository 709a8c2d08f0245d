//! The sessions of a store.

use picofleet_harness::config::ModelRef;
use picofleet_session::storage::{PAGE_MAX, SessionRecord, StorageError, Store, TaskFilter, TaskQuery};
use picofleet_session::{Millis, ROOT_CONVERSATION_ID, SessionId};
use serde::Serialize;

use crate::config::StoreUrl;
use crate::glance;
use crate::output::{self, Format, Table};
use crate::stores::{self, Damaged, Used};

/// A session in the list.
#[derive(Serialize)]
#[serde(untagged)]
enum Listed {
    Whole(Box<Whole>),
    Damaged {
        id: SessionId,
        state: &'static str,
        /// What is wrong and what to do.
        problem: String,
    },
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Whole {
    #[serde(flatten)]
    record: SessionRecord,
    /// The sequence of its newest commit.
    seq: i64,
    /// The time of that: when it was used last.
    at: Millis,
    /// Its tasks that are not over, as far as a page shows them.
    live_tasks: usize,
    /// The model of the conversation that it began with.
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<ModelRef>,
    /// Its first input, shortened.
    #[serde(skip_serializing_if = "Option::is_none")]
    first_input: Option<String>,
}

pub(super) async fn list(store: &dyn Store, url: &StoreUrl, limit: u32, format: Format) -> anyhow::Result<()> {
    let stores::Sessions { whole, damaged } = stores::sessions(store, url).await?;
    let count = whole.len() + damaged.len();
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    // What is damaged comes first and is never left out: nothing else here would tell of it.
    let mut listed: Vec<Listed> = damaged.into_iter().map(Listed::damaged).collect();
    for Used { record, .. } in whole {
        if listed.len() >= limit {
            break;
        }
        listed.extend(look(store, record).await?);
    }
    if listed.is_empty() && format == Format::Table {
        return output::remark(&format!("there is no session in {url}"));
    }
    let shown = listed.len();
    let problems: Vec<String> = listed
        .iter()
        .filter_map(|listed| if let Listed::Damaged { problem, .. } = listed { Some(problem.clone()) } else { None })
        .collect();
    match format {
        Format::Json => output::json(&listed)?,
        Format::Table => output::data(&table(listed))?,
    }
    problems.iter().try_for_each(|problem| output::remark(problem))?;
    if count > shown {
        output::remark(&format!("there are {count}, and these are the {shown} that were used last: list more with a larger --limit"))?;
    }
    Ok(())
}

impl Listed {
    fn damaged(damaged: Damaged) -> Self {
        Self::Damaged { id: damaged.id, state: "damaged", problem: damaged.why }
    }
}

fn table(listed: Vec<Listed>) -> String {
    let mut table = Table::new(&["SESSION", "STATE", "LAST USED", "LIVE TASKS", "KEY", "MODEL", "FIRST INPUT"]);
    for listed in listed {
        match listed {
            Listed::Damaged { id, state, .. } => {
                let [at, live, key, model, input] = std::array::from_fn(|_| String::new());
                table.row([id.to_string(), state.to_owned(), at, live, key, model, input]);
            }
            Listed::Whole(whole) => {
                let Whole { record, at, live_tasks, model, first_input, .. } = *whole;
                let live = if live_tasks == PAGE_MAX as usize { format!("{live_tasks} or more") } else { live_tasks.to_string() };
                let model = model.map(|model| format!("{}/{}", model.provider, model.model_id)).unwrap_or_default();
                let (id, state, key) = (record.id.to_string(), record.state.as_str().to_owned(), record.key.unwrap_or_default());
                table.row([id, state, output::time(at), live, key, model, first_input.unwrap_or_default()]);
            }
        }
    }
    table.text()
}

/// A session of a page; `None` where it was deleted since.
async fn look(store: &dyn Store, record: SessionRecord) -> Result<Option<Listed>, StorageError> {
    match read(store, record).await {
        Err(StorageError::NotFound { .. }) => Ok(None),
        read => read.map(|whole| Some(Listed::Whole(Box::new(whole)))),
    }
}

async fn read(store: &dyn Store, record: SessionRecord) -> Result<Whole, StorageError> {
    let reader = store.reader(record.id).await?;
    let head = reader.head().await?;
    let query = TaskQuery { status: Some(TaskFilter::Live), ..TaskQuery::default() };
    let live_tasks = reader.scan_tasks(query, PAGE_MAX, None).await?.items.len();
    let model = glance::config(&*reader, ROOT_CONVERSATION_ID).await?.and_then(|config| config.model);
    let first_input = glance::first_input(&*reader).await?;
    Ok(Whole { record, seq: head.seq.0, at: head.at, live_tasks, model, first_input })
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
        let listed = look(&store, record.clone()).await.unwrap();
        assert!(matches!(listed, Some(Listed::Whole(whole)) if whole.record == record));
        store.delete(record.id, Millis(2)).await.unwrap();
        assert!(look(&store, record).await.unwrap().is_none());
    }
}
