//! What the line does not take from a closure.

use std::sync::Arc;

use picofleet_harness::effects::HoldError;
use picofleet_harness::inbox::INBOX;
use picofleet_harness::live::LIVE;
use picofleet_harness::task::NextState;
use picofleet_harness::wire::{Answer, Begin, Begun, HoldId, Refusal, Request, Written};
use picofleet_session::storage::{DocumentCopy, Write};
use picofleet_session::{
    ConversationOwner, ConversationOwnership, ConversationPolicy, ConversationRecord, DocumentContent, DocumentCreate, EntryDraft,
    ForkPoint, Id, Json, LatestFork, Millis, Placement, Point, SubmissionRecord, SubmissionState, TaskOutcome, TaskRecord, TaskState, Tx,
    WriteState,
};

use crate::world::{LONG, NOTE, Oops, ROOT, World, at, worlds};

async fn refused(world: &World, change: impl AsyncFnOnce(&Tx) -> Result<(), Oops>) -> String {
    let before = world.seq().await;
    let result = world.host(change).await;
    assert_eq!(world.seq().await, before, "{}", world.name);
    match result {
        Err(Oops::Hold(HoldError::Refused(Refusal::Rejected(why)))) => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn built_in_documents_tasks_and_rows_of_the_line_are_not_written() {
    for world in worlds(LONG).await {
        let why = refused(&world, async |tx| {
            tx.doc(&LIVE, ROOT).await?.draft.key("run").set(Json::from(1))?;
            Ok(())
        })
        .await;
        assert!(why.contains("pi.live"), "{why}");
        let why = refused(&world, async |tx| Ok(tx.retire_doc(&INBOX, ROOT).await?)).await;
        assert!(why.contains("pi.inbox"), "{why}");
        // Also in a conversation that the closure makes.
        let why = refused(&world, async |tx| {
            let new = tx.create_conversation(ConversationOwnership::Ownerless).await?;
            tx.doc(&LIVE, new.id).await?.draft.key("run").set(Json::from(1))?;
            Ok(())
        })
        .await;
        assert!(why.contains("pi.live"), "{why}");
        let why = refused(&world, async |tx| {
            let record = tx.task(world.task).await?.unwrap();
            Ok(tx.put_task(TaskRecord { abort_requested: true, ..record }).await?)
        })
        .await;
        assert!(why.contains("cannot change"), "{why}");
        let why = refused(&world, async |tx| {
            tx.set_wake(Some(Millis(1)));
            Ok(())
        })
        .await;
        assert!(why.contains("only the line writes"), "{why}");
        let why = refused(&world, async |tx| {
            tx.create_submission(ROOT, None, SubmissionState::Write(WriteState::Queued)).await?;
            Ok(())
        })
        .await;
        assert!(why.contains("submission"), "{why}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_whose_closure_is_refused_faults() {
    for world in worlds(LONG).await {
        let result = world
            .invocation
            .commit(async |tx, _| {
                tx.set_wake(Some(Millis(1)));
                Ok::<_, Oops>(((), NextState::Stay))
            })
            .await;
        assert!(result.is_err(), "{result:?}");
        let state = world.record().await.state;
        assert!(matches!(state, TaskState::Terminal { outcome: TaskOutcome::Faulted { .. } }), "{state:?}");
    }
}

/// What a line answers to a finish whose writes a hostile program made of what the line began with.
async fn forged(world: &World, writes: impl FnOnce(&Begun) -> Vec<Write>) -> Answer {
    let before = world.seq().await;
    let hold = HoldId::random();
    let begin = Box::new(Begin { conversation: Some(ROOT), ..Begin::default() });
    let Answer::Begun(begun) = world.transport.call(world.id, Request::Begin { hold, begin }).await.unwrap() else { panic!("not begun") };
    let written = Written { next_id: begun.head.next_id + 4, writes: writes(&begun) };
    let answer = world.transport.call(world.id, Request::Finish { hold, writes: Box::new(written) }).await.unwrap();
    assert_eq!(world.seq().await, before, "{answer:?}");
    answer
}

fn why(answer: Answer) -> String {
    match answer {
        Answer::Refused(Refusal::Rejected(why)) => why,
        other => panic!("{other:?}"),
    }
}

/// Makes hostile writes, from the next id of the hold on.
type Forge<'w> = Box<dyn Fn(i64) -> Vec<Write> + 'w>;

fn id<K: ?Sized>(value: i64) -> Id<K> {
    Id::new(value).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_records_are_refused() {
    for world in worlds(LONG).await {
        let entry = |at: i64, conversation, by| Write::Entry(Arc::new(EntryDraft::new("x").into_record(id(at), conversation, by)));
        let cases: Vec<(&str, Forge<'_>)> = vec![
            ("not among", Box::new(|_| vec![entry(3, ROOT, None)])),
            ("not among", Box::new(|next| vec![entry(next + 4, ROOT, None)])),
            ("two new records", Box::new(|next| vec![entry(next, ROOT, None), Write::Conversation(conversation(next, None, None))])),
            ("another task as its author", Box::new(|next| vec![entry(next, ROOT, Some(world.task))])),
            ("does not exist", Box::new(|next| vec![entry(next, id(next + 1), None)])),
            (
                "another conversation of its owner",
                Box::new(|next| {
                    let owner = ConversationOwner { conversation_id: id(next), task_id: world.task };
                    vec![Write::Conversation(conversation(next, None, Some(owner)))]
                }),
            ),
            (
                "not visible",
                Box::new(|next| {
                    let parent = ForkPoint { conversation_id: ROOT, at: id(next + 1) };
                    vec![Write::Conversation(conversation(next, Some(parent), None))]
                }),
            ),
            (
                "not as a task is created",
                Box::new(|next| {
                    let state = TaskState::Running { checkpoint: at("x") };
                    vec![Write::Task(Arc::new(task(next, state)))]
                }),
            ),
            (
                "submission",
                Box::new(|next| {
                    let state = SubmissionState::Write(WriteState::Queued);
                    vec![Write::Submission(Arc::new(SubmissionRecord { id: id(next), conversation_id: ROOT, request_id: None, state }))]
                }),
            ),
            (
                "no document",
                Box::new(|next| {
                    let content = DocumentContent::Base { version: 1, value: Json::object::<&str, Json>([]) };
                    vec![Write::DocumentChange { id: id(next), content }]
                }),
            ),
            (
                "is there already",
                Box::new(|next| vec![Write::DocumentCreate { create: note(next), version: 1, value: Json::object::<&str, Json>([]) }]),
            ),
            (
                "no fork copies",
                Box::new(|next| {
                    let copy = DocumentCopy { create: note(next), source: id(2), at: Point::Current };
                    vec![Write::DocumentCopy(copy)]
                }),
            ),
        ];
        for (expected, writes) in cases {
            let why = why(forged(&world, |begun| writes(begun.head.next_id)).await);
            assert!(why.contains(expected), "{}: {why} for {expected}", world.name);
        }
        // The line goes on.
        world.host(async |tx| Ok(tx.append_entry(ROOT, EntryDraft::new("a")).await?.id)).await.unwrap();
    }
}

fn conversation(at: i64, parent: Option<ForkPoint>, owner: Option<ConversationOwner>) -> ConversationRecord {
    ConversationRecord { id: id(at), parent, owner }
}

fn task(at: i64, state: TaskState) -> TaskRecord {
    TaskRecord {
        id: id(at),
        conversation_id: ROOT,
        kind: "test.idle".into(),
        version: 1,
        input: Json::null(),
        owner: None,
        background: false,
        abort_requested: false,
        state,
        memos: None,
        restarts: 0,
        started_at: None,
        ended_at: None,
    }
}

fn note(at: i64) -> DocumentCreate {
    let policy = ConversationPolicy::Latest(LatestFork::Current);
    DocumentCreate { id: id(at), kind: NOTE.kind.into(), key: None, placement: Placement::Conversation { id: ROOT, policy } }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_of_somebody_else_and_a_finish_without_one_are_gone() {
    for world in worlds(LONG).await {
        let begin = Begin { by: Some((world.task, picofleet_session::InvocationId::random())), ..Begin::default() };
        let request = Request::Begin { hold: HoldId::random(), begin: Box::new(begin) };
        assert_eq!(world.transport.call(world.id, request).await.unwrap(), Answer::Refused(Refusal::Gone));
        let writes = Box::new(Written { next_id: 100, writes: Vec::new() });
        let request = Request::Finish { hold: HoldId::random(), writes };
        assert_eq!(world.transport.call(world.id, request).await.unwrap(), Answer::Refused(Refusal::Gone));
        // A task's hold is not ended by a host's message.
        let (hold, begin) = (HoldId::random(), Begin { by: Some((world.task, world.invocation_id)), ..Begin::default() });
        let begun = world.transport.call(world.id, Request::Begin { hold, begin: Box::new(begin.clone()) }).await.unwrap();
        assert!(matches!(begun, Answer::Begun(_)), "{begun:?}");
        // A repetition is the same hold.
        assert_eq!(world.transport.call(world.id, Request::Begin { hold, begin: Box::new(begin) }).await.unwrap(), begun);
        let writes = Box::new(Written { next_id: 100, writes: Vec::new() });
        assert_eq!(world.transport.call(world.id, Request::Finish { hold, writes }).await.unwrap(), Answer::Refused(Refusal::Gone));
        world.transport.call(world.id, Request::Release { hold }).await.unwrap();
        world.invocation.commit(async |_, _| Ok::<_, Oops>(((), NextState::Stay))).await.unwrap();
    }
}
