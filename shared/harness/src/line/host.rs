//! Calls of a host and reads of committed state (section 2.2).

mod conversations;
mod keyed;
mod reads;

use std::time::Duration;

use picofleet_session::{
    CommitError, ConversationId, InputState, Json, ROOT_CONVERSATION_ID, SubmissionId, SubmissionRecord, SubmissionState, TaskId, Tx,
    TxError,
};

use super::{LineError, SessionLine};
use crate::config::{CONFIG, ConfigPatch, ConversationConfig};
use crate::inbox::INBOX;
use crate::live::LIVE;
use crate::submission::{Admission, SubmissionDraft, admit, withdraw, withdraw_inputs};
use crate::usage::USAGE;
use crate::wire::{Answer, HostCall, HostFailure};
use keyed::{Key, failure};

/// The longest that one call waits; a caller asks again.
const WAIT_MAX: Duration = Duration::from_secs(60);

impl SessionLine {
    /// A call of a host. What went wrong is said by what the caller can do.
    pub(super) async fn host(&self, call: HostCall) -> Result<Answer, LineError> {
        let (key, call) = match Key::of(call) {
            Ok(taken) => taken,
            Err(failure) => return Ok(Answer::Failed(failure)),
        };
        self.host_call(key, call).await.or_else(|error| failure(error).map(Answer::Failed))
    }

    async fn host_call(&self, key: Option<Key>, call: HostCall) -> Result<Answer, LineError> {
        match call {
            HostCall::Submit { conversation, draft } => self.submit(key, conversation, draft).await,
            HostCall::Configure { conversation, config } => self.configure(key, conversation, *config).await,
            HostCall::Patch { conversation, patch } => self.patch(key, conversation, &patch).await,
            HostCall::Withdraw { submission } => self.withdraw(key, submission).await,
            HostCall::AbortSubmission { submission, conversation } => self.abort_submission(key, submission, conversation).await,
            HostCall::CreateConversation { ownership, config } => self.create_conversation(key, ownership, config).await,
            HostCall::Fork { conversation, at, ownership, config } => self.fork(key, conversation, at, ownership, config).await,
            HostCall::Reset { conversation, handoff } => self.reset(key, conversation, handoff).await,
            HostCall::Root => Ok(Answer::Value(self.root().await?)),
            HostCall::WaitSubmission { submission, timeout_ms } => {
                self.wait_submission(submission, Duration::from_millis(timeout_ms)).await
            }
            HostCall::AbortTask { task } => self.abort_task(task).await,
            HostCall::Abort { conversation, background } => self.abort(conversation, background).await,
            // `Key::of` takes the outer key and refuses an inner one.
            HostCall::Keyed { .. } => Ok(Answer::Failed(HostFailure::Invalid("a keyed call holds no other keyed call".to_owned()))),
        }
    }

    async fn submit(&self, key: Option<Key>, conversation: ConversationId, draft: SubmissionDraft) -> Result<Answer, LineError> {
        let answer = self.keyed(key, async |tx| admitted(tx, conversation, draft).await).await?;
        self.submission_of(answer).await
    }

    /// An admission may settle in its own commit: what is stored is what counts.
    async fn submission_of(&self, answer: Answer) -> Result<Answer, LineError> {
        let id = match &answer {
            Answer::Value(id) => id.to::<SubmissionId>().ok(),
            _ => None,
        };
        let Some(id) = id else { return Ok(answer) };
        Ok(Answer::Value(json(self.session().store().submission(id).await?.as_ref())))
    }

    async fn root(&self) -> Result<Json, LineError> {
        let record = self
            .session()
            .commit(async |tx| {
                if let Some(root) = tx.conversation(ROOT_CONVERSATION_ID).await? {
                    return Ok::<_, CommitError>(root);
                }
                let root = tx.create_root().await?;
                built_in_documents(tx, root.id).await?;
                Ok(root)
            })
            .await?;
        Ok(json(Some(&record)))
    }

    async fn wait_submission(&self, id: SubmissionId, timeout: Duration) -> Result<Answer, LineError> {
        let deadline = tokio::time::Instant::now() + timeout.min(WAIT_MAX);
        let changed = self.changed();
        loop {
            let notified = changed.notified();
            tokio::pin!(notified);
            // Registered before the look, so that no commit between the two is missed.
            notified.as_mut().enable();
            let Some(record) = self.session().store().submission(id).await? else { return Ok(not_found("submission", id.get())) };
            if !record.settled() {
                // Nothing settles it any more where the session has ended.
                self.session().conversation(record.conversation_id).await?;
            }
            if record.settled() || tokio::time::timeout_at(deadline, notified).await.is_err() {
                return Ok(Answer::Value(json(Some(&record))));
            }
        }
    }

