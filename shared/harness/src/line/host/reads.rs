//! Reads of committed state (section 2.2).

use picofleet_session::storage::{ConversationQuery, PAGE_MAX, Page};
use picofleet_session::{ConversationId, DocumentAddress, DocumentScope, Json, Point, StoredValue};

use super::{json, not_found};
use crate::config::CONFIG;
use crate::inbox::INBOX;
use crate::line::{LineError, SessionLine};
use crate::live::LIVE;
use crate::usage::{USAGE, UsageState};
use crate::wire::{Answer, Paged, Read};

impl SessionLine {
    pub(in crate::line) async fn read(&self, read: Read) -> Result<Answer, LineError> {
        let store = self.session().store();
        let value = match read {
            Read::Task(id) => json(self.task(id).await?.as_ref()),
            Read::Entry(id) => json(store.entry(None, id).await?.map(|(entry, _)| entry).as_ref()),
            Read::Call { answer, call } => json(self.call_of(answer, &call).await?.as_ref()),
            Read::Submission(id) => json(self.submission(id).await?.as_ref()),
            Read::Context { conversation, at } => {
                return Ok(Answer::Transcript(Box::new(self.session().transcript(conversation, at).await?)));
            }
            Read::Entries { conversation, min, max, limit } => {
                let page = store.scan_entries(Read::entries(conversation, min, max), limit, None).await?;
                json(Some(&page.items))
            }
            Read::ConversationDocument { conversation, kind } => self.document(conversation, &kind).await?,
            Read::Conversation(id) => json(store.conversation(id).await?.as_ref()),
            Read::Conversations { owner_conversation, owner_task, limit, cursor } => {
                let query = ConversationQuery { owner_conversation_id: owner_conversation, owner_task_id: owner_task };
                paged(store.scan_conversations(query, limit.clamp(1, PAGE_MAX), cursor).await?)
            }
            Read::EntryPage { conversation, min, max, limit, cursor } => {
                if store.conversation(conversation).await?.is_none() {
                    return Ok(not_found("conversation", conversation.get()));
                }
                paged(store.scan_entries(Read::entries(conversation, min, max), limit.clamp(1, PAGE_MAX), cursor).await?)
            }
            Read::ContextView { conversation, at } => {
                if store.conversation(conversation).await?.is_none() {
                    return Ok(not_found("conversation", conversation.get()));
                }
                return Ok(Answer::Transcript(Box::new(self.session().transcript(conversation, at).await?)));
            }
            Read::VisibleEntry { conversation, entry } => {
                json(store.entry(Some(conversation), entry).await?.map(|(entry, _)| entry).as_ref())
            }
            Read::Document(address) => json(self.stored(address, Point::Current).await?.as_ref()),
            Read::DocumentAsOf { address, conversation, at } => {
                let Some((entry, seq)) = store.entry(Some(conversation), at).await? else {
                    return Ok(not_found("visible entry", at.get()));
                };
                let address = DocumentAddress { scope: DocumentScope::Conversation { id: entry.conversation_id }, ..address };
                json(self.stored(address, Point::At(seq)).await?.as_ref())
            }
            Read::Owners(conversation) => json(Some(&self.owners(conversation).await?)),
            Read::SessionUsage => json(Some(&self.session_usage().await?)),
        };
        Ok(Answer::Value(value))
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

    async fn stored(&self, address: DocumentAddress, at: Point) -> Result<Option<StoredValue>, LineError> {
        let store = self.session().store();
        let Some(record) = store.find_document(address, at).await? else { return Ok(None) };
        // One that was retired meanwhile has no value.
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

    /// The sum over every conversation (section 8.6). Nothing stores it.
    async fn session_usage(&self) -> Result<UsageState, LineError> {
        let mut sum = UsageState::default();
        let mut cursor = None;
        loop {
            let page = self.session().store().scan_conversations(ConversationQuery::default(), PAGE_MAX, cursor).await?;
            for conversation in page.items {
                if let Some(usage) = self.session().snapshot(&USAGE, conversation.id).await? {
                    sum.add(&usage);
                }
            }
            cursor = page.next;
            if cursor.is_none() {
                return Ok(sum);
            }
        }
    }
}

fn paged<T: serde::Serialize>(page: Page<T>) -> Json {
    json(Some(&Paged { items: page.items, next: page.next }))
}
