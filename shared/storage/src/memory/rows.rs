//! The rows of one session.
//!
//! Everything is a persistent map: a clone costs a few counters and shares all nodes. That gives three things at once. A batch is applied
//! to a clone that takes the place of the rows when the whole batch was accepted, so that nothing of a refused one stays. A read takes a
//! clone and goes on without the lock. An export is a clone. The price is a copied path of nodes for each map that a batch touches, which
//! an undo log would not have; but an undo log has to be right for every write, and readers and exports would still need the lock.

use std::ops::Bound::{Excluded, Included};
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use picofleet_session::storage::{Head, OutboxRow, RequestRow};
use picofleet_session::{
    ConversationId, ConversationRecord, DocumentAddress, DocumentContent, DocumentId, DocumentRecord, DocumentScope, EntryRecord,
    InvocationRow, Millis, Point, Seq, SubmissionId, SubmissionRecord, SubmissionState, TaskId, TaskRecord,
};

use crate::rules::Replay;
use crate::tables::{DocumentState, Found, SubmissionIdentity, Tables, TaskIdentity};

/// Which ids belong to a number: conversation to entries and the like.
pub(crate) type Index = OrdSet<(i64, i64)>;

/// The ids of `key` in an index that are above `after`, ascending.
pub(crate) fn under(index: &Index, key: i64, after: i64) -> impl DoubleEndedIterator<Item = i64> + '_ {
    index.range((Excluded((key, after)), Included((key, i64::MAX)))).map(|(_, id)| *id)
}

/// The values of a map whose keys are above `after`, ascending.
pub(crate) fn above<V>(map: &OrdMap<i64, V>, after: i64) -> impl Iterator<Item = (i64, &V)> + '_ {
    map.range((Excluded(after), Included(i64::MAX))).map(|(id, value)| (*id, value))
}

/// The rows of one session and their indexes. Ids are plain numbers here, so that ranges have bounds.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    pub(crate) head: Head,
    pub(crate) commits: OrdMap<i64, Head>,
    pub(crate) conversations: OrdMap<i64, ConversationRecord>,
    /// Conversations by the conversation of their owner.
    pub(crate) by_owner_conversation: Index,
    /// Conversations by the task that owns them.
    pub(crate) by_owner_task: Index,
    pub(crate) entries: OrdMap<i64, Arc<(Seq, EntryRecord)>>,
    pub(crate) by_conversation: Index,
    /// The entries with a head, by conversation.
    pub(crate) heads: Index,
    pub(crate) tasks: OrdMap<i64, Arc<TaskRecord>>,
    pub(crate) tasks_by_conversation: Index,
    pub(crate) tasks_by_owner: Index,
    pub(crate) live_tasks: OrdSet<i64>,
    pub(crate) invocations: OrdMap<i64, InvocationRow>,
    pub(crate) submissions: OrdMap<i64, Arc<SubmissionRecord>>,
    pub(crate) submissions_by_conversation: Index,
    pub(crate) unsettled: OrdSet<i64>,
    pub(crate) request_ids: OrdMap<(i64, Arc<str>), SubmissionId>,
    pub(crate) documents: OrdMap<i64, Arc<DocumentRecord>>,
    pub(crate) by_scope: OrdSet<(DocumentScope, i64)>,
    pub(crate) by_address: OrdSet<(Arc<DocumentAddress>, i64)>,
    pub(crate) current: OrdMap<Arc<DocumentAddress>, DocumentId>,
    pub(crate) contents: OrdMap<(i64, i64), DocumentContent>,
    /// Documents of which content became unnecessary since the last maintenance.
    pub(crate) reclaimable: OrdSet<i64>,
    pub(crate) requests: OrdMap<String, RequestRow>,
    pub(crate) requests_by_time: OrdSet<(Millis, String)>,
    pub(crate) outbox: OrdMap<i64, OutboxRow>,
    pub(crate) wake: Option<Millis>,
}

