//! Aborts that a host asks for, and marks (section 5.4).

use std::collections::BTreeSet;

use picofleet_session::storage::{ConversationQuery, PAGE_MAX, TaskQuery};
use picofleet_session::{CommitError, ConversationId, Json, TaskId, TaskOutcome, TaskRecord, TaskState, Tx, TxError};

use super::definitions::Fit;
use super::host::not_found;
use super::{LineError, RESTART_LIMIT, SessionLine};
use crate::submission::withdraw_inputs;
use crate::wire::Answer;

impl SessionLine {
    /// `marked` or `terminal` (section 2.2). A blocked task with nothing below it and no invocation ends in the same commit.
    pub(super) async fn abort_task(&self, task: TaskId) -> Result<Answer, LineError> {
        self.complete_tree().await?;
        let found = self
            .session()
            .commit(async |tx| {
                let Some(record) = tx.task(task).await? else { return Ok::<_, CommitError>(None) };
                if record.terminal() {
                    return Ok(Some(false));
                }
                self.unsealed()?;
                let reach = reach(tx, &[task].into()).await?;
                if let Some(reason) = self.orphans(tx, &record).await? {
                    let record = TaskRecord { abort_requested: true, ..record };
                    self.end_task(tx, record, TaskOutcome::Orphaned { reason: reason.to_owned() }).await?;
                } else {
                    put_marks(tx, vec![record]).await?;
                }
                withdraw_all(tx, reach).await?;
                Ok(Some(true))
            })
            .await?;
        match found {
            None => Ok(not_found("task", task.get())),
            Some(false) => Ok(Answer::Value(Json::from("terminal"))),
            Some(true) => self.join_run(task).await,
        }
    }

    /// The reason that orphans a task at once, if one does.
    async fn orphans(&self, tx: &Tx, record: &TaskRecord) -> Result<Option<&'static str>, TxError> {
        if matches!(record.state, TaskState::Completing { .. }) {
            return Ok(None);
        }
        let reason = {
            let state = self.state();
            let marked = TaskRecord { abort_requested: true, ..record.clone() };
            match state.fit(&marked) {
                Fit::Blocked { reason, .. } if !state.held.contains_key(&record.id) => reason,
                _ => return Ok(None),
            }
        };
        Ok(self.candidate_tree(tx).await?.owned_work(record.id).is_empty().then_some(reason))
    }

    /// Withdraws queued inputs and marks the work below a conversation in one commit, and waits until it is over.
    pub(super) async fn abort(&self, conversation: ConversationId, background: bool) -> Result<Answer, LineError> {
        self.complete_tree().await?;
        let marked = self
            .session()
            .commit(async |tx| {
                if tx.conversation(conversation).await?.is_none() {
                    return Ok::<_, CommitError>(None);
                }
                self.unsealed()?;
                let tree = self.candidate_tree(tx).await?;
                let tasks: BTreeSet<TaskId> =
                    if background { tree.everything_of(conversation) } else { tree.foreground_of(conversation) }.into_iter().collect();
                let mut reach = if background { everything_below(tx, conversation).await? } else { reach(tx, &tasks).await? };
                reach.insert(conversation);
                put_marks(tx, records(tx, &tasks).await?).await?;
                withdraw_all(tx, reach).await?;
                Ok(Some(tasks.into_iter().collect::<Vec<_>>()))
            })
            .await?;
        let Some(marked) = marked else { return Ok(not_found("conversation", conversation.get())) };
        // It waits for the conversation's idleness, so it must not wait on a paused line.
        self.resume();
        self.settle_abort(conversation, &marked).await
    }

    /// Marks tasks, and withdraws the queued inputs of every conversation that the cascade reaches: from the tasks, and from what above
    /// them cancels them, which needs no mark where it holds its outcome.
    pub(super) async fn mark(&self, tasks: &BTreeSet<TaskId>) -> Result<(), LineError> {
        self.session()
            .commit(async |tx| {
                let tree = self.candidate_tree(tx).await?;
                let above = tasks.iter().flat_map(|task| tree.cancelled_above(*task));
                let reach = reach(tx, &tasks.iter().copied().chain(above).collect()).await?;
                put_marks(tx, records(tx, tasks).await?).await?;
                withdraw_all(tx, reach).await?;
                Ok::<_, CommitError>(())
            })
            .await?;
        Ok(())
    }

    /// Whether a conversation lies below a cancelled owner: what is queued there is withdrawn as what was queued before the mark. Table reads.
    pub(super) async fn withdraws(&self, tx: &Tx, conversation: ConversationId) -> Result<bool, TxError> {
        let owned = tx.conversation(conversation).await?.is_some_and(|conversation| conversation.owner.is_some());
        Ok(owned && self.candidate_tree(tx).await?.conversation_below_cancelled(conversation))
    }

    /// Lets a parked task run again: `retried` or `not_parked`.
    pub(super) async fn retry_task(&self, task: TaskId) -> Result<Answer, LineError> {
        let word = self
            .session()
            .commit(async |tx| {
                let Some(record) = tx.task(task).await? else { return Ok::<_, CommitError>(None) };
                if record.terminal() || record.abort_requested || record.restarts < RESTART_LIMIT {
                    return Ok(Some("not_parked"));
                }
                self.unsealed()?;
                tx.put_task(TaskRecord { restarts: 0, ..record }).await?;
                Ok(Some("retried"))
            })
            .await?;
        Ok(word.map_or_else(|| not_found("task", task.get()), |word| Answer::Value(Json::from(word))))
    }
}

