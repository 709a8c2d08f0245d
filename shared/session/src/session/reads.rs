//! Reads of committed documents and transcripts. None of them makes a document or stores a migration (section 3.3).

use std::sync::Arc;

use picofleet_delta::Json;

use super::{DocumentState, Inner, Located, Point, Publication, ReadError, Session, ValueChange, Watch, check_semantics, load};
use crate::Transcript;
use crate::definition::{Rules, typed};
use crate::storage::{EntryQuery, PAGE_MAX};
use crate::watch::Delivery;
use crate::{
    ContextView, ConversationId, ConversationRecord, DocToken, DocValue, DocumentAddress, DocumentChange, DocumentId, DocumentScope,
    EntryId, FamilyToken, Rewindable, RewindablePolicy, Scope, Violation,
};

impl Session {
    /// The committed value of a token's document; `None` where there is none.
    ///
    /// # Errors
    /// [`ReadError::Definition`] where the token or its code do not fit; [`ReadError::Nested`] inside a commit.
    pub async fn snapshot<T: DocValue, S: Scope>(&self, token: &DocToken<T, S>, at: S::At) -> Result<Option<T>, ReadError> {
        let value = self.snapshot_json(token, at).await?;
        Ok(value.map(|value| typed(token.kind, &value)).transpose()?)
    }

    /// [`Session::snapshot`] without the conversion: the shared revision, whatever its size.
    ///
    /// # Errors
    /// As [`Session::snapshot`].
    pub async fn snapshot_json<T: DocValue, S: Scope>(&self, token: &DocToken<T, S>, at: S::At) -> Result<Option<Json>, ReadError> {
        let revision = self.inner.revision(Located::singleton(token, at), |_, value| value).await?;
        Ok(revision)
    }

    /// [`Session::snapshot`] of a member of a family.
    ///
    /// # Errors
    /// As [`Session::snapshot`].
    pub async fn snapshot_in<T: DocValue, I, S: Scope>(
        &self,
        family: &FamilyToken<T, I, S>,
        at: S::At,
        key: &str,
    ) -> Result<Option<T>, ReadError> {
        let value = self.inner.revision(Located::existing_member(family, at, key), |_, value| value).await?;
        Ok(value.map(|value| typed(family.kind, &value)).transpose()?)
    }

    /// The value that a rewindable document had at the commit of a visible entry, in the conversation that owns the entry.
    ///
    /// # Errors
    /// As [`Session::snapshot`]; [`Violation::NotVisible`], [`Violation::UnknownConversation`].
    pub async fn snapshot_as_of<T: DocValue, F: RewindablePolicy>(
        &self,
        token: &DocToken<T, Rewindable<F>>,
        conversation: ConversationId,
        at: EntryId,
    ) -> Result<Option<T>, ReadError> {
        let value = self.inner.value_as_of(&Located::singleton(token, conversation), conversation, at).await?;
        Ok(value.map(|value| typed(token.kind, &value)).transpose()?)
    }

    /// [`Session::snapshot_as_of`] of a member of a family.
    ///
    /// # Errors
    /// As [`Session::snapshot_as_of`].
    pub async fn snapshot_as_of_in<T: DocValue, I, F: RewindablePolicy>(
        &self,
        family: &FamilyToken<T, I, Rewindable<F>>,
        conversation: ConversationId,
        key: &str,
        at: EntryId,
    ) -> Result<Option<T>, ReadError> {
        let value = self.inner.value_as_of(&Located::existing_member(family, conversation, key), conversation, at).await?;
        Ok(value.map(|value| typed(family.kind, &value)).transpose()?)
    }

    /// Watches a token's document: the committed value, and every later one. `None` where there is none. It stays with this incarnation.
    ///
    /// # Errors
    /// As [`Session::snapshot`].
    pub async fn watch_doc<T: DocValue, S: Scope>(&self, token: &DocToken<T, S>, at: S::At) -> Result<Option<Watch<T>>, ReadError> {
        let observers = Arc::clone(&self.inner.observers);
        self.inner.revision(Located::singleton(token, at), |id, value| observers.watch(id, value, (token.kind, token.version))).await
    }

