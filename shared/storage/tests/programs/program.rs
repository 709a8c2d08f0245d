//! Programs in small numbers, so that they shrink, and what they become on a session.

use std::sync::Arc;

use picofleet_delta::{Json, Op, Segment};
use picofleet_session::storage::{Commit, DocumentCopy, Head, OutboxRow, RequestRow, Write};
use picofleet_session::{
    CommitToken, ConversationOwner, ConversationPolicy, ConversationRecord, DocumentContent, DocumentCreate, EntryRecord, ForkPoint,
    InputState, InvocationId, InvocationRow, JoinPolicy, LatestFork, Millis, Placement, Point, RewindableFork, Seq, SubmissionRecord,
    SubmissionState, TaskOutcome, TaskRecord, TaskState, WriteState,
};
use picofleet_storage::conformance::NOW;
use picofleet_storage::conformance::records::{cid, did, eid, entry_record, sid, task, tid};
use proptest::prelude::*;

/// The request keys and request ids that programs use.
pub(crate) const KEYS: [&str; 3] = ["a", "b", "__proto__"];

/// What is done, step by step.
#[derive(Clone, Debug)]
pub(crate) struct Program(pub(crate) Vec<Step>);

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Batch { expect: Expect, commits: Vec<Vec<Command>> },
    Reopen,
    Maintain,
}

/// Which predecessor a batch names.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Expect {
    Right,
    Earlier,
    OtherToken,
}

impl Expect {
    pub(crate) fn on(self, head: &Head) -> (Seq, CommitToken) {
        match self {
            Self::Right => (head.seq, head.token),
            Self::Earlier => (Seq(head.seq.0 - 1), head.token),
            Self::OtherToken => (head.seq, CommitToken::from_bits(1)),
        }
    }
}

/// The id of a record: mostly a new one, sometimes one that is taken or was never minted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum New {
    Mint,
    Any(u8),
}

#[derive(Clone, Debug)]
pub(crate) enum Command {
    Conversation { id: New, parent: Option<(u8, u8)>, owner: Option<u8> },
    Entry { id: New, conversation: u8, head: Option<u8> },
    Task { id: Option<u8>, any: New, conversation: u8, kind: u8, owned: bool, state: u8, flags: (bool, bool) },
    Invocation { task: u8, number: u32 },
    Submission { id: Option<u8>, any: New, conversation: u8, key: Option<u8>, state: u8 },
    Create { id: New, what: Document, object: bool },
    Copy { id: New, what: Document, source: u8, like: bool, at: Option<u8> },
    Change { id: u8, base: bool, version: u32, value: u8 },
    Retire { id: u8 },
    Request { key: u8 },
    Outbox { submission: u8 },
    Wake { at: Option<u8> },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Document {
    kind: u8,
    key: Option<u8>,
    place: u8,
}

pub(crate) fn program() -> impl Strategy<Value = Program> {
    let expect = prop_oneof![40 => Just(Expect::Right), 1 => Just(Expect::Earlier), 1 => Just(Expect::OtherToken)];
    let commits = prop::collection::vec(prop::collection::vec(command(), 0..5), 1..4);
    let batch = (expect, commits).prop_map(|(expect, commits)| Step::Batch { expect, commits });
    let step = prop_oneof![12 => batch, 1 => Just(Step::Reopen), 1 => Just(Step::Maintain)];
    prop::collection::vec(step, 1..20).prop_map(Program)
}

fn new() -> impl Strategy<Value = New> {
    prop_oneof![60 => Just(New::Mint), 1 => any::<u8>().prop_map(New::Any)]
}

fn document() -> impl Strategy<Value = Document> {
    (0..2u8, prop::option::weighted(0.3, 0..2u8), 0..6u8).prop_map(|(kind, key, place)| Document { kind, key, place })
}

fn command() -> impl Strategy<Value = Command> {
    let small = || any::<u8>();
    let stored = || prop::option::weighted(0.6, any::<u8>());
    prop_oneof![
        2 => (new(), prop::option::of((small(), small())), prop::option::of(small()))
            .prop_map(|(id, parent, owner)| Command::Conversation { id, parent, owner }),
        4 => (new(), small(), prop::option::weighted(0.3, small())).prop_map(|(id, conversation, head)| Command::Entry { id, conversation, head }),
        3 => (stored(), new(), 0..4u8, 0..8u8, any::<bool>(), small(), any::<(bool, bool)>()).prop_map(
            |(id, any, conversation, kind, owned, state, flags)| Command::Task { id, any, conversation, kind, owned, state, flags }
        ),
        1 => (small(), 0..3u32).prop_map(|(task, number)| Command::Invocation { task, number }),
        3 => (stored(), new(), 0..4u8, prop::option::weighted(0.3, 0..3u8), small())
            .prop_map(|(id, any, conversation, key, state)| Command::Submission { id, any, conversation, key, state }),
        3 => (new(), document(), prop::bool::weighted(0.98)).prop_map(|(id, what, object)| Command::Create { id, what, object }),
        2 => (new(), document(), small(), prop::bool::weighted(0.8), prop::option::of(small()))
            .prop_map(|(id, what, source, like, at)| Command::Copy { id, what, source, like, at }),
        5 => (small(), prop::bool::weighted(0.3), 1..9u32, small())
            .prop_map(|(id, base, version, value)| Command::Change { id, base, version: version.saturating_sub(6).max(1), value }),
        1 => small().prop_map(|id| Command::Retire { id }),
        1 => (0..3u8).prop_map(|key| Command::Request { key }),
        1 => small().prop_map(|submission| Command::Outbox { submission }),
        1 => prop::option::of(small()).prop_map(|at| Command::Wake { at }),
    ]
}

/// What a program knows of the session that it works on.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    next_id: i64,
    conversations: Vec<i64>,
    entries: Vec<i64>,
    tasks: Vec<TaskRecord>,
    submissions: Vec<SubmissionRecord>,
    documents: Vec<DocumentCreate>,
    tokens: u128,
}

