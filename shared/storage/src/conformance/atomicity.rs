//! A batch lands as a whole or not at all (section 10; `protocol.md` 2).

use picofleet_session::storage::{Batch, OutboxRow, Rejection, RequestRow, StorageError, SubmissionQuery, TaskFilter, TaskQuery, Write};
use picofleet_session::{CommitToken, DocumentScope, InputState, Millis, Point, SubmissionState, SubmissionStatus, TaskState, TaskStatus};

use super::records::{
    address, cid, conversation, create, eid, entry, input, json, pending, put_submission, put_task, rewindable, set, sid, task, tid, value,
};
use super::{NOW, World, rejection};

/// A refused batch leaves task, submission, entry and their indexes as they were, and the next one lands above.
pub async fn s002_s003_a_refused_batch_leaves_nothing(mut world: World) {
    world.root().await;
    let [t, s] = world.mints();
    world.ok(vec![put_task(&task(t, pending())), put_submission(&input(s, 1, Some("key")))]).await;
    let e = world.mint();
    let running = task(t, TaskState::Running { checkpoint: json("1") });
    let placed = input(s, 1, Some("key")).place(eid(e)).unwrap();
    let reason = world.refused(vec![put_task(&running), put_submission(&placed), entry(e, 1), conversation(1)]).await;
    assert_eq!(reason, Rejection::IdTaken { id: 1, owner: "conversation" });
    unchanged(&mut world, t, s, e).await;
    let before = world.head.seq;
    assert!(world.ok(vec![entry(e, 1)]).await.seq > before);
}

async fn unchanged(world: &mut World, t: i64, s: i64, e: i64) {
    let line = world.line().await;
    assert_eq!(line.task(tid(t)).await.unwrap().unwrap(), task(t, pending()));
    assert_eq!(line.submission(sid(s)).await.unwrap().unwrap(), input(s, 1, Some("key")));
    assert_eq!(line.entry(None, eid(e)).await.unwrap(), None);
    let status = |status| TaskQuery { status: Some(TaskFilter::Status(status)), ..TaskQuery::default() };
    assert_eq!(line.scan_tasks(status(TaskStatus::Running), 10, None).await.unwrap().items, []);
    assert_eq!(line.scan_tasks(status(TaskStatus::Pending), 10, None).await.unwrap().items, [task(t, pending())]);
    let queued = SubmissionQuery { conversation_id: None, status: Some(SubmissionStatus::Queued) };
    assert_eq!(line.scan_submissions(queued, 10, None).await.unwrap().items, [input(s, 1, Some("key"))]);
    let found = line.submission_by_request(cid(1), "key".to_owned()).await.unwrap();
    assert_eq!(found, Some(input(s, 1, Some("key"))));
}

