//! The end of a hold: what the closure wrote is checked and becomes part of the open commit.

use picofleet_session::storage::RequestRow;
use picofleet_session::{
    CommitError, ConversationCreated as _, ConversationId, DocumentCreate, DocumentScope, InvocationRow, Json, Replayed, TaskRecord, Tx,
    Violation,
};

use super::super::row::stored;
use super::super::say::Rollback;
use super::super::{Held, SessionLine};
use super::{Ending, Landed, Lost, request_key};
use crate::config::CONFIG;
use crate::setup::begins_with;
use crate::step::PhaseEnd;
use crate::task::NextState;
use crate::wire::{Answer, HoldId, Refusal};

impl SessionLine {
    /// Replays what the closure wrote, and applies what it decided, in the open commit. `made` is the conversation that the commit began
    /// with, whose setups have run.
    pub(super) async fn land(
        &self,
        tx: &Tx,
        id: HoldId,
        by: Option<(TaskRecord, Held)>,
        made: Option<ConversationId>,
        ending: Ending,
    ) -> Result<Landed, Lost> {
        let Ending { digest, written, said } = ending;
        let replayed = tx.replay(written.writes, written.next_id).await.map_err(CommitError::from)?;
        check_built_in(tx, &replayed)?;
        // A closure of a worker has run its own setups, which may be others than this line's; what every conversation has is made sure of
        // here. A host has none: the application's run here (section 7.1).
        for conversation in tx.staged_conversations() {
            self.inner.options.setup().created(tx, &conversation).await.map_err(CommitError::from)?;
            let setups = if by.is_none() && made != Some(conversation.id) { self.inner.options.setups.as_slice() } else { &[] };
            for setup in setups {
                setup.created(tx, &conversation).await.map_err(CommitError::from)?;
            }
        }
        match (by, said) {
            (Some((record, held)), Some((number, finish))) => {
                if finish.next == NextState::Stale {
                    return Err(Rollback::Refused(Refusal::Stale).into());
                }
                let (task, invocation) = (record.id, held.invocation);
                let record = self.put_state(tx, record, finish.next, held.mode).await?;
                let next = if finish.last { Some(self.step(tx, record, &PhaseEnd::Returned, &held).await?) } else { None };
                let answer = Answer::Said { answer: Json::null(), next };
                let stored = Some(stored(&answer, held.mode)?);
                tx.put_invocation(InvocationRow { task_id: task, invocation, number, digest: Some(digest.clone()), answer: stored });
                Ok(Landed { answer, saying: Some((number, digest)) })
            }
            _ => {
                let answer = Answer::Done;
                let answered = Json::from_serde(&answer).map_err(|error| invalid(error.to_string()))?;
                tx.put_request(RequestRow { key: request_key(id), digest, answer: answered, at: tx.now() });
                Ok(Landed { answer, saying: None })
            }
        }
    }
}

fn invalid(why: String) -> CommitError {
    CommitError::Invalid(Violation::Decision { why })
}

/// Closures don't write `pi.*` documents (`protocol.md` 9). Two of the specification's own uses are let through: the configuration of a
/// conversation, which section 2.2 lets any commit change, and the initial documents that the setup of a new conversation makes.
fn check_built_in(tx: &Tx, replayed: &Replayed) -> Result<(), CommitError> {
    let conversations = tx.staged_conversations();
    let is_new = |create: &DocumentCreate| match create.placement.scope() {
        DocumentScope::Conversation { id } => conversations.iter().any(|conversation| conversation.id == id),
        DocumentScope::Session | DocumentScope::Task { .. } => false,
    };
    let built_in = |create: &DocumentCreate| create.kind.starts_with("pi.") && create.kind != CONFIG.kind;
    let initial = |create: &DocumentCreate, value: &Json| is_new(create) && begins_with(&create.kind, value) == Some(true);
    let created = replayed.created.iter().filter(|(create, value)| built_in(create) && !initial(create, value)).map(|(create, _)| create);
    let mut forbidden = created.chain(replayed.changed.iter().filter(|create| built_in(create)));
    match forbidden.next() {
        Some(create) => Err(invalid(format!("a closure can't write the built-in document {}", create.address()))),
        None => Ok(()),
    }
}