fn pick<T>(items: &[T], choice: u8) -> Option<&T> {
    items.get(usize::from(choice) % items.len().max(1))
}

impl Known {
    pub(crate) fn new(next_id: i64) -> Self {
        Self { next_id, conversations: vec![1], entries: vec![], tasks: vec![], submissions: vec![], documents: vec![], tokens: 100 }
    }

    /// The commit that makes the root conversation.
    pub(crate) fn root(&self) -> Commit {
        let root = ConversationRecord { id: cid(1), parent: None, owner: None };
        Commit { token: CommitToken::from_bits(7), at: NOW, next_id: self.next_id, writes: vec![Write::Conversation(root)] }
    }

    /// The commits, and what is known once they landed.
    pub(crate) fn resolve(&mut self, commits: &[Vec<Command>], head: Seq) -> (Vec<Commit>, Known) {
        self.tokens += 100;
        let mut after = self.clone();
        let commits = commits.iter().map(|commands| after.commit(commands, head)).collect();
        (commits, after)
    }

    fn commit(&mut self, commands: &[Command], head: Seq) -> Commit {
        // References go to what was there before the commit, as a session would make them.
        let before = self.clone();
        let writes = commands.iter().filter_map(|command| self.write(&before, command, head)).collect();
        self.tokens += 1;
        Commit { token: CommitToken::from_bits(self.tokens), at: NOW, next_id: self.next_id, writes }
    }

    fn id(&mut self, id: New) -> i64 {
        match id {
            New::Mint => {
                self.next_id += 1;
                self.next_id - 1
            }
            New::Any(choice) => 1 + i64::from(choice) % (self.next_id + 2),
        }
    }

