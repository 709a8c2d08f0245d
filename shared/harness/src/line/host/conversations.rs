//! Conversations that a host makes, resets and configures (section 2.2).

use picofleet_session::message::{Message, UserMessage};
use picofleet_session::{
    CommitError, ConversationId, ConversationOwnership, ConversationRecord, DraftHead, EntryDraft, EntryId, Json, Tx, Violation,
};

use super::keyed::Key;
use super::{admitted, json, not_found};
use crate::config::{CONFIG, ConfigPatch, InvalidConfig};
use crate::kinds::RESET;
use crate::line::{LineError, SessionLine};
use crate::submission::SubmissionDraft;
use crate::wire::{Answer, HostFailure};

impl SessionLine {
    pub(super) async fn create_conversation(
        &self,
        key: Option<Key>,
        ownership: ConversationOwnership,
        config: Option<Json>,
    ) -> Result<Answer, LineError> {
        let patch = match parsed(config.as_ref()) {
            Ok(patch) => patch,
            Err(failure) => return Ok(Answer::Failed(failure)),
        };
        self.keyed(key, async |tx| {
            let record = tx.create_conversation(ownership).await?;
            self.made(tx, record, patch).await
        })
        .await
    }

    pub(super) async fn fork(
        &self,
        key: Option<Key>,
        parent: ConversationId,
        at: EntryId,
        ownership: ConversationOwnership,
        config: Option<Json>,
    ) -> Result<Answer, LineError> {
        let patch = match parsed(config.as_ref()) {
            Ok(patch) => patch,
            Err(failure) => return Ok(Answer::Failed(failure)),
        };
        self.keyed(key, async |tx| {
            let record = match tx.fork_conversation(parent, at, ownership).await.map_err(CommitError::from) {
                Err(CommitError::Invalid(violation @ Violation::NotVisible { .. })) => {
                    return Ok(Answer::Failed(HostFailure::InvalidField { field: "at".to_owned(), why: violation.to_string() }));
                }
                other => other?,
            };
            self.made(tx, record, patch).await
        })
        .await
    }

    /// What a new conversation has beyond its record. The check of tools is against what is active before the change.
    async fn made(&self, tx: &Tx, record: ConversationRecord, patch: Option<ConfigPatch>) -> Result<Answer, CommitError> {
        if let Some(patch) = patch
            && let Err(failure) = self.change_config(tx, record.id, patch).await?
        {
            return Ok(Answer::Failed(failure));
        }
        Ok(Answer::Value(json(Some(&record))))
    }

    /// Admits a write of `pi.reset` with its own head and the handoff as a user message (section 8.1).
    pub(super) async fn reset(&self, key: Option<Key>, conversation: ConversationId, handoff: Option<String>) -> Result<Answer, LineError> {
        let answer = self
            .keyed(key, async |tx| {
                let entry = EntryDraft::new(RESET.kind).head(DraftHead::Itself);
                let message = |text: String| Message::User(UserMessage { content: text.into(), timestamp: tx.now() });
                let entry = match handoff {
                    Some(text) => entry.model(vec![message(text)]),
                    None => entry,
                };
                admitted(tx, conversation, SubmissionDraft::write(entry)).await
            })
            .await?;
        self.submission_of(answer).await
    }

    pub(super) async fn patch(&self, key: Option<Key>, conversation: ConversationId, patch: &Json) -> Result<Answer, LineError> {
        let patch = match ConfigPatch::parse(patch) {
            Ok(patch) => patch,
            Err(invalid) => return Ok(Answer::Failed(refused(invalid))),
        };
        self.keyed(key, async |tx| {
            if tx.conversation(conversation).await?.is_none() {
                return Ok(not_found("conversation", conversation.get()));
            }
            Ok(match self.change_config(tx, conversation, patch).await? {
                Ok(()) => Answer::Done,
                Err(failure) => Answer::Failed(failure),
            })
        })
        .await
    }

    /// Writes a change unless it activates what is not registered.
    async fn change_config(
        &self,
        tx: &Tx,
        conversation: ConversationId,
        patch: ConfigPatch,
    ) -> Result<Result<(), HostFailure>, CommitError> {
        let config = tx.doc(&CONFIG, conversation).await?;
        let active = config.read()?.active_tools;
        if let Err(invalid) = patch.check_tools(&active, &self.inner.options.catalogue.tool_names()) {
            return Ok(Err(refused(invalid)));
        }
        config.edit(|config| patch.apply(config))?;
        Ok(Ok(()))
    }
}

fn parsed(config: Option<&Json>) -> Result<Option<ConfigPatch>, HostFailure> {
    config.map(ConfigPatch::parse).transpose().map_err(|invalid| {
        let InvalidConfig { field, why } = invalid;
        HostFailure::InvalidField { field: if field.is_empty() { "config".to_owned() } else { format!("config.{field}") }, why }
    })
}

fn refused(invalid: InvalidConfig) -> HostFailure {
    HostFailure::InvalidField { field: invalid.field, why: invalid.why }
}
