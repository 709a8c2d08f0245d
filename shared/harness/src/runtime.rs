//! What a running task may use (section 5.1). Every operation fails with [`Fault::Ended`] once the invocation is over.

use std::marker::PhantomData;
use std::sync::Arc;

use picofleet_session::{
    CommitError, ContextView, ConversationId, DocToken, DocValue, EntryId, EntryRecord, FamilyToken, Millis, Scope, TaskError, TaskId,
    TaskRecord, TaskState, Tx, Watch,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::effects::{Fault, HookApi, Invocation, Models, PhaseRun};
use crate::hooks::HookError;
use crate::kind::{Decision, Next, Outcome, Running, TaskKind};
use crate::registry::Snapshot;
use crate::tools::ExecutionEnv;
use crate::wire::Read;

mod conversation;

pub use conversation::{BoundConversation, BoundSubmission};

/// What a running task may use. A cheap clone.
pub struct TaskRuntime<K: TaskKind> {
    invocation: Arc<Invocation>,
    task: TaskId,
    conversation: ConversationId,
    kind: PhantomData<fn() -> Box<K>>,
}

impl<K: TaskKind> Clone for TaskRuntime<K> {
    fn clone(&self) -> Self {
        Self { invocation: Arc::clone(&self.invocation), task: self.task, conversation: self.conversation, kind: PhantomData }
    }
}

impl<K: TaskKind> TaskRuntime<K> {
    pub(crate) fn new(invocation: Arc<Invocation>, record: &TaskRecord) -> Self {
        Self { invocation, task: record.id, conversation: record.conversation_id, kind: PhantomData }
    }

    /// The task.
    #[must_use]
    pub const fn task_id(&self) -> TaskId<K::Output> {
        self.task.assume()
    }

    /// Its conversation.
    #[must_use]
    pub const fn conversation_id(&self) -> ConversationId {
        self.conversation
    }

    /// Hands a decision to the line, which applies it in one commit.
    ///
    /// # Errors
    /// [`Fault::Ended`]; [`Fault::Stale`] where it was computed from what has changed.
    pub async fn decide(&self, decision: K::Decision) -> Result<<K::Decision as Decision<K>>::Answer, Fault> {
        let answer = self.invocation.decide(<K::Decision as Decision<K>>::VERSION, &decision).await?;
        answer.to().map_err(|error| Fault::failed(&error))
    }

    /// Like [`TaskRuntime::decide`], for a handler's last act: the answer may already hold the next phase, which saves a round trip.
    ///
    /// # Errors
    /// As [`TaskRuntime::decide`].
    pub async fn decide_last(self, decision: K::Decision) -> Result<(), Fault> {
        let next = self.invocation.decide_last(<K::Decision as Decision<K>>::VERSION, &decision).await?;
        self.invocation.keep_next(next);
        Ok(())
    }

    /// Commits what a closure writes together with the state that it gives: the checkpoint or the outcome is atomic with its entries,
    /// documents and child tasks (section 5.1). The closure runs once, while the session's line waits for it, at most for the line's
    /// bound: no effects in it. Entries name the task, and new tasks are in its conversation where they name no other.
    ///
    /// # Errors
    /// What the closure says; [`CommitError`] for what the commit refuses, with nothing written; [`Fault::Ended`] where the invocation is
    /// over, also because the closure took too long.
    pub async fn commit<E, F>(&self, change: F) -> Result<(), E>
    where
        F: AsyncFnOnce(&Tx, &Running<K>) -> Result<Next<K>, E>,
        E: From<Fault> + From<CommitError>,
    {
        let change = async |tx: &Tx, record: &TaskRecord| {
            let running = Running::of(record).map_err(|message| Fault::Failed(TaskError { message, detail: None }))?;
            let next = change(tx, &running).await?;
            Ok(((), next.erase()?))
        };
        self.invocation.commit(change).await
    }

    /// Keeps a value under a name in the task's record. The first writer wins: the answer is what is kept. Memos survive checkpoints and
    /// end with the task.
    ///
    /// # Errors
    /// [`Fault::Ended`]; [`Fault::Failed`] for a value that is not strict JSON or has another type than the kept one.
    pub async fn memo<T: Serialize + DeserializeOwned + Sync>(&self, name: &str, candidate: &T) -> Result<T, Fault> {
        self.invocation.memo(name, candidate).await
    }

    /// The value that is kept under a name.
    ///
    /// # Errors
    /// As [`TaskRuntime::memo`].
    pub async fn memoized<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, Fault> {
        self.invocation.memoized(name).await
    }

    /// The committed record of a task.
    ///
    /// # Errors
    /// [`Fault::Ended`].
    pub async fn task(&self, id: TaskId) -> Result<Option<TaskRecord>, Fault> {
        self.invocation.read(Read::Task(id)).await
    }

    /// How tasks ended, in order. For use after a wait (section 5.5).
    ///
    /// # Errors
    /// [`Fault::Failed`] where one is not there, not terminal, or its result has another type.
    pub async fn outcomes<R: DeserializeOwned>(&self, ids: &[TaskId<R>]) -> Result<Vec<Outcome<R>>, Fault> {
        let mut outcomes = Vec::with_capacity(ids.len());
        for id in ids {
            outcomes.push(outcome(*id, self.task(id.erase()).await?)?);
        }
        Ok(outcomes)
    }

    /// Waits until a task is terminal. The invocation's slot is free meanwhile.
    ///
    /// # Errors
    /// [`Fault::Ended`]; [`Fault::Failed`] for an unknown task or a result of another type.
    pub async fn wait_for_task<R: DeserializeOwned>(&self, id: TaskId<R>) -> Result<Outcome<R>, Fault> {
        outcome(id, Some(self.invocation.wait_for_task(id.erase()).await?))
    }

    /// A committed entry that is visible from the task's conversation.
    ///
    /// # Errors
    /// [`Fault::Ended`].
    pub async fn entry(&self, id: EntryId) -> Result<Option<EntryRecord>, Fault> {
        self.invocation.read(Read::VisibleEntry { conversation: self.conversation, entry: id }).await
    }

    /// The active transcript of a conversation and what a model sees of it, optionally up to an entry.
    ///
    /// # Errors
    /// [`Fault::Ended`]; [`Fault::Failed`] for an unknown conversation or an entry that is not visible there.
    pub async fn context(&self, conversation: ConversationId, at: Option<EntryId>) -> Result<ContextView, Fault> {
        self.invocation.context(conversation, at).await
    }

    /// A handle of a conversation that lives as long as the invocation.
    ///
    /// # Errors
    /// [`Fault::Ended`].
    pub async fn conversation(&self, id: ConversationId) -> Result<Option<BoundConversation>, Fault> {
        BoundConversation::acquire(&self.invocation, id).await
    }

    /// Watches a token's document: the committed value, and every later one as a frame (section 9.2). `None` where there is none. It stays
    /// with this incarnation, and ends as `stopped` when the invocation is over. Where the session gets another owner it goes on with one
    /// root replacement.
    ///
    /// # Errors
    /// As [`TaskRuntime::memo`]; [`Fault::Failed`] also where the invocation has too many watches.
    pub async fn watch_doc<T: DocValue, S: Scope>(&self, token: &DocToken<T, S>, at: S::At) -> Result<Option<Watch<T>>, Fault> {
        self.invocation.watch_doc(token.reader(at)).await
    }

    /// [`TaskRuntime::watch_doc`] of a member of a family.
    ///
    /// # Errors
    /// As [`TaskRuntime::watch_doc`].
    pub async fn watch_doc_in<T: DocValue, I, S: Scope>(
        &self,
        family: &FamilyToken<T, I, S>,
        at: S::At,
        key: &str,
    ) -> Result<Option<Watch<T>>, Fault> {
        self.invocation.watch_doc(family.reader(at, key)).await
    }

    /// Sleeps until a time by the worker's clock. The invocation's slot is free meanwhile. A long pause is better a durable one:
    /// [`crate::kind::Next::Sleep`].
    ///
    /// # Errors
    /// [`Fault::Ended`] once the invocation is told to stop.
    pub async fn sleep(&self, until: Millis) -> Result<(), Fault> {
        self.invocation.sleep(until).await
    }

    /// Fires when the invocation is told to stop or is over.
    #[must_use]
    pub fn cancelled(&self) -> &CancellationToken {
        self.invocation.cancel()
    }

    /// The hooks of the task that are registered for its conversation, in the order of the registry (section 7.2).
    ///
    /// # Errors
    /// [`Fault::Ended`].
    pub async fn handlers(&self) -> Result<Vec<Arc<K::Hooks>>, Fault> {
        self.phase().handlers::<K>().await
    }

    /// Asks a handler. `None` where it threw or panicked, which is reported; the next one can be asked. A task that composes errors in
    /// another way turns them into values before.
    ///
    /// # Errors
    /// [`Fault::Ended`] for an error once the invocation is told to stop.
    pub async fn ask<T>(&self, asked: impl Future<Output = Result<T, HookError>>) -> Result<Option<T>, Fault> {
        self.phase().ask_or_report(asked).await
    }

    /// What the task's hooks get, with its reads of committed documents.
    #[must_use]
    pub fn hook_api(&self) -> HookApi {
        HookApi::new(Arc::clone(&self.invocation), self.conversation)
    }

    /// Hands an error that ends nothing to who gets the reports of this process.
    pub fn report(&self, error: &(dyn std::error::Error + 'static)) {
        self.phase().report(error);
    }

    fn phase(&self) -> PhaseRun {
        PhaseRun::new(Arc::clone(&self.invocation), self.conversation)
    }

    /// What is registered, as of the begin of the phase.
    #[must_use]
    pub fn registry(&self) -> Arc<Snapshot> {
        self.invocation.snapshot()
    }

    /// Models.
    #[must_use]
    pub fn models(&self) -> Arc<dyn Models> {
        Arc::clone(&self.invocation.services().models)
    }

    /// The default environment of tools.
    #[must_use]
    pub fn env(&self) -> Option<Arc<dyn ExecutionEnv>> {
        self.invocation.services().env.clone()
    }

    /// The worker's clock. Durable times are the line's.
    #[must_use]
    pub fn now(&self) -> Millis {
        self.invocation.services().clock.now()
    }
}

pub(crate) fn outcome<R: DeserializeOwned>(id: TaskId<R>, record: Option<TaskRecord>) -> Result<Outcome<R>, Fault> {
    let failed = |message| Fault::Failed(TaskError { message, detail: None });
    let record = record.ok_or_else(|| failed(format!("task {id} does not exist")))?;
    let TaskState::Terminal { outcome } = record.state else { return Err(failed(format!("task {id} is not terminal"))) };
    Outcome::of(outcome).map_err(|error| failed(format!("the result of task {id} has another type: {error}")))
}