    async fn configure(&self, key: Option<Key>, conversation: ConversationId, config: ConversationConfig) -> Result<Answer, LineError> {
        // The shape is checked as a change's is; which tools are active is the caller's business here.
        let checked = Json::from_serde(&config).map_err(|error| ("config".to_owned(), error.to_string()));
        let checked = checked.and_then(|config| ConfigPatch::parse(&config).map_err(|invalid| (invalid.field, invalid.why)));
        if let Err((field, why)) = checked {
            return Ok(Answer::Failed(HostFailure::InvalidField { field, why }));
        }
        self.keyed(key, async |tx| {
            if tx.conversation(conversation).await?.is_none() {
                return Ok(not_found("conversation", conversation.get()));
            }
            tx.doc(&CONFIG, conversation).await?.edit(|stored| *stored = config)?;
            Ok(Answer::Done)
        })
        .await
    }

    async fn withdraw(&self, key: Option<Key>, id: SubmissionId) -> Result<Answer, LineError> {
        self.keyed(key, async |tx| {
            let Some(record) = tx.submission(id).await? else { return Ok(not_found("submission", id.get())) };
            Ok(Answer::Value(Json::from(withdrawn(tx, &record).await?)))
        })
        .await
    }

    /// Withdraws a submission of a conversation; another conversation's is not found (section 2.2).
    async fn abort_submission(
        &self,
        key: Option<Key>,
        id: SubmissionId,
        conversation: Option<ConversationId>,
    ) -> Result<Answer, LineError> {
        self.keyed(key, async |tx| {
            let record =
                tx.submission(id).await?.filter(|record| conversation.is_none_or(|conversation| record.conversation_id == conversation));
            let word = match record {
                Some(record) => withdrawn(tx, &record).await?,
                None => "not_found",
            };
            Ok(Answer::Value(Json::from(word)))
        })
        .await
    }

    /// `marked` or `terminal` (section 2.2).
    async fn abort_task(&self, task: TaskId) -> Result<Answer, LineError> {
        let Some(record) = self.session().store().task(task).await? else { return Ok(not_found("task", task.get())) };
        if record.terminal() {
            return Ok(Answer::Value(Json::from("terminal")));
        }
        self.mark(&[task].into()).await?;
        Ok(Answer::Value(Json::from("marked")))
    }

    /// Withdraws queued inputs and marks the work below a conversation (section 5.4).
    async fn abort(&self, conversation: ConversationId, background: bool) -> Result<Answer, LineError> {
        self.complete_tree().await?;
        self.session().commit(async |tx| Ok::<_, CommitError>(withdraw_inputs(tx, conversation).await?)).await?;
        let tasks = {
            let state = self.state();
            let tree = &state.tree;
            if background { tree.everything_of(conversation) } else { tree.foreground_of(conversation) }
        };
        self.mark(&tasks.into_iter().collect()).await?;
        Ok(Answer::Done)
    }
}

/// Admits a submission; the answer holds its id.
async fn admitted(tx: &Tx, conversation: ConversationId, draft: SubmissionDraft) -> Result<Answer, CommitError> {
    if tx.conversation(conversation).await?.is_none() {
        return Ok(not_found("conversation", conversation.get()));
    }
    Ok(match admit(tx, conversation, draft).await? {
        Admission::Admitted(record) | Admission::Existing(record) => Answer::Value(json(Some(&record.id))),
        Admission::Busy => Answer::Failed(HostFailure::Busy(conversation)),
        Admission::Full => Answer::Failed(HostFailure::InboxFull(conversation)),
        Admission::OtherType => Answer::Failed(HostFailure::InvalidField {
            field: "requestId".to_owned(),
            why: "it names a submission of the other type".to_owned(),
        }),
    })
}

/// `aborted`, `already_placed` or `settled` (section 6).
async fn withdrawn(tx: &Tx, record: &SubmissionRecord) -> Result<&'static str, CommitError> {
    if record.settled() {
        return Ok("settled");
    }
    let withdrawn = withdraw(tx, record.conversation_id, record.id).await?;
    Ok(if withdrawn { "aborted" } else { placed_word(record) })
}

const fn placed_word(record: &SubmissionRecord) -> &'static str {
    match record.state {
        SubmissionState::Input(InputState::Placed { .. }) => "already_placed",
        _ => "settled",
    }
}

/// The documents that every conversation of a harness has (section 2.2).
///
/// # Errors
/// As [`Tx::doc`].
pub(crate) async fn built_in_documents(tx: &Tx, conversation: ConversationId) -> Result<(), TxError> {
    tx.doc(&CONFIG, conversation).await?;
    tx.doc(&LIVE, conversation).await?;
    tx.doc(&INBOX, conversation).await?;
    tx.doc(&USAGE, conversation).await?;
    Ok(())
}

fn json<T: serde::Serialize>(value: Option<&T>) -> Json {
    // Records are JSON by construction; one that were not would be shown as absent.
    value.and_then(|value| Json::from_serde(value).ok()).unwrap_or(Json::null())
}

fn not_found(what: &str, id: i64) -> Answer {
    Answer::Failed(HostFailure::NotFound { what: what.to_owned(), id })
}