async fn records(tx: &Tx, tasks: &BTreeSet<TaskId>) -> Result<Vec<TaskRecord>, TxError> {
    let mut records = Vec::new();
    for task in tasks {
        records.extend(tx.task(*task).await?);
    }
    Ok(records)
}

/// The abort handler is lost as often as the run was before it faults, so the count begins again.
async fn put_marks(tx: &Tx, records: Vec<TaskRecord>) -> Result<(), TxError> {
    for record in records.into_iter().filter(|record| !record.terminal() && !record.abort_requested) {
        tx.put_task(TaskRecord { abort_requested: true, restarts: 0, ..record }).await?;
    }
    Ok(())
}

async fn withdraw_all(tx: &Tx, conversations: BTreeSet<ConversationId>) -> Result<(), TxError> {
    for conversation in conversations {
        withdraw_inputs(tx, conversation).await?;
    }
    Ok(())
}

/// The conversations below tasks, through what has ended too; background tasks are boundaries. Table reads.
async fn reach(tx: &Tx, tasks: &BTreeSet<TaskId>) -> Result<BTreeSet<ConversationId>, TxError> {
    let mut found = BTreeSet::new();
    let mut seen = tasks.clone();
    let mut open: Vec<TaskId> = tasks.iter().copied().collect();
    while let Some(task) = open.pop() {
        let owned = conversations(tx, ConversationQuery { owner_conversation_id: None, owner_task_id: Some(task) }).await?;
        let mut queries = vec![TaskQuery { owner_task_id: Some(task), ..TaskQuery::default() }];
        for conversation in owned {
            if found.insert(conversation) {
                // What another task owns is reached through its owner.
                queries.push(TaskQuery { conversation_id: Some(conversation), background: Some(false), ..TaskQuery::default() });
            }
        }
        for query in queries {
            open.extend(
                all_tasks(tx, query).await?.into_iter().filter(|task| !task.background && seen.insert(task.id)).map(|task| task.id),
            );
        }
    }
    Ok(found)
}

/// The conversations below a conversation, across background tasks. Table reads.
async fn everything_below(tx: &Tx, conversation: ConversationId) -> Result<BTreeSet<ConversationId>, TxError> {
    let mut found = BTreeSet::new();
    let mut open = vec![conversation];
    while let Some(current) = open.pop() {
        let owned = conversations(tx, ConversationQuery { owner_conversation_id: Some(current), owner_task_id: None }).await?;
        open.extend(owned.into_iter().filter(|owned| found.insert(*owned)));
    }
    Ok(found)
}

async fn conversations(tx: &Tx, query: ConversationQuery) -> Result<Vec<ConversationId>, TxError> {
    let mut found = Vec::new();
    let mut cursor = None;
    loop {
        let page = tx.scan_conversations(query, PAGE_MAX, cursor).await?;
        found.extend(page.items.into_iter().map(|conversation| conversation.id));
        cursor = page.next;
        if cursor.is_none() {
            return Ok(found);
        }
    }
}

async fn all_tasks(tx: &Tx, query: TaskQuery) -> Result<Vec<TaskRecord>, TxError> {
    let mut found = Vec::new();
    let mut cursor = None;
    loop {
        let page = tx.scan_tasks(query.clone(), PAGE_MAX, cursor).await?;
        found.extend(page.items);
        cursor = page.next;
        if cursor.is_none() {
            return Ok(found);
        }
    }
}
