use std::collections::BTreeSet;

use picofleet_session::{CommitToken, EntryId, EntryRecord, Epoch, Json, Millis, SessionId};
use proptest::prelude::*;

use super::*;
use crate::view::tests::point;

fn conversation(n: i64) -> ConversationId {
    ConversationId::new(n).unwrap()
}

fn mount(conversation: ConversationId, at: Point, entries: &[EntryRecord]) -> Mount {
    let record = picofleet_session::ConversationRecord { id: conversation, parent: None, owner: None };
    Mount::new(at, record, entries, []).unwrap()
}

/// Storage in the plainest way, and a line's follows beside it.
struct Model {
    session: SessionId,
    seq: i64,
    token: CommitToken,
    entries: Vec<EntryRecord>,
    published: usize,
    follows: Follows,
}

impl Model {
    fn new() -> Self {
        let Point(Seq(seq), token) = point(1);
        let opened = Self::head(seq, token);
        Self { session: SessionId::random(), seq, token, entries: Vec::new(), published: 0, follows: Follows::new(&opened, None) }
    }

    fn head(seq: i64, token: CommitToken) -> Head {
        Head { seq: Seq(seq), token, epoch: Epoch(0), next_id: 10 + seq, opens: 0, at: Millis(0) }
    }

    fn at(&self) -> Point {
        Point(Seq(self.seq), self.token)
    }

    /// A commit that nothing is published of.
    fn nothing(&mut self) -> (Seq, CommitToken) {
        let previous = (Seq(self.seq), self.token);
        (self.seq, self.token) = (self.seq + 1, CommitToken::random());
        previous
    }

    /// A commit of an entry of so many bytes.
    fn append(&mut self, conversation_id: ConversationId, bytes: usize) {
        let previous = self.nothing();
        let entry = EntryRecord {
            id: EntryId::new(10 + self.seq).unwrap(),
            conversation_id,
            kind: "note".into(),
            model: None,
            data: Some(Json::from("x".repeat(bytes).as_str())),
            head: None,
            edits: None,
            by_task_id: None,
        };
        self.entries.push(entry.clone());
        let publication = Publication {
            session: self.session,
            head: Self::head(self.seq, self.token),
            previous,
            conversations: Vec::new(),
            entries: vec![Arc::new(entry)],
            tasks: Vec::new(),
            invocations: Vec::new(),
            submissions: Vec::new(),
            documents: Vec::new(),
        };
        self.published += 1;
        self.follows.observe(&publication, &OrdMap::new());
    }

    /// What storage has of a conversation.
    fn stored(&self, of: ConversationId) -> Mount {
        let entries: Vec<EntryRecord> = self.entries.iter().filter(|entry| entry.conversation_id == of).cloned().collect();
        mount(of, self.at(), &entries)
    }

    fn attend(&mut self, of: ConversationId, reader: WatchId) {
        if !self.follows.seen(of, reader).unwrap() {
            self.follows.begin(of, self.stored(of));
            assert!(self.follows.seen(of, reader).unwrap());
        }
    }
}

/// A reader as the harness of a host is one.
struct Reader {
    name: WatchId,
    of: ConversationId,
    mount: Option<Mount>,
}

impl Reader {
    fn new(of: i64) -> Self {
        Self { name: WatchId::random(), of: conversation(of), mount: None }
    }

