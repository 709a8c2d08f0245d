//! What the benchmark writes.

use anyhow::{Context as _, Result};
use picofleet_session::storage::EntryQuery;
use picofleet_session::{
    AsOf, Bound, CommitError, DocDefinition, DocToken, EntryDraft, EntryId, Json, ROOT_CONVERSATION_ID, Rewindable, Session, TaskCreate,
    TaskOwnership, every,
};
use serde::{Deserialize, Serialize};

#[derive(Default, Serialize, Deserialize)]
struct Log {
    text: String,
}

static LOG: DocToken<Log, Rewindable<AsOf>> =
    DocToken::new("bench.log", 1, || DocDefinition { initial: Log::default, migrate: None, checkpoint_when: every::<31> });

/// The root and the document.
pub(crate) async fn begin(session: &Session) -> Result<(), CommitError> {
    session
        .commit(async |tx| {
            tx.create_root().await?;
            tx.doc(&LOG, ROOT_CONVERSATION_ID).await?;
            Ok(())
        })
        .await
}

/// One entry, one document delta, one task.
pub(crate) async fn commit(session: &Session, number: usize) -> Result<(), CommitError> {
    let bound = Bound { conversation: Some(ROOT_CONVERSATION_ID), task: None };
    session
        .commit_bound(bound, async |tx| {
            // Bounded, so that a base costs the same at the beginning and at the end.
            let log = tx.doc(&LOG, ROOT_CONVERSATION_ID).await?;
            let text = log.draft.key("text");
            if number.is_multiple_of(64) {
                text.set("")?
            } else {
                text.append("twenty characters...")?
            }
            tx.append_entry(ROOT_CONVERSATION_ID, EntryDraft::new("bench.entry").data("some words of a transcript entry")).await?;
            let task = TaskCreate {
                kind: "bench.task".to_owned(),
                version: 1,
                input: Json::null(),
                checkpoint: Json::object([("phase", "idle")]),
                ownership: TaskOwnership::Conversation,
                conversation_id: None,
                background: true,
            };
            tx.create_task_raw(task).await?;
            Ok(())
        })
        .await
}

/// Appends entries, many in a commit.
pub(crate) async fn fill(session: &Session, entries: usize) -> Result<(), CommitError> {
    let mut left = entries;
    while left > 0 {
        let now = left.min(5_000);
        session
            .commit(async |tx| {
                for _ in 0..now {
                    tx.append_entry(ROOT_CONVERSATION_ID, EntryDraft::new("bench.entry").data("some words of a transcript entry")).await?;
                }
                Ok::<_, CommitError>(())
            })
            .await?;
        left -= now;
    }
    Ok(())
}

/// The newest entry.
pub(crate) async fn newest(session: &Session) -> Result<EntryId> {
    let page = session.store().scan_entries(EntryQuery::all(ROOT_CONVERSATION_ID), 1, None).await?;
    Ok(page.items.first().context("no entries")?.id)
}
