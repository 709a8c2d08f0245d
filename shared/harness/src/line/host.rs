//! Calls of a host and reads of committed state (section 2.2).

use std::time::Duration;

use futures::future::BoxFuture;
use picofleet_session::{
    CommitError, ConversationId, DocumentAddress, DocumentScope, InputState, Json, Point, ROOT_CONVERSATION_ID, StoredValue, SubmissionId,
    SubmissionRecord, SubmissionState,
};

use super::{LineError, SessionLine};
use crate::config::{CONFIG, ConversationConfig};
use crate::inbox::INBOX;
use crate::live::LIVE;
use crate::submission::{Admission, SubmissionDraft, admit, withdraw};
use crate::usage::USAGE;
use crate::wire::{Answer, HostCall, HostFailure, Read};

impl SessionLine {
    pub(super) async fn host(&self, call: HostCall) -> Result<Answer, LineError> {
        let of = Duration::from_millis;
        // Boxed one by one, as in `handle`.
        let answer: BoxFuture<'_, Result<Answer, LineError>> = match call {
            HostCall::Root => Box::pin(self.root()),
            HostCall::Submit { conversation, draft } => Box::pin(self.submit(conversation, draft)),
            HostCall::WaitSubmission { submission, timeout_ms } => Box::pin(self.wait_submission(submission, of(timeout_ms))),
            HostCall::WaitTask { task, timeout_ms } => Box::pin(self.wait_task(task, of(timeout_ms))),
            HostCall::Configure { conversation, config } => Box::pin(self.configure(conversation, *config)),
            HostCall::Withdraw { submission } => Box::pin(self.withdraw(submission)),
            HostCall::AbortTask { task } => Box::pin(self.abort_task(task)),
            HostCall::Abort { conversation, background } => Box::pin(self.abort(conversation, background)),
            HostCall::Resume => {
                let closed = || Answer::Failed(HostFailure::Unavailable("the session is closing".to_owned()));
                return Ok(if self.resume() { Answer::Done } else { closed() });
            }
            HostCall::RetryTask { task } => Box::pin(self.retry_task(task)),
            HostCall::WaitIdle { conversation, timeout_ms } => Box::pin(self.wait_idle(conversation, of(timeout_ms))),
            HostCall::Inspect => Box::pin(self.inspected()),
        };
        answer.await
    }

    pub(super) async fn read(&self, read: Read) -> Result<Answer, LineError> {
        let store = self.session().store();
        let value = match read {
            Read::Task(id) => json(store.task(id).await?.as_ref()),
            Read::Entry(id) => json(store.entry(None, id).await?.map(|(entry, _)| entry).as_ref()),
            Read::Submission(id) => json(store.submission(id).await?.as_ref()),
            Read::Context { conversation, at } => {
                let context = self.session().context(conversation, at).await?;
                json(Some(&(context.head, context.entries, context.contributions, context.messages)))
            }
            Read::Entries { conversation, min, max, limit } => {
                let page = store.scan_entries(Read::entries(conversation, min, max), limit, None).await?;
                json(Some(&page.items))
            }
            Read::Conversation(id) => json(store.conversation(id).await?.as_ref()),
            Read::VisibleEntry { conversation, entry } => {
                json(store.entry(Some(conversation), entry).await?.map(|(entry, _)| entry).as_ref())
            }
            Read::ConversationDocument { conversation, kind } => self.document(conversation, &kind).await?,
            Read::Document(address) => json(self.stored(address, Point::Current).await?.as_ref()),
            Read::DocumentAsOf { address, conversation, at } => {
                let Some((entry, seq)) = store.entry(Some(conversation), at).await? else {
                    return Ok(not_found("visible entry", at.get()));
                };
                let address = DocumentAddress { scope: DocumentScope::Conversation { id: entry.conversation_id }, ..address };
                json(self.stored(address, Point::At(seq)).await?.as_ref())
            }
            Read::Owners(conversation) => json(Some(&self.owners(conversation).await?)),
        };
        Ok(Answer::Value(value))
    }

    async fn stored(&self, address: DocumentAddress, at: Point) -> Result<Option<StoredValue>, LineError> {
        let store = self.session().store();
        let Some(record) = store.find_document(address, at).await? else { return Ok(None) };
        Ok(store.document(record.create.id, at).await?.map(StoredValue::from))
    }

    /// Who owns a conversation through tasks, the nearest first. Owner edges have no cycle (section 5.5).
    async fn owners(&self, conversation: ConversationId) -> Result<Vec<ConversationId>, LineError> {
        let store = self.session().store();
        let mut owners = Vec::new();
        let mut next = Some(conversation);
        while let Some(id) = next {
            next = store.conversation(id).await?.and_then(|record| record.owner).map(|owner| owner.conversation_id);
            owners.extend(next);
        }
        Ok(owners)
    }

    /// The built-in documents of a conversation, by kind.
    async fn document(&self, conversation: ConversationId, kind: &str) -> Result<Json, LineError> {
        let session = self.session();
        let value = match kind {
            kind if kind == CONFIG.kind => session.snapshot_json(&CONFIG, conversation).await?,
            kind if kind == LIVE.kind => session.snapshot_json(&LIVE, conversation).await?,
            kind if kind == INBOX.kind => session.snapshot_json(&INBOX, conversation).await?,
            kind if kind == USAGE.kind => session.snapshot_json(&USAGE, conversation).await?,
            _ => None,
        };
        Ok(value.unwrap_or(Json::null()))
    }

    async fn root(&self) -> Result<Answer, LineError> {
        let record = self
            .session()
            .commit(async |tx| {
                if let Some(root) = tx.conversation(ROOT_CONVERSATION_ID).await? {
                    return Ok::<_, CommitError>(root);
                }
                Ok(tx.create_root().await?)
            })
            .await?;
        Ok(Answer::Value(json(Some(&record))))
    }

    async fn submit(&self, conversation: ConversationId, draft: SubmissionDraft) -> Result<Answer, LineError> {
        self.resume();
        let admission = self
            .session()
            .commit(async |tx| {
                if tx.conversation(conversation).await?.is_none() {
                    return Ok::<_, CommitError>(None);
                }
                Ok(Some(admit(tx, conversation, draft).await?))
            })
            .await?;
        Ok(match admission {
            None => not_found("conversation", conversation.get()),
            Some(Admission::Admitted(record) | Admission::Existing(record)) => {
                // An admission may settle in its own commit: what is stored is what counts.
                Answer::Value(json(Some(
                    &self.session().store().submission(record.id).await?.unwrap_or_else(|| SubmissionRecord::clone(&record)),
                )))
            }
            Some(Admission::Busy) => Answer::Failed(HostFailure::Busy(conversation)),
            Some(Admission::Full) => Answer::Failed(HostFailure::InboxFull(conversation)),
            Some(Admission::OtherType) => {
                Answer::Failed(HostFailure::Invalid("the request ID names a submission of the other type".to_owned()))
            }
        })
    }

    async fn configure(&self, conversation: ConversationId, config: ConversationConfig) -> Result<Answer, LineError> {
        let found = self
            .session()
            .commit(async |tx| {
                if tx.conversation(conversation).await?.is_none() {
                    return Ok::<_, CommitError>(false);
                }
                tx.doc(&CONFIG, conversation).await?.edit(|stored| *stored = config)?;
                Ok(true)
            })
            .await?;
        Ok(if found { Answer::Done } else { not_found("conversation", conversation.get()) })
    }

    /// `aborted`, `already_placed` or `settled` (section 6).
    async fn withdraw(&self, id: SubmissionId) -> Result<Answer, LineError> {
        let word = self
            .session()
            .commit(async |tx| {
                let Some(record) = tx.submission(id).await? else { return Ok::<_, CommitError>(None) };
                if record.settled() {
                    return Ok(Some("settled"));
                }
                let withdrawn = withdraw(tx, record.conversation_id, id).await?;
                Ok(Some(if withdrawn { "aborted" } else { placed_word(&record) }))
            })
            .await?;
        Ok(word.map_or_else(|| not_found("submission", id.get()), |word| Answer::Value(Json::from(word))))
    }
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