    /// [`Session::watch_doc`] of a member of a family.
    ///
    /// # Errors
    /// As [`Session::snapshot`].
    pub async fn watch_doc_in<T: DocValue, I, S: Scope>(
        &self,
        family: &FamilyToken<T, I, S>,
        at: S::At,
        key: &str,
    ) -> Result<Option<Watch<T>>, ReadError> {
        let observers = Arc::clone(&self.inner.observers);
        self.inner
            .revision(Located::existing_member(family, at, key), |id, value| observers.watch(id, value, (family.kind, family.version)))
            .await
    }

    /// The newest committed value of a token's document, always at hand (section 9.1). `None` where there is none.
    ///
    /// # Errors
    /// As [`Session::snapshot`].
    pub async fn document_state<T: DocValue, S: Scope>(
        &self,
        token: &DocToken<T, S>,
        at: S::At,
    ) -> Result<Option<DocumentState<T>>, ReadError> {
        let observers = Arc::clone(&self.inner.observers);
        self.inner.revision(Located::singleton(token, at), |id, value| observers.state(id, value, (token.kind, token.version))).await
    }

    /// [`Session::document_state`] of a member of a family.
    ///
    /// # Errors
    /// As [`Session::snapshot`].
    pub async fn document_state_in<T: DocValue, I, S: Scope>(
        &self,
        family: &FamilyToken<T, I, S>,
        at: S::At,
        key: &str,
    ) -> Result<Option<DocumentState<T>>, ReadError> {
        let observers = Arc::clone(&self.inner.observers);
        self.inner
            .revision(Located::existing_member(family, at, key), |id, value| observers.state(id, value, (family.kind, family.version)))
            .await
    }

    /// A committed conversation.
    ///
    /// # Errors
    /// [`ReadError::Storage`], or that the session has ended.
    pub async fn conversation(&self, id: ConversationId) -> Result<Option<ConversationRecord>, ReadError> {
        self.inner.admits()?;
        self.inner.store.conversation(id).await.map_err(|error| self.inner.read_error(error.into()))
    }

    /// The active transcript of a conversation and what a model sees of it, up to a visible entry where `at` names one (section 2.1).
    ///
    /// # Errors
    /// [`Violation::UnknownConversation`], [`Violation::NotVisible`]; [`ReadError::Storage`], or that the session has ended.
    pub async fn context(&self, conversation: ConversationId, at: Option<EntryId>) -> Result<ContextView, ReadError> {
        self.transcript(conversation, at).await.map(|transcript| transcript.view())
    }

    /// What a context is derived from: the active range of a conversation, up to a visible entry where `at` names one.
    ///
    /// # Errors
    /// As [`Session::context`].
    pub async fn transcript(&self, conversation: ConversationId, at: Option<EntryId>) -> Result<Transcript, ReadError> {
        self.inner.transcript(conversation, at).await.map_err(|error| self.inner.read_error(error))
    }
}

impl Inner {
    /// The line for a read; inside a commit of the same session it would wait for ever.
    async fn reading_line(&self) -> Result<tokio::sync::OwnedMutexGuard<super::Line>, ReadError> {
        if self.is_held() {
            return Err(ReadError::Nested);
        }
        Ok(self.line().await?)
    }

    /// Hands the committed revision to `with` on the line, so that no commit can come between the revision and what `with` registers.
    async fn revision<R>(&self, located: Located<'_>, with: impl FnOnce(DocumentId, Json) -> R) -> Result<Option<R>, ReadError> {
        let mut line = self.reading_line().await?;
        let loaded = match line.take_document(&located.address, located.rules.version) {
            Some(loaded) => Some(loaded),
            None => load(&*self.store, &located).await.map_err(|error| self.read_error(error.into()))?,
        };
        let Some(loaded) = loaded else { return Ok(None) };
        let fits = check_semantics(&located.address, located.placement.semantics(), loaded.record.create.placement.semantics());
        let result = fits.map(|()| with(loaded.record.create.id, loaded.tracker.value().clone()));
        line.keep_document(loaded);
        Ok(Some(result?))
    }