/// A document command that fails takes the whole batch with it.
pub async fn s023_a_failing_document_command_leaves_nothing(mut world: World) {
    world.root().await;
    let [t, s, d] = world.mints();
    world.ok(vec![put_task(&task(t, pending())), put_submission(&input(s, 1, Some("key"))), create(d, rewindable(1), r#"{"n":1}"#)]).await;
    let [e, new, other, t2] = world.mints();
    let settled = picofleet_session::SubmissionRecord {
        state: SubmissionState::Input(InputState::Unanswered { entry: None, reason: "x".to_owned(), detail: None }),
        ..input(s, 1, Some("key"))
    };
    let writes = vec![
        put_task(&task(t, TaskState::Running { checkpoint: json("1") })),
        put_task(&task(t2, pending())),
        put_submission(&settled),
        put_submission(&input(other, 1, Some("other"))),
        entry(e, 1),
        set(d, "n", "2"),
        create(new, super::records::latest(1), "{}"),
        Write::Wake(Some(Millis(5))),
    ];
    let address_taken = world.refused(writes).await;
    assert!(matches!(address_taken, Rejection::AddressTaken { .. }), "{address_taken:?}");
    unchanged(&mut world, t, s, e).await;
    let line = world.line().await;
    assert_eq!(line.task(tid(t2)).await.unwrap(), None);
    assert_eq!(line.submission_by_request(cid(1), "other".to_owned()).await.unwrap(), None);
    assert_eq!(value(&*line, d, Point::Current).await.unwrap(), r#"{"n":1}"#);
    let found = line.find_document(address(DocumentScope::Conversation { id: cid(1) }), Point::Current).await.unwrap();
    assert_eq!(found.unwrap().create.id.get(), d);
    assert_eq!(line.wake().await.unwrap(), None);
}

/// Requests, notices and the wake time belong to the batch, too.
pub async fn s023_a_refused_batch_leaves_no_bookkeeping(mut world: World) {
    world.root().await;
    let s = world.mint();
    let row = RequestRow { key: "k".to_owned(), digest: "d".to_owned(), answer: json("1"), at: NOW };
    let notice = OutboxRow { submission_id: sid(s), body: json("1") };
    let writes = vec![Write::Request(Box::new(row)), Write::Outbox(Box::new(notice)), Write::Wake(Some(NOW)), conversation(1)];
    world.refused(writes).await;
    let line = world.line().await;
    assert_eq!(line.request("k".to_owned()).await.unwrap(), None);
    assert_eq!(line.wake().await.unwrap(), None);
    assert_eq!(world.store().await.outbox(10, None).await.unwrap().items, []);
}

/// Several commits travel together: each has its own sequence, and later ones see earlier ones.
pub async fn batches_hold_commits_with_consecutive_sequences(mut world: World) {
    world.root().await;
    world.step().await;
    let [t, d] = world.mints();
    let first = world.commit_of(vec![put_task(&task(t, pending())), create(d, rewindable(1), r#"{"n":0}"#)]);
    let e = world.mint();
    let running = task(t, TaskState::Running { checkpoint: json("1") });
    let second = world.commit_of(vec![put_task(&running), set(d, "n", "1"), entry(e, 1)]);
    let third = world.commit_of(vec![set(d, "n", "2")]);
    let (before, token) = (world.head.seq, third.token);
    let batch = world.batch(vec![first, second, third]);
    let head = world.send(batch).await.unwrap();
    assert_eq!((head.seq.0, head.token), (before.0 + 3, token));
    let line = world.line().await;
    assert_eq!(line.task(tid(t)).await.unwrap().unwrap(), running);
    assert_eq!(line.entry(None, eid(e)).await.unwrap().unwrap().1.0, before.0 + 2);
    for n in 0..3 {
        let point = Point::At(picofleet_session::Seq(before.0 + 1 + n));
        assert_eq!(value(&*line, d, point).await.unwrap(), format!(r#"{{"n":{n}}}"#));
    }
}

/// A refusal of the last commit takes the whole batch with it.
pub async fn batches_land_as_a_whole_or_not_at_all(mut world: World) {
    world.root().await;
    world.step().await;
    let [t, e] = world.mints();
    let good = world.commit_of(vec![put_task(&task(t, pending())), entry(e, 1)]);
    let bad = world.commit_of(vec![conversation(1)]);
    let before = world.same_line().head().await.unwrap();
    let batch = world.batch(vec![good, bad]);
    assert!(matches!(rejection(world.send(batch).await), Rejection::IdTaken { .. }));
    assert_eq!(world.same_line().head().await.unwrap(), before);
    let line = world.line().await;
    assert_eq!(line.task(tid(t)).await.unwrap(), None);
    assert_eq!(line.entry(None, eid(e)).await.unwrap(), None);
    world.ok(vec![put_task(&task(t, pending())), entry(e, 1)]).await;
}

/// A batch has 1 to 64 commits.
pub async fn batches_have_a_size(mut world: World) {
    world.root().await;
    world.step().await;
    let empty = world.batch(vec![]);
    assert!(matches!(rejection(world.send(empty).await), Rejection::Malformed(_)));
    let many = |world: &World, count| Batch { commits: (0..count).map(|_| world.commit_of(vec![])).collect(), ..world.batch(vec![]) };
    let too_many = many(&world, Batch::COMMITS_MAX + 1);
    assert!(matches!(rejection(world.send(too_many).await), Rejection::Malformed(_)));
    let before = world.head.seq.0;
    let most = many(&world, Batch::COMMITS_MAX);
    assert_eq!(world.send(most).await.unwrap().seq.0, before + 64);
}

/// The predecessor is named by sequence and token.
pub async fn batches_stand_on_their_predecessor(mut world: World) {
    world.root().await;
    world.step().await;
    let e = world.mint();
    let commit = world.commit_of(vec![entry(e, 1)]);
    let (seq, token) = (world.head.seq, world.head.token);
    let wrong = [
        (picofleet_session::Seq(seq.0 - 1), token),
        (seq.next(), token),
        (seq, CommitToken::random()),
        (seq, CommitToken::from_bits(token.bits() ^ 1)),
    ];
    for expect in wrong {
        let outcome = world.send(Batch { expect, commits: vec![commit.clone()] }).await;
        assert!(matches!(outcome, Err(StorageError::Fenced { session }) if session == world.session), "{expect:?}: {outcome:?}");
    }
    assert_eq!(world.same_line().entry(None, eid(e)).await.unwrap(), None);
    world.send(Batch { expect: (seq, token), commits: vec![commit] }).await.unwrap();
}

/// A batch that is sent before the one before it settled is refused, or it finds it settled.
pub async fn batches_go_one_by_one(mut world: World) {
    world.root().await;
    let line = world.line().await;
    let a = world.mint();
    let first = world.commit_of(vec![entry(a, 1)]);
    let b = world.mint();
    let second = world.commit_of(vec![entry(b, 1)]);
    let expect = (world.head.seq.next(), first.token);
    let first = line.commit(world.batch(vec![first]));
    let next = line.commit(Batch { expect, commits: vec![second.clone()] });
    let (first, next) = futures::join!(first, next);
    let landed = first.unwrap();
    match next {
        Ok(head) => assert_eq!(head.seq, landed.seq.next()),
        Err(error) => {
            assert_eq!(rejection::<()>(Err(error)), Rejection::InFlight);
            assert_eq!(line.entry(None, eid(b)).await.unwrap(), None);
            line.commit(Batch { expect, commits: vec![second] }).await.unwrap();
        }
    }
    assert!(line.entry(None, eid(b)).await.unwrap().is_some());
}

/// A batch whose handle is dropped lands all the same.
pub async fn batches_land_without_anybody_waiting(mut world: World) {
    world.root().await;
    let line = world.line().await;
    let e = world.mint();
    drop(line.commit(world.batch(vec![world.commit_of(vec![entry(e, 1)])])));
    line.release().await.unwrap();
    world.open().await;
    assert!(world.same_line().entry(None, eid(e)).await.unwrap().is_some());
}
