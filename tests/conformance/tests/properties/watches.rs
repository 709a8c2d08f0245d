//! A watch whose reader is now fast, now slow: its operations always lead from what it had to what it gets.

use picofleet_conformance::documents::{IN_SESSION, Note, commit};
use picofleet_conformance::{Memory, Mode, World, run};
use picofleet_delta::{Json, apply};
use picofleet_session::{Session, Watch};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    /// So many commits, each of which changes the document in this way.
    Commit(usize, Change),
    /// The reader takes so many frames.
    Take(usize),
    /// Another watch begins, attached to the state.
    Attach,
    Retire,
}

#[derive(Clone, Debug)]
enum Change {
    Set(i64),
    Append(String),
    Insert(usize),
    Remove(usize),
    Replace(i64),
    Nothing,
}

fn step() -> impl Strategy<Value = Step> {
    let change = prop_oneof![
        (0..9_i64).prop_map(Change::Set),
        "[aé😀]{1,3}".prop_map(Change::Append),
        (0..9_usize).prop_map(Change::Insert),
        (0..9_usize).prop_map(Change::Remove),
        (0..9_i64).prop_map(Change::Replace),
        Just(Change::Nothing),
    ];
    prop_oneof![
        6 => (prop_oneof![4 => 0..4_usize, 1 => 95..106_usize], change).prop_map(|(count, change)| Step::Commit(count, change)),
        4 => prop_oneof![4 => 0..5_usize, 1 => Just(1_000)].prop_map(Step::Take),
        1 => Just(Step::Attach),
        1 => Just(Step::Retire),
    ]
}

async fn change(session: &Session, change: &Change) {
    commit(session, async |tx| {
        let doc = tx.doc(&IN_SESSION, ()).await?;
        let items = doc.read()?.items.len();
        if items == 0 {
            doc.draft.key("items").set(Json::array([0]))?;
        }
        match change {
            Change::Set(n) => doc.draft.key("n").set(*n)?,
            Change::Append(text) => doc.draft.key("text").append(text)?,
            Change::Insert(at) => doc.draft.key("items").splice(at % (items + 1), 0, vec![Json::from(*at)])?,
            Change::Remove(at) if items > 0 => doc.draft.key("items").splice(at % items, 1, vec![])?,
            Change::Replace(n) => doc.draft.set_serde(&Note { n: *n, ..Note::new("replaced") })?,
            Change::Remove(_) | Change::Nothing => {}
        }
        Ok(())
    })
    .await
    .unwrap();
}

/// A watch and the value that a replay of its operations has.
struct Replayed {
    watch: Watch<Note>,
    value: Option<Json>,
    seq: i64,
}

impl Replayed {
    fn new(watch: Watch<Note>) -> Self {
        let value = watch.value().cloned();
        Self { watch, value, seq: 0 }
    }

    async fn take(&mut self, count: usize) {
        for _ in 0..count {
            let std::task::Poll::Ready(Some(frame)) = futures::poll!(Box::pin(self.watch.next())) else { return };
            let after = apply(self.value.as_ref(), &frame.ops).unwrap();
            assert_eq!(frame.value.clone().unwrap_or(Json::null()), after);
            assert_eq!(self.watch.value().cloned(), frame.value);
            assert!(frame.seq.0 >= self.seq, "an older frame");
            (self.value, self.seq) = (Some(after), frame.seq.0);
        }
    }
}

async fn watched(world: World, steps: Vec<Step>) {
    let session = &world.session;
    change(session, &Change::Nothing).await;
    let state = session.document_state(&IN_SESSION, ()).await.unwrap().unwrap();
    let mut watches = vec![Replayed::new(session.watch_doc(&IN_SESSION, ()).await.unwrap().unwrap())];
    let mut retired = false;
    for step in steps {
        match step {
            Step::Commit(count, what) => {
                for _ in 0..count {
                    change(session, &what).await;
                }
            }
            Step::Take(count) => {
                for watch in &mut watches {
                    watch.take(count).await;
                }
            }
            Step::Attach => watches.push(Replayed::new(state.attach())),
            Step::Retire => {
                commit(session, async |tx| tx.retire_doc(&IN_SESSION, ()).await).await.unwrap();
                retired = true;
            }
        }
        if !retired {
            assert_eq!(state.value(), session.snapshot_json(&IN_SESSION, ()).await.unwrap());
        }
    }
    for watch in &mut watches {
        watch.take(usize::MAX).await;
        let reached = watch.value.clone().filter(|value| !value.is_null());
        assert_eq!(reached, state.value(), "a watch did not come to the last value");
        assert_eq!(watch.watch.end().map(|end| end.reason()), retired.then_some("retired"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn replaying_a_watch_gives_each_value(steps in prop::collection::vec(step(), 1..25), cold in any::<bool>()) {
        run(Memory, if cold { Mode::Cold } else { Mode::Warm }, async |world| watched(world, steps).await);
    }
}