impl Rows {
    /// The rows of a session without records.
    pub(crate) fn new(head: Head) -> Self {
        Self {
            head,
            commits: OrdMap::unit(head.seq.0, head),
            conversations: OrdMap::new(),
            by_owner_conversation: Index::new(),
            by_owner_task: Index::new(),
            entries: OrdMap::new(),
            by_conversation: Index::new(),
            heads: Index::new(),
            tasks: OrdMap::new(),
            tasks_by_conversation: Index::new(),
            tasks_by_owner: Index::new(),
            live_tasks: OrdSet::new(),
            invocations: OrdMap::new(),
            submissions: OrdMap::new(),
            submissions_by_conversation: Index::new(),
            unsettled: OrdSet::new(),
            request_ids: OrdMap::new(),
            documents: OrdMap::new(),
            by_scope: OrdSet::new(),
            by_address: OrdSet::new(),
            current: OrdMap::new(),
            contents: OrdMap::new(),
            reclaimable: OrdSet::new(),
            requests: OrdMap::new(),
            requests_by_time: OrdSet::new(),
            outbox: OrdMap::new(),
            wake: None,
        }
    }

    /// Replaces the newest commit, for a count of opens that starts again.
    pub(crate) fn set_head(&mut self, head: Head) {
        self.head = head;
        self.commits.insert(head.seq.0, head);
    }

    /// The contents of a document up to `at`, newest first.
    pub(crate) fn contents_to(&self, id: DocumentId, at: Point) -> impl Iterator<Item = &DocumentContent> + '_ {
        let newest = match at {
            Point::Current => i64::MAX,
            Point::At(seq) => seq.0,
        };
        let range = (Included((id.get(), i64::MIN)), Included((id.get(), newest)));
        self.contents.range(range).rev().map(|(_, content)| content)
    }

    /// What a document is replayed from.
    pub(crate) fn replay_to(&self, id: DocumentId, at: Point) -> Replay {
        let contents = self.contents_to(id, at).map(|content| Ok::<_, std::convert::Infallible>(content.clone()));
        Replay::newest_first(contents).unwrap_or_default()
    }

    fn store_task(&mut self, record: &TaskRecord) {
        let id = record.id.get();
        if record.terminal() {
            self.live_tasks.remove(&id);
        } else {
            self.live_tasks.insert(id);
        }
        self.tasks.insert(id, Arc::new(record.clone()));
    }

    fn store_submission(&mut self, record: &SubmissionRecord) {
        let id = record.id.get();
        if record.settled() {
            self.unsettled.remove(&id);
        } else {
            self.unsettled.insert(id);
        }
        self.submissions.insert(id, Arc::new(record.clone()));
    }
}

