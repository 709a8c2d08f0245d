//! Opens what a killed writer left and checks that every commit is whole.

use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use picofleet_session::storage::{EntryQuery, PAGE_MAX, TaskQuery};
use picofleet_session::{EntryId, ROOT_CONVERSATION_ID, Session, SessionId, SessionOptions};

use super::model::COUNTER;

/// How many commits are stored: as many entries and as many tasks as the counter says, numbered without a gap.
pub(super) async fn check(path: &Path, session: SessionId) -> anyhow::Result<u64> {
    let store = super::open(path)?;
    let session = Session::open(&store, session, SessionOptions::default()).await?;
    let counter = session.snapshot(&COUNTER, ROOT_CONVERSATION_ID).await?.context("the counter is gone")?;
    let entries: Vec<u64> = entries(&session).await?.into_iter().map(|(number, _)| number).collect();
    let tasks = tasks(&session).await?;
    let expected: Vec<u64> = (1..=counter.commits).collect();
    ensure!(entries == expected, "the counter says {} and the entries are {entries:?}", counter.commits);
    ensure!(tasks == expected, "the counter says {} and the tasks are {tasks:?}", counter.commits);
    ensure!(counter.log.len() as u64 == 2 * counter.commits, "the counter says {} and its log {:?}", counter.commits, counter.log);
    super::close(&store, &session).await?;
    Ok(counter.commits)
}

/// The entry of the commit with this number.
pub(super) async fn entry_number(session: &Session, number: u64) -> anyhow::Result<EntryId> {
    match entries(session).await?.into_iter().find(|(n, _)| *n == number) {
        Some((_, id)) => Ok(id),
        None => bail!("there is no entry {number}"),
    }
}

/// The writer's entries, oldest first.
async fn entries(session: &Session) -> anyhow::Result<Vec<(u64, EntryId)>> {
    let mut found = Vec::new();
    let mut cursor = None;
    loop {
        let page = session.store().scan_entries(EntryQuery::all(ROOT_CONVERSATION_ID), PAGE_MAX, cursor).await?;
        for entry in page.items {
            let number = entry.data.as_ref().and_then(picofleet_session::Json::as_u64).with_context(|| format!("entry {}", entry.id))?;
            found.push((number, entry.id));
        }
        cursor = page.next;
        if cursor.is_none() {
            found.reverse();
            return Ok(found);
        }
    }
}

/// The numbers of the writer's tasks, oldest first.
async fn tasks(session: &Session) -> anyhow::Result<Vec<u64>> {
    let mut found = Vec::new();
    let mut cursor = None;
    loop {
        let page = session.store().scan_tasks(TaskQuery::default(), PAGE_MAX, cursor).await?;
        for task in page.items {
            found.push(task.input.as_u64().with_context(|| format!("task {}", task.id))?);
        }
        cursor = page.next;
        if cursor.is_none() {
            return Ok(found);
        }
    }
}
