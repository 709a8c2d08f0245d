//! What a running tool may use.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use picofleet_session::storage::PAGE_MAX;
use picofleet_session::{
    CommitError, ConversationId, ConversationRecord, DocToken, DocValue, Json, Scope, TaskError, TaskId, TaskRecord, Tx, Watch,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::{EnvError, ExecutionEnv, ToolError};
use crate::effects::{Fault, HookApi, Invocation, OutputBuffer, OutputLimits};
use crate::kind::{Outcome, TaskKind, TaskOptions, TxTasks};
use crate::live::ToolDiagnostic;
use crate::runtime::{BoundConversation, outcome};
use crate::task::NextState;
use crate::wire::{Paged, Read};

/// What a running tool may use. A plain clone; a wrapper hands on [`ToolApi::with_env`].
#[derive(Clone)]
pub struct ToolApi {
    shown: Arc<Shown>,
    env: Option<Arc<dyn ExecutionEnv>>,
    cancel: CancellationToken,
    call: Arc<Call>,
    backing: Arc<Backing>,
}

/// Which call it is.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) task: TaskId,
    pub(crate) conversation: ConversationId,
    pub(crate) id: String,
}

/// What the tool reported so far, and that something of it is new.
pub(crate) struct Shown {
    state: Mutex<ShownState>,
    pub(crate) changed: Notify,
    committed: watch::Sender<Committed>,
}

pub(crate) struct ShownState {
    pub(crate) output: OutputBuffer,
    pub(crate) details: Option<Json>,
    pub(crate) diagnostics: Vec<ToolDiagnostic>,
    /// How often details were reported.
    pub(crate) reports: u64,
    ended: bool,
}

impl Shown {
    pub(crate) fn new(limits: OutputLimits) -> Arc<Self> {
        let state = ShownState { output: OutputBuffer::new(limits), details: None, diagnostics: Vec::new(), reports: 0, ended: false };
        Arc::new(Self { state: Mutex::new(state), changed: Notify::new(), committed: watch::Sender::default() })
    }