impl Tables for Rows {
    fn owner(&mut self, id: i64) -> Found<Option<&'static str>> {
        let owners = [
            (self.conversations.contains_key(&id), "conversation"),
            (self.entries.contains_key(&id), "entry"),
            (self.tasks.contains_key(&id), "task"),
            (self.submissions.contains_key(&id), "submission"),
            (self.documents.contains_key(&id), "document"),
        ];
        Ok(owners.into_iter().find(|(has, _)| *has).map(|(_, owner)| owner))
    }

    fn task(&mut self, id: TaskId) -> Found<Option<TaskIdentity>> {
        Ok(self.tasks.get(&id.get()).map(|task| TaskIdentity {
            conversation_id: task.conversation_id,
            owner: task.owner,
            kind: task.kind.clone(),
        }))
    }

    fn submission(&mut self, id: SubmissionId) -> Found<Option<SubmissionIdentity>> {
        Ok(self.submissions.get(&id.get()).map(|submission| SubmissionIdentity {
            conversation_id: submission.conversation_id,
            request_id: submission.request_id.clone(),
            input: matches!(submission.state, SubmissionState::Input(_)),
        }))
    }

    fn request_owner(&mut self, conversation: ConversationId, request_id: &str) -> Found<Option<SubmissionId>> {
        Ok(self.request_ids.get(&(conversation.get(), Arc::from(request_id))).copied())
    }

    fn document(&mut self, id: DocumentId) -> Found<Option<DocumentState>> {
        let version = self.contents_to(id, Point::Current).next().map(DocumentContent::version);
        Ok(self.documents.get(&id.get()).map(|record| DocumentState { record: (**record).clone(), version }))
    }

    fn current(&mut self, address: &DocumentAddress) -> Found<Option<DocumentId>> {
        Ok(self.current.get(address).copied())
    }

    fn replay(&mut self, id: DocumentId, at: Point) -> Found<Replay> {
        Ok(self.replay_to(id, at))
    }

    fn put_commit(&mut self, head: &Head) -> Found<()> {
        self.set_head(*head);
        Ok(())
    }

    fn put_conversation(&mut self, record: &ConversationRecord) -> Found<()> {
        let id = record.id.get();
        if let Some(owner) = record.owner {
            self.by_owner_conversation.insert((owner.conversation_id.get(), id));
            self.by_owner_task.insert((owner.task_id.get(), id));
        }
        self.conversations.insert(id, record.clone());
        Ok(())
    }

    fn put_entry(&mut self, seq: Seq, entry: &EntryRecord) -> Found<()> {
        let key = (entry.conversation_id.get(), entry.id.get());
        self.by_conversation.insert(key);
        if entry.head.is_some() {
            self.heads.insert(key);
        }
        self.entries.insert(entry.id.get(), Arc::new((seq, entry.clone())));
        Ok(())
    }

    fn insert_task(&mut self, record: &TaskRecord) -> Found<()> {
        self.tasks_by_conversation.insert((record.conversation_id.get(), record.id.get()));
        if let Some(owner) = record.owner {
            self.tasks_by_owner.insert((owner.get(), record.id.get()));
        }
        self.store_task(record);
        Ok(())
    }

    fn replace_task(&mut self, record: &TaskRecord) -> Found<()> {
        self.store_task(record);
        Ok(())
    }

    fn put_invocation(&mut self, row: &InvocationRow) -> Found<()> {
        self.invocations.insert(row.task_id.get(), row.clone());
        Ok(())
    }

    fn insert_submission(&mut self, record: &SubmissionRecord) -> Found<()> {
        let conversation = record.conversation_id.get();
        self.submissions_by_conversation.insert((conversation, record.id.get()));
        if let Some(request_id) = &record.request_id {
            self.request_ids.insert((conversation, Arc::from(request_id.as_str())), record.id);
        }
        self.store_submission(record);
        Ok(())
    }

    fn replace_submission(&mut self, record: &SubmissionRecord) -> Found<()> {
        self.store_submission(record);
        Ok(())
    }

    fn put_document(&mut self, record: &DocumentRecord) -> Found<()> {
        let id = record.create.id;
        let address = Arc::new(record.create.address());
        self.by_scope.insert((address.scope, id.get()));
        self.by_address.insert((Arc::clone(&address), id.get()));
        if record.retired_at.is_none() {
            self.current.insert(address, id);
        }
        self.documents.insert(id.get(), Arc::new(record.clone()));
        Ok(())
    }

    fn put_content(&mut self, record: &DocumentRecord, seq: Seq, content: &DocumentContent) -> Found<()> {
        let id = record.create.id.get();
        if matches!(content, DocumentContent::Base { .. }) && !record.create.placement.rewindable() && record.created_at < seq {
            self.reclaimable.insert(id);
        }
        self.contents.insert((id, seq.0), content.clone());
        Ok(())
    }

    fn retire(&mut self, record: &DocumentRecord, seq: Seq) -> Found<()> {
        let id = record.create.id;
        self.current.remove(&record.create.address());
        if !record.create.placement.rewindable() {
            self.reclaimable.insert(id.get());
        }
        self.documents.insert(id.get(), Arc::new(DocumentRecord { retired_at: Some(seq), ..record.clone() }));
        Ok(())
    }

    fn put_request(&mut self, row: &RequestRow) -> Found<()> {
        if let Some(old) = self.requests.insert(row.key.clone(), row.clone()) {
            self.requests_by_time.remove(&(old.at, old.key));
        }
        self.requests_by_time.insert((row.at, row.key.clone()));
        Ok(())
    }

    fn put_outbox(&mut self, row: &OutboxRow) -> Found<()> {
        self.outbox.insert(row.submission_id.get(), row.clone());
        Ok(())
    }

    fn put_wake(&mut self, at: Option<Millis>) -> Found<()> {
        self.wake = at;
        Ok(())
    }
}