    fn write(&mut self, before: &Known, command: &Command, head: Seq) -> Option<Write> {
        Some(match command {
            Command::Conversation { id, parent, owner } => self.conversation(before, *id, *parent, *owner),
            Command::Entry { id, conversation, head } => {
                let id = self.id(*id);
                self.entries.push(id);
                let head = head.map(|choice| eid(pick(&before.entries, choice).copied().unwrap_or(id)));
                let data = (id % 2 == 0).then(|| Json::from(id));
                Write::Entry(Arc::new(EntryRecord { head, data, ..entry_record(id, *pick(&before.conversations, *conversation)?) }))
            }
            Command::Task { .. } => self.task(before, command)?,
            Command::Invocation { task, number } => {
                let id = if *task == 255 { self.next_id + 1 } else { pick(&self.tasks, *task)?.id.get() };
                let invocation = InvocationId::from_bits(u128::from(*task));
                let answer = (*number > 0).then(Json::null);
                Write::Invocation(Box::new(InvocationRow { task_id: tid(id), invocation, number: *number, digest: None, answer }))
            }
            Command::Submission { .. } => self.submission(before, command)?,
            Command::Create { .. } | Command::Copy { .. } | Command::Change { .. } | Command::Retire { .. } => {
                return self.document_write(before, command, head);
            }
            Command::Request { key } => {
                let key = KEYS[usize::from(*key)].to_owned();
                let answer = Json::from(self.next_id);
                Write::Request(Box::new(RequestRow { key, digest: "d".to_owned(), answer, at: NOW }))
            }
            Command::Outbox { submission } => {
                let submission_id = pick(&before.submissions, *submission)?.id;
                Write::Outbox(Box::new(OutboxRow { submission_id, body: Json::from(self.next_id) }))
            }
            Command::Wake { at } => Write::Wake(at.map(|at| Millis(i64::from(at)))),
        })
    }

    /// A new task, or the replacement of one that is there.
    fn task(&mut self, before: &Known, command: &Command) -> Option<Write> {
        let Command::Task { id, any, conversation, kind, owned, state, flags } = command else { return None };
        let stored = id.and_then(|choice| pick(&before.tasks, choice)).cloned();
        let fresh = |id| TaskRecord {
            conversation_id: cid(pick(&before.conversations, *conversation).copied().unwrap_or(1)),
            kind: format!("k{}", kind % 2),
            owner: owned.then(|| before.tasks.first().map(|owner| owner.id)).flatten(),
            ..task(id, task_state(*state))
        };
        let mut record = match stored {
            // Sometimes a replacement changes what never changes.
            Some(stored) if *kind > 0 => TaskRecord { state: task_state(*state), version: stored.version + 1, ..stored },
            Some(stored) => fresh(stored.id.get()),
            None => fresh(self.id(*any)),
        };
        (record.background, record.abort_requested) = *flags;
        self.tasks.push(record.clone());
        Some(Write::Task(record.into()))
    }

    /// A new submission, or the replacement of one that is there.
    fn submission(&mut self, before: &Known, command: &Command) -> Option<Write> {
        let Command::Submission { id, any, conversation, key, state } = command else { return None };
        let stored = id.and_then(|choice| pick(&before.submissions, choice)).cloned();
        let record = match stored {
            Some(stored) if *state > 40 => SubmissionRecord { state: submission_state(*state), ..stored },
            stored => SubmissionRecord {
                id: stored.map_or_else(|| sid(self.id(*any)), |stored| stored.id),
                conversation_id: cid(pick(&before.conversations, *conversation).copied().unwrap_or(1)),
                request_id: key.map(|key| KEYS[usize::from(key)].to_owned()),
                state: submission_state(*state),
            },
        };
        self.submissions.push(record.clone());
        Some(Write::Submission(record.into()))
    }

    fn conversation(&mut self, before: &Known, id: New, parent: Option<(u8, u8)>, owner: Option<u8>) -> Write {
        let id = self.id(id);
        let parent = parent.and_then(|(parent, at)| {
            Some(ForkPoint { conversation_id: cid(*pick(&before.conversations, parent)?), at: eid(*pick(&before.entries, at)?) })
        });
        let owner = owner.and_then(|owner| pick(&before.tasks, owner));
        let owner = owner.map(|task| ConversationOwner { conversation_id: task.conversation_id, task_id: task.id });
        self.conversations.push(id);
        Write::Conversation(ConversationRecord { id: cid(id), parent, owner })
    }

