//! The documents, entries and tasks of the cases.

use std::cell::Cell;
use std::sync::Arc;

use picofleet_delta::{Json, Op, ops_to_json};
use picofleet_session::message::{
    AssistantBlock, AssistantMessage, Message, StopReason, TextContent, ToolCall, ToolResultMessage, Usage, UserBlock, UserMessage,
};
use picofleet_session::{
    AsOf, CheckpointInfo, CommitError, ConversationId, Current, DocDefinition, DocToken, DocumentAddress, EntryDraft, EntryRecord,
    FamilyDefinition, FamilyToken, InSession, InTask, Initial, Latest, Millis, Point, Rewindable, Scope, Session, TaskCreate, TaskId,
    TaskOutcome, TaskOwnership, TaskRecord, TaskState, Tx, TxError,
};
use serde::{Deserialize, Serialize};

/// A small document.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Note {
    /// A text.
    pub text: String,
    /// A number.
    pub n: i64,
    /// Any values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<Json>,
    /// May be absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra: Option<Json>,
}

impl Note {
    /// One with this text.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self { text: text.to_owned(), ..Self::default() }
    }
}

thread_local! {
    static INITIALS: Cell<u32> = const { Cell::new(0) };
}

/// How often an `initial` of this module ran on this thread since the last call.
#[must_use]
pub fn initials() -> u32 {
    INITIALS.take()
}

fn note() -> DocDefinition<Note> {
    let initial = || {
        INITIALS.set(INITIALS.get() + 1);
        Note::new("initial")
    };
    DocDefinition { initial, migrate: None, checkpoint_when }
}

fn member() -> FamilyDefinition<Note, String> {
    let initial = |seed: &String| {
        INITIALS.set(INITIALS.get() + 1);
        Note::new(seed)
    };
    FamilyDefinition { initial, migrate: None, checkpoint_when }
}

/// Often enough that cases of a few commits meet bases and deltas.
fn checkpoint_when(_value: &Json, _ops: &[Op], info: CheckpointInfo) -> bool {
    info.deltas_since_base >= 2
}

/// A document of the session.
pub const IN_SESSION: DocToken<Note, InSession> = DocToken::new("t.session", 1, note);
/// A document of a task.
pub const IN_TASK: DocToken<Note, InTask> = DocToken::new("t.task", 1, note);
/// A conversation document whose forks get the value at their point.
pub const AS_OF: DocToken<Note, Rewindable<AsOf>> = DocToken::new("t.asOf", 1, note);
/// A rewindable conversation document whose forks get the present value.
pub const REWINDABLE_CURRENT: DocToken<Note, Rewindable<Current>> = DocToken::new("t.rewindableCurrent", 1, note);
/// A rewindable conversation document whose forks get nothing.
pub const REWINDABLE_INITIAL: DocToken<Note, Rewindable<Initial>> = DocToken::new("t.rewindableInitial", 1, note);
/// A latest conversation document whose forks get the present value.
pub const CURRENT: DocToken<Note, Latest<Current>> = DocToken::new("t.current", 1, note);
/// A latest conversation document whose forks get nothing.
pub const INITIAL: DocToken<Note, Latest<Initial>> = DocToken::new("t.initial", 1, note);
/// A family of the session.
pub const SESSION_FAMILY: FamilyToken<Note, String, InSession> = FamilyToken::new("t.sessionFamily", 1, member);
/// A family of a task.
pub const TASK_FAMILY: FamilyToken<Note, String, InTask> = FamilyToken::new("t.taskFamily", 1, member);
/// A family whose forks get the values at their point.
pub const AS_OF_FAMILY: FamilyToken<Note, String, Rewindable<AsOf>> = FamilyToken::new("t.asOfFamily", 1, member);
/// A family whose forks get the present values.
pub const CURRENT_FAMILY: FamilyToken<Note, String, Latest<Current>> = FamilyToken::new("t.currentFamily", 1, member);
/// A family whose forks get nothing.
pub const INITIAL_FAMILY: FamilyToken<Note, String, Latest<Initial>> = FamilyToken::new("t.initialFamily", 1, member);