    /// Looks at what was reported.
    pub(crate) fn with<R>(&self, look: impl FnOnce(&mut ShownState) -> R) -> R {
        look(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn end(&self) {
        self.with(|state| state.ended = true);
    }

    /// Details up to this report are committed.
    pub(crate) fn committed(&self, reports: u64) {
        self.committed.send_modify(|committed| committed.reports = reports);
    }

    /// Settles what waits for commits of details once the call is over.
    pub(crate) fn promises(self: &Arc<Self>) -> Promises {
        Promises(Arc::clone(self))
    }

    fn report<R>(&self, change: impl FnOnce(&mut ShownState) -> R) -> Result<R, ToolError> {
        let answer = self.with(|state| {
            if state.ended {
                return Err(ToolError::new("the call is over"));
            }
            Ok(change(state))
        })?;
        self.changed.notify_one();
        Ok(answer)
    }
}

/// Which details are committed, and whether the call is over.
#[derive(Clone, Copy, Default)]
struct Committed {
    reports: u64,
    /// `Some(true)` where the result was committed, with everything that was reported.
    over: Option<bool>,
}

/// Ends all waits for commits of details: as failed, unless they were kept.
pub(crate) struct Promises(Arc<Shown>);

impl Promises {
    /// The result was committed.
    pub(crate) fn kept(self) {
        self.0.committed.send_modify(|committed| committed.over = Some(true));
    }
}

impl Drop for Promises {
    fn drop(&mut self) {
        self.0.end();
        self.0.committed.send_if_modified(|committed| committed.over.is_none() && committed.over.replace(false).is_none());
    }
}

/// Settles once reported details, or later ones, are committed. Dropping it changes nothing.
pub struct DetailsCommitted(BoxFuture<'static, Result<(), ToolError>>);

impl Future for DetailsCommitted {
    type Output = Result<(), ToolError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(context)
    }
}

/// What the memos and reads of a call go to.
enum Backing {
    Task(HookApi),
    /// A call without a run keeps its memos itself, and has no documents.
    Loose(Mutex<BTreeMap<String, Json>>),
}

impl ToolApi {
    pub(crate) fn new(shown: Arc<Shown>, env: Option<Arc<dyn ExecutionEnv>>, cancel: CancellationToken, call: Call, api: HookApi) -> Self {
        Self { shown, env, cancel, call: Arc::new(call), backing: Arc::new(Backing::Task(api)) }
    }

    pub(crate) fn loose(shown: Arc<Shown>, env: Option<Arc<dyn ExecutionEnv>>, cancel: CancellationToken, call: Call) -> Self {
        Self { shown, env, cancel, call: Arc::new(call), backing: Arc::new(Backing::Loose(Mutex::default())) }
    }

    /// Appends running output. It is bounded: what the limits drop is counted.
    ///
    /// # Errors
    /// [`ToolError`] once the call is over.
    pub fn output(&self, chunk: &[u8]) -> Result<(), ToolError> {
        self.shown.report(|state| state.output.push(chunk))
    }

    /// Replaces the running details as a whole. The answer settles when these or later ones are committed, with the result at the latest,
    /// and fails where the call is stopped before.
    ///
    /// # Errors
    /// [`ToolError`] once the call is over.
    pub fn details(&self, details: impl Into<Json>) -> Result<DetailsCommitted, ToolError> {
        let details = details.into();
        let mut committed = self.shown.committed.subscribe();
        let report = self.shown.report(|state| {
            state.details = Some(details);
            state.reports += 1;
            state.reports
        })?;
        Ok(DetailsCommitted(Box::pin(async move {
            let known = committed.wait_for(|committed| committed.reports >= report || committed.over.is_some()).await;
            match known {
                Ok(known) if known.reports >= report || known.over == Some(true) => Ok(()),
                _ => Err(ToolError::new("the call was stopped before its details were committed")),
            }
        })))
    }

    /// Keeps a value under a name with the call, and answers the one that was kept first: what must stay the same when the call is
    /// executed again. Hooks of the call share the names.
    ///
    /// # Errors
    /// [`ToolError`] once the call is over, and for a value that is no strict JSON or of another type than the kept one.
    pub async fn memo<T: Serialize + DeserializeOwned + Sync>(&self, name: &str, candidate: &T) -> Result<T, ToolError> {
        match &*self.backing {
            Backing::Task(api) => Ok(api.memo(name, candidate).await?),
            Backing::Loose(memos) => {
                let candidate = Json::from_serde(candidate).map_err(|error| ToolError::new(error.to_string()))?;
                let kept = memos.lock().unwrap_or_else(PoisonError::into_inner).entry(name.to_owned()).or_insert(candidate).clone();
                kept.to().map_err(|error| ToolError::new(error.to_string()))
            }
        }
    }

    /// The value that was kept under a name.
    ///
    /// # Errors
    /// As [`ToolApi::memo`].
    pub async fn memoized<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, ToolError> {
        match &*self.backing {
            Backing::Task(api) => Ok(api.memoized(name).await?),
            Backing::Loose(memos) => {
                let kept = memos.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
                kept.map(|kept| kept.to()).transpose().map_err(|error| ToolError::new(error.to_string()))
            }
        }
    }

    /// The committed value of a token's document; `None` where there is none. [`ToolApi::read`] has the other reads.
    ///
    /// # Errors
    /// [`ToolError`] once the call is over, and where the token does not fit what is stored.
    pub async fn snapshot<T: DocValue, S: Scope>(&self, token: &DocToken<T, S>, at: S::At) -> Result<Option<T>, ToolError> {
        Ok(self.read()?.snapshot(token, at).await?)
    }

    /// Watches a token's document until the call is over: as [`HookApi::watch_doc`], which [`ToolApi::read`] has for families too.
    ///
    /// # Errors
    /// As [`ToolApi::snapshot`].
    pub async fn watch_doc<T: DocValue, S: Scope>(&self, token: &DocToken<T, S>, at: S::At) -> Result<Option<Watch<T>>, ToolError> {
        Ok(self.read()?.watch_doc(token, at).await?)
    }

    /// Reads of committed documents.
    ///
    /// # Errors
    /// [`ToolError`] for a call that belongs to no session.
    pub fn read(&self) -> Result<&HookApi, ToolError> {
        match &*self.backing {
            Backing::Task(api) => Ok(api),
            Backing::Loose(_) => Err(ToolError::new("this call belongs to no session, so that there are no documents")),
        }
    }

    /// Commits what a closure writes. It runs once, while the session's line waits for it, at most for the line's bound: no effects in it
    /// and no other call of this type. Entries name the call's task, and new tasks are in its conversation where they name no other.
    ///
    /// # Errors
    /// What the closure says; [`CommitError`] for what the commit refuses; [`Fault`] once the call is over. Nothing is written then.
    pub async fn commit<R, E, F>(&self, change: F) -> Result<R, E>
    where
        F: AsyncFnOnce(&Tx) -> Result<R, E>,
        E: From<Fault> + From<CommitError>,
    {
        let invocation = self.invocation()?;
        invocation.commit(async |tx: &Tx, _: &TaskRecord| Ok((change(tx).await?, NextState::Stay))).await
    }

    /// Creates a task in the call's conversation, in a commit of its own.
    ///
    /// # Errors
    /// As [`TxTasks::create_task`] and [`ToolApi::commit`].
    pub async fn create_task<K: TaskKind>(&self, kind: &K, input: K::Input, options: TaskOptions) -> Result<TaskId<K::Output>, Fault> {
        self.commit(async |tx| Ok::<_, Fault>(tx.create_task(kind, input, options).await?)).await
    }

    /// The committed record of a task.
    ///
    /// # Errors
    /// [`Fault`] once the call is over.
    pub async fn task(&self, id: TaskId) -> Result<Option<TaskRecord>, Fault> {
        self.invocation()?.read(Read::Task(id)).await
    }

    /// Waits until a task is terminal. The worker's slot is free meanwhile.
    ///
    /// # Errors
    /// [`Fault`] once the call is over, for an unknown task and for a result of another type.
    pub async fn wait_for_task<R: DeserializeOwned>(&self, id: TaskId<R>) -> Result<Outcome<R>, Fault> {
        outcome(id, Some(self.invocation()?.wait_for_task(id.erase()).await?))
    }

    /// The conversations that a task owns, such as those that an earlier run of this call made.
    ///
    /// # Errors
    /// [`Fault`] once the call is over.
    pub async fn conversations_of(&self, task: TaskId) -> Result<Vec<ConversationRecord>, Fault> {
        let read = Read::Conversations { owner_conversation: None, owner_task: Some(task), limit: PAGE_MAX, cursor: None };
        let page: Paged<ConversationRecord> = self.invocation()?.read(read).await?;
        Ok(page.items)
    }

    /// A handle of a conversation that lives as long as the call; `None` where there is none.
    ///
    /// # Errors
    /// [`Fault`] once the call is over.
    pub async fn conversation(&self, id: ConversationId) -> Result<Option<BoundConversation>, Fault> {
        BoundConversation::acquire(self.invocation()?, id).await
    }

    fn invocation(&self) -> Result<&Arc<Invocation>, Fault> {
        match &*self.backing {
            Backing::Task(api) => Ok(api.invocation()),
            Backing::Loose(_) => {
                let message = "this call belongs to no session".to_owned();
                Err(Fault::Failed(TaskError { message, detail: None }))
            }
        }
    }

    /// Adds a remark that the model sees.
    ///
    /// # Errors
    /// [`ToolError`] once the call is over.
    pub fn diagnostic(&self, diagnostic: ToolDiagnostic) -> Result<(), ToolError> {
        self.shown.report(|state| state.diagnostics.push(diagnostic))
    }

    /// The environment.
    ///
    /// # Errors
    /// [`ToolError`] where the call has none.
    pub fn env(&self) -> Result<&Arc<dyn ExecutionEnv>, ToolError> {
        self.env.as_ref().ok_or_else(|| ToolError::new("this tool needs an execution environment and has none"))
    }

    /// The same call with another environment.
    #[must_use]
    pub fn with_env(&self, env: Arc<dyn ExecutionEnv>) -> Self {
        Self { env: Some(env), ..self.clone() }
    }

    /// Fires when the call is to stop.
    #[must_use]
    pub const fn cancelled(&self) -> &CancellationToken {
        &self.cancel
    }

    /// The task of the call; stays the same over a restart.
    #[must_use]
    pub fn task_id(&self) -> TaskId {
        self.call.task
    }

    /// The conversation.
    #[must_use]
    pub fn conversation_id(&self) -> ConversationId {
        self.call.conversation
    }

    /// The provider's name of the call. It is not unique in a session.
    #[must_use]
    pub fn call_id(&self) -> &str {
        &self.call.id
    }
}

impl From<Fault> for ToolError {
    fn from(fault: Fault) -> Self {
        Self(fault.to_string())
    }
}

impl From<EnvError> for ToolError {
    fn from(error: EnvError) -> Self {
        Self(error.to_string())
    }
}