    async fn value_as_of(&self, located: &Located<'_>, conversation: ConversationId, at: EntryId) -> Result<Option<Json>, ReadError> {
        self.stored_as_of(located, conversation, at).await.map_err(|error| self.read_error(error))
    }

    async fn stored_as_of(&self, located: &Located<'_>, conversation: ConversationId, at: EntryId) -> Result<Option<Json>, ReadError> {
        self.admits()?;
        let visible = self.store.entry(Some(conversation), at).await?;
        let (entry, seq) = visible.ok_or(Violation::NotVisible { conversation, entry: at })?;
        let scope = DocumentScope::Conversation { id: entry.conversation_id };
        let address = DocumentAddress { scope, ..located.address.clone() };
        let Some(record) = self.store.find_document(address, Point::At(seq)).await? else { return Ok(None) };
        check_semantics(&located.address, located.placement.semantics(), record.create.placement.semantics())?;
        let stored = self.store.document(record.create.id, Point::At(seq)).await?;
        stored.map(|stored| migrated(&located.rules, stored.value, stored.version)).transpose()
    }

    async fn transcript(&self, conversation: ConversationId, at: Option<EntryId>) -> Result<Transcript, ReadError> {
        let store = &self.store;
        // Entries are immutable: with its bounds captured on the line, the range can be read off it.
        let (newest, appended) = {
            let mut line = self.reading_line().await?;
            if let Some(kept) = line.transcripts.up_to(conversation, at) {
                return Ok(kept);
            }
            let newest = match at {
                Some(entry) => {
                    store.entry(Some(conversation), entry).await?.ok_or(Violation::NotVisible { conversation, entry })?;
                    Some(entry)
                }
                None => store.scan_entries(EntryQuery::all(conversation), 1, None).await?.items.first().map(|entry| entry.id),
            };
            (newest, line.transcripts.appended())
        };
        let transcript = match newest {
            Some(newest) => self.range(conversation, newest).await?,
            None => Transcript::default(),
        };
        // Only where nobody works on the line: the answer is there already.
        if at.is_none()
            && let Ok(mut line) = Arc::clone(&self.line).try_lock_owned()
        {
            line.transcripts.keep(conversation, transcript.clone(), appended);
        }
        Ok(transcript)
    }

    /// The active range up to an entry, from storage.
    async fn range(&self, conversation: ConversationId, newest: EntryId) -> Result<Transcript, ReadError> {
        let marker = self.store.latest_head_marker(conversation, Some(newest)).await?;
        let oldest = marker.as_ref().and_then(|marker| marker.head);
        let query = EntryQuery { conversation_id: conversation, min_entry_id: oldest, max_entry_id: Some(newest) };
        let mut range = Vec::new();
        let mut cursor = None;
        loop {
            let page = self.store.scan_entries(query, PAGE_MAX, cursor).await?;
            range.extend(page.items.into_iter().map(Arc::new));
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        range.reverse();
        Ok(Transcript { marker: marker.map(Arc::new), range })
    }
}

fn migrated(rules: &Rules, value: Json, version: u32) -> Result<Json, ReadError> {
    Ok(rules.migrate(value, version)?)
}

/// What the observers of one document get of a commit.
pub(super) fn delivery<'a>(publication: &'a Publication, document: &'a DocumentChange) -> Option<Delivery<'a>> {
    let (id, retired, seq) = (document.document.id, document.retired, publication.head.seq);
    match &document.value {
        Some(ValueChange::Changed { version, base, value, ops, migrated }) => {
            let change = Some((base, value, ops));
            Some(Delivery { document: id, change, version: *version, migrated: *migrated, retired, seq })
        }
        _ if retired => Some(Delivery { document: id, change: None, version: 0, migrated: false, retired, seq }),
        // Nobody can observe what was not there.
        _ => None,
    }
}