/// Why a case's transaction ended without a commit.
#[derive(Clone, Debug)]
pub enum Failure {
    /// The kernel said so.
    Commit(CommitError),
    /// The callback said so.
    Own(&'static str),
}

impl From<CommitError> for Failure {
    fn from(error: CommitError) -> Self {
        Self::Commit(error)
    }
}

impl From<TxError> for Failure {
    fn from(error: TxError) -> Self {
        Self::Commit(error.into())
    }
}

impl From<picofleet_delta::DraftError> for Failure {
    fn from(error: picofleet_delta::DraftError) -> Self {
        Self::Commit(error.into())
    }
}

impl Failure {
    /// The kernel's error; a failure of the callback fails the case.
    #[must_use]
    pub fn commit(self) -> CommitError {
        match self {
            Self::Commit(error) => error,
            Self::Own(what) => panic!("not the kernel but the callback failed: {what}"),
        }
    }
}

/// A commit whose callback fails with the errors of the transaction.
///
/// # Errors
/// As [`Session::commit`].
pub async fn commit<R>(session: &Session, change: impl AsyncFnOnce(&Tx) -> Result<R, TxError>) -> Result<R, CommitError> {
    let change = async |tx: &Tx| change(tx).await.map_err(Failure::from);
    session.commit(change).await.map_err(Failure::commit)
}

/// Appends one entry in one commit.
pub async fn append(session: &Session, conversation: ConversationId, entry: EntryDraft) -> EntryRecord {
    Arc::unwrap_or_clone(commit(session, async |tx| tx.append_entry(conversation, entry).await).await.unwrap())
}

/// Appends one entry without content in one commit.
pub async fn append_plain(session: &Session, conversation: ConversationId) -> EntryRecord {
    append(session, conversation, EntryDraft::new("t.entry")).await
}

/// A top-level task of a conversation.
#[must_use]
pub fn task(conversation: ConversationId) -> TaskCreate {
    TaskCreate {
        kind: "t.task".to_owned(),
        version: 1,
        input: json(r#"{"input":true}"#),
        checkpoint: json(r#"{"phase":"start"}"#),
        ownership: TaskOwnership::Conversation,
        conversation_id: Some(conversation),
        background: false,
    }
}

/// A task that another one owns.
#[must_use]
pub fn child(owner: TaskId) -> TaskCreate {
    let ownership = TaskOwnership::Task { task_id: owner };
    TaskCreate { ownership, conversation_id: None, ..task(picofleet_session::ROOT_CONVERSATION_ID) }
}

/// An outcome.
#[must_use]
pub fn completed() -> TaskOutcome {
    TaskOutcome::Completed { result: Json::null() }
}

/// Puts a task into another state, in a transaction.
///
/// # Errors
/// As [`Tx::put_task`].
pub async fn put_state(tx: &Tx, record: &TaskRecord, state: TaskState) -> Result<(), TxError> {
    tx.put_task(TaskRecord { state, ..record.clone() }).await
}

/// A task's record in one commit that writes nothing.
pub async fn task_record(session: &Session, id: TaskId) -> Option<TaskRecord> {
    commit(session, async |tx| tx.task(id).await).await.unwrap()
}

/// Sets the number of a document in one commit.
pub async fn set_n<S: Scope>(session: &Session, token: &DocToken<Note, S>, at: S::At, n: i64) {
    commit(session, async |tx| tx.doc(token, at).await?.edit(|note| note.n = n)).await.unwrap();
}

/// Adds one to the number of the session's document; the new number.
///
/// # Errors
/// As [`Session::commit`].
pub async fn add(session: &Session) -> Result<i64, CommitError> {
    commit(session, async |tx| {
        tx.doc(&IN_SESSION, ()).await?.edit(|note| {
            note.n += 1;
            note.n
        })
    })
    .await
}

/// The number of the session's document, 0 where there is none.
pub async fn n(session: &Session) -> i64 {
    session.snapshot(&IN_SESSION, ()).await.unwrap().map_or(0, |note| note.n)
}

/// What storage has of a token's document: the version, the deltas behind the base, the value.
pub async fn stored<S: Scope>(session: &Session, token: &DocToken<Note, S>, at: S::At) -> Option<(u32, u32, Json)> {
    let address = DocumentAddress { kind: token.kind.to_owned(), scope: S::placement(at).scope(), key: None };
    let record = session.store().find_document(address, Point::Current).await.unwrap()?;
    let stored = session.store().document(record.create.id, Point::Current).await.unwrap()?;
    Some((stored.version, stored.deltas_since_base, stored.value))
}

/// Parses a value.
#[must_use]
pub fn json(text: &str) -> Json {
    Json::parse(text.as_bytes()).unwrap()
}

/// Operations as their text.
#[must_use]
pub fn ops(ops: &[Op]) -> String {
    ops_to_json(ops).to_string()
}

/// A user message.
#[must_use]
pub fn user(text: &str) -> Message {
    Message::from(UserMessage { content: text.into(), timestamp: Millis(1) })
}

/// An assistant message with text, calls as (id, tool) and a stop reason.
#[must_use]
pub fn assistant(text: &str, calls: &[(&str, &str)], stop_reason: StopReason) -> Message {
    let calls = calls.iter().map(|(id, name)| {
        AssistantBlock::ToolCall(ToolCall {
            id: (*id).to_owned(),
            name: (*name).to_owned(),
            arguments: json("{}"),
            thought_signature: None,
            namespace: None,
            arguments_error: None,
        })
    });
    Message::from(AssistantMessage {
        content: std::iter::once(AssistantBlock::Text(TextContent::new(text))).chain(calls).collect(),
        api: "scripted".to_owned(),
        provider: "scripted".to_owned(),
        model: "m".to_owned(),
        response_model: None,
        response_id: None,
        provider_thinking_level: None,
        thinking_level: None,
        diagnostics: None,
        usage: Usage::default(),
        stop_reason,
        deferred: None,
        error_message: None,
        raw_stop_reason: None,
        end_turn: None,
        timestamp: Millis(2),
        duration_ms: None,
    })
}

/// A tool result.
#[must_use]
pub fn tool_result(call: &str, text: &str) -> Message {
    Message::from(ToolResultMessage {
        tool_call_id: call.to_owned(),
        tool_name: "tool".to_owned(),
        content: vec![UserBlock::Text(TextContent::new(text))],
        details: None,
        usage: None,
        nested_calls: None,
        is_error: false,
        timestamp: Millis(3),
        duration_ms: None,
    })
}