    /// Pulls once; whether it got a snapshot.
    fn pull(&mut self, model: &mut Model) -> bool {
        model.attend(self.of, self.name);
        match model.follows.next(self.of, self.mount.as_ref().map(Mount::at)).unwrap() {
            Following::Snapshot(mount) => {
                self.mount = Some(*mount);
                true
            }
            Following::Frames { frames, complete_to } => {
                let mine = self.mount.as_mut().unwrap();
                for frame in &frames {
                    mine.advance(frame).unwrap();
                }
                assert!(complete_to.0 >= mine.at().0);
                mine.complete_to(complete_to);
                false
            }
            Following::Closed => panic!("nothing closes"),
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Append { conversation: i64, bytes: usize },
    Nothing,
    Pull(usize),
    Stop(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let bytes = prop_oneof![8 => 0..100_usize, 1 => Just(BYTES_MAX / 2), 1 => Just(BYTES_MAX + 1)];
    let step = prop_oneof![
        6 => (1..4_i64, bytes).prop_map(|(conversation, bytes)| Step::Append { conversation, bytes }),
        1 => Just(Step::Nothing),
        4 => (0..4_usize).prop_map(Step::Pull),
        1 => (0..4_usize).prop_map(Step::Stop),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    // Few, as some make megabytes.
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// A reader that follows what it gets has what storage has, whoever else comes and goes, and nobody gets a snapshot twice in a row
    /// without a commit between.
    #[test]
    fn a_reader_has_what_is_stored(steps in steps()) {
        let mut model = Model::new();
        let mut readers = [1, 1, 2, 3].map(Reader::new);
        let mut shown = [None; 4];
        for step in steps {
            match step {
                Step::Append { conversation: of, bytes } => model.append(conversation(of), bytes),
                Step::Nothing => drop(model.nothing()),
                Step::Pull(reader) => {
                    let snapshot = readers[reader].pull(&mut model);
                    let mine = readers[reader].mount.as_ref().unwrap();
                    prop_assert!(mine.same_state(&model.stored(readers[reader].of)));
                    prop_assert!(!snapshot || shown[reader] != Some(model.published), "a snapshot again");
                    shown[reader] = snapshot.then_some(model.published);
                }
                Step::Stop(reader) => {
                    model.follows.stop(readers[reader].of, readers[reader].name);
                    (readers[reader].mount, shown[reader]) = (None, None);
                }
            }
        }
    }
}

#[test]
fn a_reader_that_is_too_many_frames_behind_takes_a_snapshot() {
    let mut model = Model::new();
    let (mut reader, mut other) = (Reader::new(1), Reader::new(1));
    assert!(reader.pull(&mut model) && other.pull(&mut model));
    (0..FRAMES_MAX).for_each(|_| model.append(conversation(1), 1));
    assert!(!reader.pull(&mut model), "all frames are kept");
    model.append(conversation(1), 1);
    assert!(other.pull(&mut model), "the oldest one was dropped");
    assert!(!reader.pull(&mut model));
    assert!(other.mount.unwrap().same_state(&reader.mount.unwrap()));
}

#[test]
fn frames_are_bounded_in_bytes_and_the_newest_one_is_kept() {
    let mut model = Model::new();
    let (mut reader, mut other) = (Reader::new(1), Reader::new(1));
    assert!(reader.pull(&mut model) && other.pull(&mut model));
    model.append(conversation(1), BYTES_MAX + 1);
    assert!(!reader.pull(&mut model), "one frame may be larger than the bound");
    model.append(conversation(1), 1);
    let ring = &model.follows.followed[&conversation(1)];
    assert_eq!((ring.frames.len(), ring.floor), (1, reader.mount.as_ref().unwrap().at()), "the floor is what the oldest stands on");
    assert!(!reader.pull(&mut model), "it stands on the floor");
    assert!(other.pull(&mut model));
}

#[test]
fn the_frames_of_a_session_are_bounded_together() {
    let mut model = Model::new();
    let of: Vec<i64> = (1..=20).collect();
    let mut readers: Vec<Reader> = of.iter().copied().map(Reader::new).collect();
    assert!(readers.iter_mut().all(|reader| reader.pull(&mut model)));
    of.iter().for_each(|of| model.append(conversation(*of), BYTES_MAX));
    let kept: usize = model.follows.followed.values().map(|ring| ring.bytes).sum();
    assert!(kept <= SESSION_BYTES_MAX && kept > SESSION_BYTES_MAX / 2, "{kept}");
    // Who lost frames takes a snapshot, and goes on with frames.
    let snapshots = readers.iter_mut().filter_map(|reader| reader.pull(&mut model).then_some(reader.of)).collect::<BTreeSet<_>>();
    assert!((1..20).contains(&snapshots.len()), "{snapshots:?}");
    of.iter().for_each(|of| model.append(conversation(*of), 1));
    assert!(readers.iter_mut().all(|reader| !reader.pull(&mut model)));
}

#[tokio::test(start_paused = true)]
async fn the_followed_conversations_are_bounded_by_those_that_are_read() {
    let mut model = Model::new();
    let most = i64::try_from(FOLLOWED_MAX).unwrap();
    for of in 1..=most {
        model.attend(conversation(of), WatchId::random());
    }
    let refused = model.follows.seen(conversation(most + 1), WatchId::random());
    assert!(matches!(&refused, Err(Refusal::Rejected(why)) if why.contains("stop following")), "{refused:?}");
    assert_eq!(model.follows.seen(conversation(1), WatchId::random()), Ok(true), "one more reader of one that is followed");
    tokio::time::advance(AWAY_MAX).await;
    assert_eq!(model.follows.seen(conversation(most + 1), WatchId::random()), Ok(false), "nobody reads the others any more");
}
