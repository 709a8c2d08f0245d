//! Calls of a host and reads of committed state (section 2.2).

pub(super) mod conversations;
pub(super) mod keyed;
mod reads;

use std::time::Duration;

use futures::future::BoxFuture;
use picofleet_session::{
    CommitError, ConversationId, InputState, Json, ROOT_CONVERSATION_ID, SubmissionId, SubmissionRecord, SubmissionState, Tx,
};

use super::{LineError, SessionLine};
use crate::config::{CONFIG, ConfigPatch, ConversationConfig};
use crate::submission::{Admission, SubmissionDraft, admit, withdraw, withdraw_inputs};
use crate::wire::{Answer, HostCall, HostFailure};
use keyed::{Key, failure};

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
        let of = Duration::from_millis;
        // Boxed one by one, as in `handle`.
        let answer: BoxFuture<'_, Result<Answer, LineError>> = match call {
            HostCall::Submit { conversation, draft } => Box::pin(self.submit(key, conversation, draft)),
            HostCall::Configure { conversation, config } => Box::pin(self.configure(key, conversation, *config)),
            HostCall::Patch { conversation, patch } => Box::pin(async move { self.patch(key, conversation, &patch).await }),
            HostCall::Withdraw { submission } => Box::pin(self.withdraw(key, submission)),
            HostCall::AbortSubmission { submission, conversation } => Box::pin(self.abort_submission(key, submission, conversation)),
            HostCall::CreateConversation { ownership, config } => Box::pin(self.create_conversation(key, ownership, config)),
            HostCall::Fork { conversation, at, ownership, config } => Box::pin(self.fork(key, conversation, at, ownership, config)),
            HostCall::Reset { conversation, handoff } => Box::pin(self.reset(key, conversation, handoff)),
            HostCall::Compact { conversation, instructions } => Box::pin(self.compact(key, conversation, instructions)),
            HostCall::Root => Box::pin(self.root()),
            HostCall::WaitSubmission { submission, timeout_ms } => Box::pin(self.wait_submission(submission, of(timeout_ms))),
            HostCall::WaitTask { task, timeout_ms } => Box::pin(self.wait_task(task, of(timeout_ms))),
            HostCall::WaitIdle { conversation, timeout_ms } => Box::pin(self.wait_idle(conversation, of(timeout_ms))),
            HostCall::WaitStopped { task, timeout_ms } => Box::pin(self.wait_stopped(task, of(timeout_ms))),
            HostCall::WaitAborted { conversation, tasks, timeout_ms } => {
                Box::pin(async move { self.wait_aborted(conversation, &tasks, of(timeout_ms)).await })
            }
            HostCall::AbortTask { task } => Box::pin(self.abort_task(task)),
            HostCall::Abort { conversation, background } => Box::pin(self.abort(conversation, background)),
            HostCall::RetryTask { task } => Box::pin(self.retry_task(task)),
            HostCall::Inspect => Box::pin(self.inspected()),
            // A session that has a line is not quarantined.
            HostCall::RetrySession => return Ok(Answer::Value(Json::from("not_quarantined"))),
            HostCall::Resume => {
                let closed = || Answer::Failed(HostFailure::Unavailable("the session is closing".to_owned()));
                return Ok(if self.resume() { Answer::Done } else { closed() });
            }
            // `Key::of` takes the outer key and refuses an inner one.
            HostCall::Keyed { .. } => {
                return Ok(Answer::Failed(HostFailure::Invalid("a keyed call holds no other keyed call".to_owned())));
            }
        };
        answer.await
    }

    async fn submit(&self, key: Option<Key>, conversation: ConversationId, draft: SubmissionDraft) -> Result<Answer, LineError> {
        self.resume();
        let admit = async |tx: &Tx| {
            let withdraws = self.withdraws(tx, conversation).await?;
            let answer = admitted(tx, conversation, draft).await?;
            if withdraws {
                withdraw_inputs(tx, conversation).await?;
            }
            Ok(answer)
        };
        let answer = self.keyed(key, admit).await?;
        self.submission_of(answer).await
    }

    /// An admission may settle in its own commit: what is stored is what counts.
    async fn submission_of(&self, answer: Answer) -> Result<Answer, LineError> {
        let id = match &answer {
            Answer::Value(id) => id.to::<SubmissionId>().ok(),
            _ => None,
        };
        let Some(id) = id else { return Ok(answer) };
        let kept = self.state().submission(id);
        match kept {
            Some(kept) => Ok(Answer::Value(json(Some(&*kept)))),
            None => Ok(Answer::Value(json(self.session().store().submission(id).await?.as_ref()))),
        }
    }

    async fn root(&self) -> Result<Answer, LineError> {
        let record = self
            .session()
            .commit(async |tx| {
                if let Some(root) = tx.conversation(ROOT_CONVERSATION_ID).await? {
                    return Ok::<_, CommitError>(root);
                }
                self.unsealed()?;
                Ok(tx.create_root().await?)
            })
            .await?;
        Ok(Answer::Value(json(Some(&record))))
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

pub(super) fn json<T: serde::Serialize>(value: Option<&T>) -> Json {
    // Records are JSON by construction; one that were not would be shown as absent.
    value.and_then(|value| Json::from_serde(value).ok()).unwrap_or(Json::null())
}

pub(super) fn not_found(what: &str, id: i64) -> Answer {
    Answer::Failed(HostFailure::NotFound { what: what.to_owned(), id })
}
