//! Conversations that a host makes, resets and configures (section 2.2).

use picofleet_session::message::{Message, UserMessage};
use picofleet_session::{
    CommitError, ConversationId, ConversationOwnership, ConversationRecord, DraftHead, EntryDraft, EntryId, Json, Tx, Violation,
};

use super::keyed::Key;
use super::{admitted, json, not_found};
use crate::compaction::{self, CompactionReason, Input, Starter};
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
        self.keyed(key, async |tx| Ok(answer(self.new_conversation(tx, New::Independent(ownership), patch).await?))).await
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
        let new = New::Fork { parent, at, ownership };
        self.keyed(key, async |tx| Ok(answer(self.new_conversation(tx, new, patch).await?))).await
    }

    /// Makes a conversation with its setups, and changes its configuration. The check of tools is against what is active before the change.
    pub(in crate::line) async fn new_conversation(
        &self,
        tx: &Tx,
        new: New,
        patch: Option<ConfigPatch>,
    ) -> Result<Result<ConversationRecord, HostFailure>, CommitError> {
        let made = match new {
            New::Independent(ownership) => tx.create_conversation(ownership).await,
            New::Fork { parent, at, ownership } => tx.fork_conversation(parent, at, ownership).await,
        };
        let record = match made.map_err(CommitError::from) {
            Err(CommitError::Invalid(violation @ Violation::NotVisible { .. })) => {
                return Ok(Err(HostFailure::InvalidField { field: "at".to_owned(), why: violation.to_string() }));
            }
            other => other?,
        };
        if let Some(patch) = patch
            && let Err(failure) = self.change_config(tx, record.id, patch).await?
        {
            return Ok(Err(failure));
        }
        Ok(Ok(record))
    }

    /// Admits a write of `pi.reset` with its own head and the handoff as a user message (section 8.1).
    pub(super) async fn reset(&self, key: Option<Key>, conversation: ConversationId, handoff: Option<String>) -> Result<Answer, LineError> {
        let answer = self
            .keyed(key, async |tx| {
                let entry = EntryDraft::new(RESET.kind).head(DraftHead::Itself);
                let message = |text: String| Message::from(UserMessage { content: text.into(), timestamp: tx.now() });
                let entry = match handoff {
                    Some(text) => entry.model(vec![message(text)]),
                    None => entry,
                };
                admitted(tx, conversation, SubmissionDraft::write(entry)).await
            })
            .await?;
        self.submission_of(answer).await
    }

    /// Begins a manual compaction, whatever the conversation does (section 8.7). The answer is its task.
    pub(super) async fn compact(
        &self,
        key: Option<Key>,
        conversation: ConversationId,
        instructions: Option<String>,
    ) -> Result<Answer, LineError> {
        self.resume();
        self.keyed(key, async |tx| {
            if tx.conversation(conversation).await?.is_none() {
                return Ok(not_found("conversation", conversation.get()));
            }
            let input = Input { reason: CompactionReason::Manual, instructions };
            let task = compaction::start(tx, Starter::Host(conversation), input).await?;
            Ok(Answer::Value(Json::from(task.get())))
        })
        .await
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

/// A conversation that is made.
#[derive(Clone, Copy)]
pub(in crate::line) enum New {
    /// One of its own.
    Independent(ConversationOwnership),
    /// One that begins with another one's history.
    Fork { parent: ConversationId, at: EntryId, ownership: ConversationOwnership },
}

fn answer(made: Result<ConversationRecord, HostFailure>) -> Answer {
    match made {
        Ok(record) => Answer::Value(json(Some(&record))),
        Err(failure) => Answer::Failed(failure),
    }
}

pub(in crate::line) fn parsed(config: Option<&Json>) -> Result<Option<ConfigPatch>, HostFailure> {
    config.map(ConfigPatch::parse).transpose().map_err(|invalid| {
        let InvalidConfig { field, why } = invalid;
        HostFailure::InvalidField { field: if field.is_empty() { "config".to_owned() } else { format!("config.{field}") }, why }
    })
}

fn refused(invalid: InvalidConfig) -> HostFailure {
    HostFailure::InvalidField { field: invalid.field, why: invalid.why }
}
