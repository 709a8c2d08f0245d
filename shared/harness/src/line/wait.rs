//! Waits of hosts (section 2.2): each bounded; a caller that waits longer asks again.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use picofleet_session::storage::StorageError;
use picofleet_session::{CommitError, ConversationId, Json, Standing, SubmissionId, SubmissionRecord, TaskId, TaskRecord};
use tokio::time::Instant;

use super::host::{json, not_found};
use super::{LineError, SessionLine};
use crate::step::Mode;
use crate::wire::Answer;

/// One look: whether the wait is over, and what was found.
pub(super) type Look<'a, T> = BoxFuture<'a, Result<(bool, T), LineError>>;

impl SessionLine {
    /// Looks after every commit until `look` finds something or the time is over; what it found last.
    pub(super) async fn until<'a, T>(&'a self, timeout: Duration, look: impl Fn() -> Look<'a, T> + Send) -> Result<(bool, T), LineError> {
        let deadline = Instant::now() + timeout.min(self.inner.options.wait);
        let changed = self.changed();
        loop {
            let notified = changed.notified();
            tokio::pin!(notified);
            // Registered before the look, so that no commit between the two is missed.
            notified.as_mut().enable();
            let (done, found) = look().await?;
            if !done && self.session().standing() != Standing::Open {
                return Err(CommitError::Closed.into());
            }
            if done || tokio::time::timeout_at(deadline, notified).await.is_err() {
                return Ok((done, found));
            }
        }
    }

    /// A committed submission.
    pub(super) async fn submission(&self, id: SubmissionId) -> Result<Option<Arc<SubmissionRecord>>, StorageError> {
        // Behind the end of the session memory follows nothing any more.
        if self.session().standing() == Standing::Open
            && let Some(kept) = self.state().submission(id)
        {
            return Ok(Some(kept));
        }
        Ok(self.session().store().submission(id).await?.map(Arc::new))
    }

    /// A committed task.
    pub(super) async fn task(&self, id: TaskId) -> Result<Option<TaskRecord>, StorageError> {
        if self.session().standing() == Standing::Open
            && let Some(live) = self.state().tree.live.get(&id).cloned()
        {
            return Ok(Some(live));
        }
        self.session().store().task(id).await
    }

    pub(super) async fn wait_submission(&self, id: SubmissionId, timeout: Duration) -> Result<Answer, LineError> {
        self.resume();
        let look = || -> Look<'_, _> {
            Box::pin(async move {
                let record = self.submission(id).await?;
                Ok((record.as_ref().is_none_or(|record| record.settled()), record))
            })
        };
        let (_, record) = self.until(timeout, look).await?;
        Ok(record.map_or_else(|| not_found("submission", id.get()), |record| Answer::Value(json(Some(&record)))))
    }

    pub(super) async fn wait_task(&self, id: TaskId, timeout: Duration) -> Result<Answer, LineError> {
        self.resume();
        let look = || -> Look<'_, _> {
            Box::pin(async move {
                let record = self.task(id).await?;
                Ok((record.as_ref().is_none_or(TaskRecord::terminal), record))
            })
        };
        let (_, record) = self.until(timeout, look).await?;
        Ok(record.map_or_else(|| not_found("task", id.get()), |record| Answer::Value(json(Some(&record)))))
    }

    pub(super) async fn wait_idle(&self, conversation: Option<ConversationId>, timeout: Duration) -> Result<Answer, LineError> {
        if let Some(id) = conversation
            && self.session().store().conversation(id).await?.is_none()
        {
            return Ok(not_found("conversation", id.get()));
        }
        self.resume();
        let (idle, ()) = self.until(timeout, || Box::pin(async move { Ok((self.idle(conversation).await?, ())) })).await?;
        Ok(Answer::Value(Json::from(idle)))
    }

    async fn idle(&self, conversation: Option<ConversationId>) -> Result<bool, LineError> {
        self.complete_tree().await?;
        let state = self.state();
        Ok(conversation.map_or_else(|| state.tree.foreground(), |id| state.tree.foreground_of(id)).is_empty())
    }

    /// Waits until the run invocation of a marked task has joined: it ended, or its lease is over. `stopping` where the time is over
    /// before: [`SessionLine::wait_stopped`] goes on.
    pub(super) async fn join_run(&self, task: TaskId) -> Result<Answer, LineError> {
        let joined = self.joins_run(task, self.inner.options.wait).await?;
        Ok(Answer::Value(Json::from(if joined { "marked" } else { "stopping" })))
    }

    /// Whether the run invocation of a task has joined within the time.
    pub(super) async fn wait_stopped(&self, task: TaskId, timeout: Duration) -> Result<Answer, LineError> {
        Ok(Answer::Value(Json::from(self.joins_run(task, timeout).await?)))
    }

    async fn joins_run(&self, task: TaskId, timeout: Duration) -> Result<bool, LineError> {
        let joined = || -> Look<'_, ()> {
            let runs = self.state().held.get(&task).is_some_and(|held| held.mode == Mode::Run && !held.expired);
            Box::pin(std::future::ready(Ok((!runs, ()))))
        };
        Ok(self.until(timeout, joined).await?.0)
    }

    /// Waits until a conversation is idle and the tasks that its abort marked are over. Where the time is over before, the answer names
    /// these tasks: [`SessionLine::wait_aborted`] goes on.
    pub(super) async fn settle_abort(&self, conversation: ConversationId, marked: &[TaskId]) -> Result<Answer, LineError> {
        let over = self.aborted(conversation, marked, self.inner.options.wait).await?;
        Ok(if over { Answer::Done } else { Answer::Value(json(Some(&marked))) })
    }

    /// Whether a conversation is idle and these tasks of it are over within the time.
    pub(super) async fn wait_aborted(
        &self,
        conversation: ConversationId,
        tasks: &[TaskId],
        timeout: Duration,
    ) -> Result<Answer, LineError> {
        self.resume();
        Ok(Answer::Value(Json::from(self.aborted(conversation, tasks, timeout).await?)))
    }

    async fn aborted(&self, conversation: ConversationId, marked: &[TaskId], timeout: Duration) -> Result<bool, LineError> {
        let marked: Arc<[TaskId]> = marked.into();
        let over = || -> Look<'_, ()> {
            let marked = Arc::clone(&marked);
            Box::pin(async move {
                let idle = self.idle(Some(conversation)).await?;
                let state = self.state();
                Ok((idle && marked.iter().all(|task| !state.tree.live.contains_key(task)), ()))
            })
        };
        Ok(self.until(timeout, over).await?.0)
    }
}