    fn document_write(&mut self, before: &Known, command: &Command, head: Seq) -> Option<Write> {
        Some(match command {
            Command::Create { id, what, object } => {
                let create = self.create(before, *id, *what);
                let value = if *object { Json::object([("n", create.id.get())]) } else { Json::from(3) };
                Write::DocumentCreate { create, version: 1, value }
            }
            Command::Copy { id, what, source, like, at } => {
                let source = pick(&before.documents, *source)?.clone();
                let mut create = self.create(before, *id, *what);
                if *like {
                    create = DocumentCreate { placement: moved(source.placement, create.placement), id: create.id, ..source.clone() };
                    self.documents.pop();
                    self.documents.push(create.clone());
                }
                let at = at.map_or(Point::Current, |at| Point::At(Seq(i64::from(at) % (head.0 + 1))));
                Write::DocumentCopy(DocumentCopy { create, source: source.id, at })
            }
            Command::Change { id, base, version, value } => {
                let known = pick(&before.documents, *id)?;
                // One that is not there, now and then.
                let id = if *value == 255 { did(i64::from(*id) + 1) } else { known.id };
                let content = if *base {
                    DocumentContent::Base { version: *version, value: Json::object([("b", i64::from(*value))]) }
                } else {
                    let key = Segment::from(["x", "y"][usize::from(*value % 2)]);
                    let op = if *value < 20 {
                        Op::Replace(Json::object([("r", i64::from(*value))]))
                    } else {
                        Op::Set(vec![key], Json::from(*value))
                    };
                    DocumentContent::Delta { version: *version, ops: vec![op].into() }
                };
                Write::DocumentChange { id, content }
            }
            Command::Retire { id } => Write::DocumentRetire(pick(if *id < 40 { &self.documents } else { &before.documents }, *id)?.id),
            _ => return None,
        })
    }

    fn create(&mut self, before: &Known, id: New, what: Document) -> DocumentCreate {
        let conversation = cid(pick(&before.conversations, what.place).copied().unwrap_or(1));
        let placement = match what.place {
            0 => Placement::Session,
            1 => before.tasks.first().map_or(Placement::Session, |task| Placement::Task { id: task.id }),
            2 => Placement::Conversation { id: conversation, policy: ConversationPolicy::Latest(LatestFork::Current) },
            _ => Placement::Conversation { id: conversation, policy: ConversationPolicy::Rewindable(RewindableFork::AsOf) },
        };
        let key = what.key.map(|key| KEYS[usize::from(key)].to_owned());
        let create = DocumentCreate { id: did(self.id(id)), kind: format!("d{}", what.kind), key, placement };
        self.documents.push(create.clone());
        create
    }
}

/// The source's placement in another conversation.
fn moved(source: Placement, to: Placement) -> Placement {
    match (source, to) {
        (Placement::Conversation { policy, .. }, Placement::Conversation { id, .. }) => Placement::Conversation { id, policy },
        (source, _) => source,
    }
}

fn task_state(choice: u8) -> TaskState {
    let checkpoint = Json::object([("phase", i64::from(choice))]);
    match choice % 6 {
        0 => TaskState::Pending { checkpoint },
        1 => TaskState::Running { checkpoint },
        2 => TaskState::Waiting { checkpoint, on: vec![tid(1)], policy: JoinPolicy::AllSettled },
        3 => TaskState::Sleeping { checkpoint, until: Millis(i64::from(choice)) },
        4 => TaskState::Completing { outcome: TaskOutcome::Orphaned { reason: "r".to_owned() } },
        _ => TaskState::Terminal { outcome: TaskOutcome::Completed { result: checkpoint } },
    }
}

fn submission_state(choice: u8) -> SubmissionState {
    let reason = || "r".to_owned();
    match choice % 9 {
        0..=2 => SubmissionState::Input(InputState::Queued),
        3 => SubmissionState::Input(InputState::Placed { entry: eid(2) }),
        4 => SubmissionState::Input(InputState::Done { entry: eid(2), answer: eid(3) }),
        5 => SubmissionState::Input(InputState::Unanswered { entry: None, reason: reason(), detail: Some(Json::null()) }),
        6 => SubmissionState::Write(WriteState::Queued),
        7 => SubmissionState::Write(WriteState::Done { entry: eid(2) }),
        _ => SubmissionState::Write(WriteState::Unanswered { reason: reason(), detail: None }),
    }
}
