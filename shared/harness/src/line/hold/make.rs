//! Commits that make a conversation before their closure runs: the initialization of sections 2.2 and 7.1, over a transport.

use std::collections::HashMap;

use picofleet_session::storage::{DocumentCopy, StorageError};
use picofleet_session::{
    CommitError, ConversationRecord, DocumentAddress, DocumentRecord, ROOT_CONVERSATION_ID, StagedDocuments, StoredDocument, Tx,
};

use super::super::SessionLine;
use super::super::host::conversations::{New, parsed};
use super::super::host::json;
use super::super::host::keyed::{Key, Refused};
use super::super::say::Rollback;
use crate::config::CONFIG;
use crate::wire::{Answer, HostCall, HostFailure};

/// A conversation that the open commit has made, and what its end needs.
pub(super) struct Made {
    pub(super) record: ConversationRecord,
    key: Option<Key>,
    /// The tools that are active before the closure changes anything, and those that may be activated.
    active: Vec<String>,
    registered: Vec<String>,
}

impl From<Refused> for Rollback {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Failure(failure) => Self::Answered(Answer::Failed(failure)),
            Refused::Commit(error) => Self::Failed(error),
        }
    }
}

fn failed(failure: HostFailure) -> Rollback {
    Rollback::Answered(Answer::Failed(failure))
}

impl SessionLine {
    /// Makes the conversation that a commit begins with, its setups included. One that is there already is the answer.
    pub(super) async fn make(&self, tx: &Tx, call: HostCall) -> Result<Made, Rollback> {
        let (key, call) = Key::of(call).map_err(failed)?;
        let key = key.map(Key::with_closure);
        if let Some(key) = &key
            && let Some(answer) = self.answered(key).await?
        {
            return Err(Rollback::Answered(answer));
        }
        // One snapshot for the whole commit (section 7.1): what is registered meanwhile counts for the next one.
        let registered = self.inner.options.catalogue.tool_names();
        let record = match call {
            HostCall::Root => self.make_root(tx).await?,
            HostCall::CreateConversation { ownership, config } => {
                let patch = parsed(config.as_ref()).map_err(failed)?;
                self.new_conversation(tx, New::Independent(ownership), patch).await?.map_err(failed)?
            }
            HostCall::Fork { conversation: parent, at, ownership, config } => {
                let patch = parsed(config.as_ref()).map_err(failed)?;
                self.new_conversation(tx, New::Fork { parent, at, ownership }, patch).await?.map_err(failed)?
            }
            _ => return Err(failed(HostFailure::Invalid("a commit begins with no call but one that makes a conversation".to_owned()))),
        };
        let active = active_tools(tx, &record).await?;
        Ok(Made { record, key, active, registered })
    }

    async fn make_root(&self, tx: &Tx) -> Result<ConversationRecord, Rollback> {
        if let Some(root) = tx.conversation(ROOT_CONVERSATION_ID).await.map_err(CommitError::from)? {
            return Err(Rollback::Answered(Answer::Value(json(Some(&root)))));
        }
        Ok(tx.create_root().await.map_err(CommitError::from)?)
    }

    /// The end behind the closure: tools that it activated are registered (section 2.2), and a repetition finds the conversation.
    pub(super) async fn finish_made(&self, tx: &Tx, made: Made) -> Result<(), Rollback> {
        let Made { record, key, active, registered } = made;
        for (index, name) in active_tools(tx, &record).await?.iter().enumerate() {
            if !active.contains(name) && !registered.contains(name) {
                let why = format!("no tool {name:?} is registered; there are: {}", registered.join(", "));
                return Err(failed(HostFailure::InvalidField { field: format!("activeTools[{index}]"), why }));
            }
        }
        if let Some(key) = key {
            tx.put_request(key.row(&Answer::Value(json(Some(&record))), tx.now())?);
        }
        Ok(())
    }
}

async fn active_tools(tx: &Tx, record: &ConversationRecord) -> Result<Vec<String>, CommitError> {
    Ok(tx.doc(&CONFIG, record.id).await?.read()?.active_tools)
}

/// What the open commit shows of the documents that it makes.
#[derive(Default)]
pub(super) struct Shown {
    created: HashMap<DocumentAddress, StoredDocument>,
    copies: HashMap<DocumentAddress, DocumentCopy>,
}

impl From<StagedDocuments> for Shown {
    fn from(staged: StagedDocuments) -> Self {
        let StagedDocuments { created, copies } = staged;
        Self {
            created: created.into_iter().map(|stored| (stored.record.create.address(), stored)).collect(),
            copies: copies.into_iter().map(|copy| (copy.create.address(), copy)).collect(),
        }
    }
}

impl Shown {
    /// The document at an address, where the commit makes it.
    pub(super) async fn find(&self, line: &SessionLine, address: &DocumentAddress) -> Result<Option<StoredDocument>, StorageError> {
        if let Some(stored) = self.created.get(address) {
            return Ok(Some(stored.clone()));
        }
        let Some(DocumentCopy { create, source, at }) = self.copies.get(address).cloned() else { return Ok(None) };
        let stored = line.session().store().document(source, at).await?;
        Ok(stored.map(|stored| StoredDocument {
            record: DocumentRecord { create, retired_at: None, ..stored.record },
            deltas_since_base: 0,
            ..stored
        }))
    }
}
