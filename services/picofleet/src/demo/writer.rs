//! The child process: commits as fast as it can, and says the number of each commit once it was told that it is stored.

use std::io::Write as _;
use std::path::Path;

use anyhow::Context as _;
use picofleet_session::{
    Bound, CommitError, EntryDraft, Json, ROOT_CONVERSATION_ID, Session, SessionId, SessionOptions, TaskCreate, TaskOwnership,
};

use super::model::{COUNTER, bump};

pub(crate) async fn run(path: &Path, session: SessionId) -> anyhow::Result<()> {
    let store = super::open(path)?;
    let session = Session::open(&store, session, SessionOptions::default()).await?;
    let mut output = std::io::stdout();
    loop {
        let number = commit(&session).await?;
        writeln!(output, "{number}").and_then(|()| output.flush()).context("report a commit")?;
    }
}

/// One commit: the counter, an entry and a task, all with the same number.
async fn commit(session: &Session) -> Result<u64, CommitError> {
    let bound = Bound { conversation: Some(ROOT_CONVERSATION_ID), task: None };
    session
        .commit_bound(bound, async |tx| {
            let counter = tx.doc(&COUNTER, ROOT_CONVERSATION_ID).await?;
            let number = bump(&counter, "x")?;
            tx.append_entry(ROOT_CONVERSATION_ID, EntryDraft::new("demo.commit").data(number)).await?;
            let task = TaskCreate {
                kind: "demo.task".to_owned(),
                version: 1,
                input: Json::from(number),
                checkpoint: Json::object([("phase", "idle")]),
                ownership: TaskOwnership::Conversation,
                conversation_id: None,
                background: true,
            };
            tx.create_task_raw(task).await?;
            Ok(number)
        })
        .await
}
