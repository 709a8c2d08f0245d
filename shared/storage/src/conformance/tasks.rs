//! Tasks, invocations and submissions (sections 5 and 6; `protocol.md` 3).

use picofleet_session::storage::{Rejection, SubmissionQuery, TaskFilter, TaskQuery, Write};
use picofleet_session::{
    InputState, InvocationId, InvocationRow, JoinPolicy, SubmissionRecord, SubmissionState, SubmissionStatus, TaskRecord, TaskState,
    TaskStatus, WriteState,
};

use super::World;
use super::records::{
    all, cid, completed, conversation, eid, entry, input, json, passive, pending, put_submission, put_task, sid, task, tid,
};

async fn found(world: &mut World, query: &TaskQuery) -> Vec<i64> {
    let line = world.line().await;
    let one_by_one = all(1, |limit, cursor| line.scan_tasks(query.clone(), limit, cursor)).await;
    let at_once = all(100, |limit, cursor| line.scan_tasks(query.clone(), limit, cursor)).await;
    assert_eq!(one_by_one, at_once);
    at_once.iter().map(|task| task.id.get()).collect()
}

fn by_status(status: TaskStatus) -> TaskQuery {
    TaskQuery { status: Some(TaskFilter::Status(status)), ..TaskQuery::default() }
}

/// A replaced task is exactly its last record.
pub async fn s013_a_task_is_its_last_record(mut world: World) {
    world.root().await;
    let t = world.mint();
    let first = TaskRecord { memos: Some(json(r#"{"a":1}"#)), ..task(t, pending()) };
    let second = TaskRecord { state: TaskState::Running { checkpoint: json("2") }, restarts: 2, ..first.clone() };
    let last = TaskRecord { version: 2, input: json("[2]"), ..task(t, TaskState::Terminal { outcome: completed() }) };
    for record in [&first, &second, &last] {
        world.ok(vec![put_task(record)]).await;
        assert_eq!(world.line().await.task(tid(t)).await.unwrap().as_ref(), Some(record));
    }
    for (status, expected) in [(TaskStatus::Pending, vec![]), (TaskStatus::Running, vec![]), (TaskStatus::Terminal, vec![t])] {
        assert_eq!(found(&mut world, &by_status(status)).await, expected);
    }
}

/// All filters of a task scan together.
pub async fn s013_task_filters_combine(mut world: World) {
    world.root().await;
    let [other, a, b, c, d, e] = world.mints();
    let records = [
        task(a, pending()),
        TaskRecord { abort_requested: true, ..task(b, pending()) },
        TaskRecord { background: true, kind: "timer".to_owned(), ..task(c, pending()) },
        TaskRecord { owner: Some(tid(a)), ..task(d, TaskState::Running { checkpoint: json("1") }) },
        TaskRecord { conversation_id: cid(other), ..task(e, TaskState::Terminal { outcome: completed() }) },
    ];
    let writes = std::iter::once(conversation(other)).chain(records.iter().map(put_task)).collect();
    world.ok(writes).await;
    let pending_only = by_status(TaskStatus::Pending);
    let live = TaskQuery { status: Some(TaskFilter::Live), ..TaskQuery::default() };
    for (query, expected) in [
        (TaskQuery::default(), vec![a, b, c, d, e]),
        (pending_only.clone(), vec![a, b, c]),
        (TaskQuery { abort_requested: Some(true), ..pending_only.clone() }, vec![b]),
        (TaskQuery { abort_requested: Some(false), background: Some(false), ..pending_only.clone() }, vec![a]),
        (TaskQuery { background: Some(true), ..pending_only }, vec![c]),
        (TaskQuery { kind: Some("timer".to_owned()), ..TaskQuery::default() }, vec![c]),
        (live.clone(), vec![a, b, c, d]),
        (TaskQuery { conversation_id: Some(cid(other)), ..live.clone() }, vec![]),
        (TaskQuery { conversation_id: Some(cid(other)), ..TaskQuery::default() }, vec![e]),
        (TaskQuery { conversation_id: Some(cid(1)), ..live }, vec![a, b, c, d]),
        (TaskQuery { owner_task_id: Some(tid(a)), ..TaskQuery::default() }, vec![d]),
        (TaskQuery { owner_task_id: Some(tid(a)), status: Some(TaskFilter::Status(TaskStatus::Terminal)), ..TaskQuery::default() }, vec![]),
    ] {
        assert_eq!(found(&mut world, &query).await, expected, "{query:?}");
    }
}

/// Filters see the last record of a task, and nothing of the earlier ones.
pub async fn x009_a_replaced_task_is_found_by_what_it_is_now(mut world: World) {
    world.root().await;
    let [other, owner, t] = world.mints();
    let first = TaskRecord { owner: Some(tid(owner)), kind: "timer".to_owned(), conversation_id: cid(other), ..task(t, pending()) };
    world.ok(vec![conversation(other), put_task(&task(owner, pending())), put_task(&first)]).await;
    let of_owner = TaskQuery { owner_task_id: Some(tid(owner)), ..TaskQuery::default() };
    let of_kind = TaskQuery { kind: Some("timer".to_owned()), ..TaskQuery::default() };
    let of_conversation = TaskQuery { conversation_id: Some(cid(other)), ..TaskQuery::default() };
    let running = TaskRecord { state: TaskState::Running { checkpoint: json("1") }, background: true, ..first.clone() };
    let aborted = TaskRecord { abort_requested: true, background: false, ..running.clone() };
    let ended = TaskRecord { state: TaskState::Terminal { outcome: completed() }, ..aborted.clone() };
    for record in [&first, &running, &aborted, &ended] {
        world.ok(vec![put_task(record)]).await;
        // What never changes finds it always, alone and with what it is now.
        for kept in [&of_owner, &of_kind, &of_conversation] {
            let is = TaskQuery {
                status: Some(TaskFilter::Status(record.status())),
                abort_requested: Some(record.abort_requested),
                background: Some(record.background),
                ..kept.clone()
            };
            let live = TaskQuery { status: Some(TaskFilter::Live), ..kept.clone() };
            let not = TaskQuery { abort_requested: Some(!record.abort_requested), ..is.clone() };
            let neither = TaskQuery { background: Some(!record.background), ..is.clone() };
            let expected = if record.terminal() { vec![] } else { vec![t] };
            for (query, expected) in [(kept.clone(), vec![t]), (is, vec![t]), (live, expected), (not, vec![]), (neither, vec![])] {
                assert_eq!(found(&mut world, &query).await, expected, "{record:?} by {query:?}");
            }
        }
    }
}

/// Waiting, sleeping and completing tasks are found by their own status only.
pub async fn s014_parked_tasks_keep_their_state(mut world: World) {
    world.root().await;
    let [w, c, s] = world.mints();
    let on = vec![tid(c), tid(s)];
    let waiting = TaskState::Waiting { checkpoint: json(r#"{"phase":"join"}"#), on, policy: JoinPolicy::FailFast };
    let waiting = TaskRecord { memos: Some(json(r#"{"toString":1}"#)), ..task(w, waiting) };
    let completing = task(c, TaskState::Completing { outcome: completed() });
    let sleeping = task(s, TaskState::Sleeping { checkpoint: json("1"), until: picofleet_session::Millis(77) });
    world.ok(vec![put_task(&waiting), put_task(&completing), put_task(&sleeping)]).await;
    for record in [&waiting, &completing, &sleeping] {
        assert_eq!(world.line().await.task(record.id).await.unwrap().as_ref(), Some(record));
        assert_eq!(found(&mut world, &by_status(record.status())).await, [record.id.get()]);
    }
    world.ok(vec![put_task(&task(c, TaskState::Terminal { outcome: completed() }))]).await;
    assert_eq!(found(&mut world, &by_status(TaskStatus::Completing)).await, Vec::<i64>::new());
    assert_eq!(found(&mut world, &by_status(TaskStatus::Terminal)).await, [c]);
}

/// A request key names one submission of its conversation.
pub async fn s015_request_ids_are_of_one_conversation(mut world: World) {
    world.root().await;
    let [other, a, b] = world.mints();
    let (first, second) = (input(a, 1, Some("same")), input(b, other, Some("same")));
    world.ok(vec![conversation(other), put_submission(&first), put_submission(&second)]).await;
    let of = async |world: &mut World, conversation| {
        world.line().await.submission_by_request(cid(conversation), "same".to_owned()).await.unwrap()
    };
    assert_eq!(of(&mut world, 1).await, Some(first.clone()));
    assert_eq!(of(&mut world, other).await, Some(second));
    let c = world.mint();
    let reason = world.refused(vec![put_submission(&input(c, 1, Some("same")))]).await;
    assert_eq!(reason, Rejection::RequestTaken { request_id: "same".to_owned(), submission: a });
    let e = world.mint();
    let placed = first.place(eid(e)).unwrap();
    world.ok(vec![entry(e, 1), put_submission(&placed)]).await;
    assert_eq!(of(&mut world, 1).await, Some(placed));
}

/// Two submissions of one commit have two request keys.
pub async fn s015_request_ids_are_unique_in_a_commit(mut world: World) {
    world.root().await;
    let [a, b] = world.mints();
    let reason = world.refused(vec![put_submission(&input(a, 1, Some("x"))), put_submission(&input(b, 1, Some("x")))]).await;
    assert_eq!(reason, Rejection::RequestTaken { request_id: "x".to_owned(), submission: a });
    world.ok(vec![put_submission(&input(a, 1, None)), put_submission(&input(b, 1, None))]).await;
}

/// What never changes about tasks and submissions.
pub async fn s015_tasks_and_submissions_keep_what_never_changes(mut world: World) {
    world.root().await;
    let [other, o, t, s] = world.mints();
    let (record, submission) = (task(t, pending()), input(s, 1, Some("k")));
    world.ok(vec![conversation(other), put_task(&task(o, pending())), put_task(&record), put_submission(&submission)]).await;
    for (changed, field) in [
        (TaskRecord { conversation_id: cid(other), ..record.clone() }, "conversations"),
        (TaskRecord { owner: Some(tid(o)), ..record.clone() }, "owner"),
        (TaskRecord { kind: "else".to_owned(), ..record.clone() }, "kind"),
    ] {
        let reason = world.refused(vec![put_task(&changed)]).await;
        assert_eq!(reason, Rejection::Immutable { what: "task", id: t, field });
    }
    let write = SubmissionRecord { request_id: Some("k".to_owned()), ..passive(s, 1) };
    for (changed, field) in [
        (SubmissionRecord { conversation_id: cid(other), ..submission.clone() }, "conversations"),
        (SubmissionRecord { request_id: None, ..submission.clone() }, "request ID"),
        (SubmissionRecord { request_id: Some("l".to_owned()), ..submission.clone() }, "request ID"),
        (write, "type"),
    ] {
        let reason = world.refused(vec![put_submission(&changed)]).await;
        assert_eq!(reason, Rejection::Immutable { what: "submission", id: s, field });
    }
    let line = world.line().await;
    assert_eq!(line.task(tid(t)).await.unwrap(), Some(record));
    assert_eq!(line.submission(sid(s)).await.unwrap(), Some(submission));
}

/// Submissions by status and conversation, and the states of a write.
pub async fn x004_submissions_go_through_their_states(mut world: World) {
    world.root().await;
    let [other, i, w1, w2] = world.mints();
    let of_other = input(i, other, None);
    world.ok(vec![conversation(other), put_submission(&of_other), put_submission(&passive(w1, 1)), put_submission(&passive(w2, 1))]).await;
    let scan = async |world: &mut World, conversation: Option<i64>, status| {
        let query = SubmissionQuery { conversation_id: conversation.map(cid), status };
        let line = world.line().await;
        let found = all(1, |limit, cursor| line.scan_submissions(query, limit, cursor)).await;
        found.iter().map(|submission| submission.id.get()).collect::<Vec<_>>()
    };
    let queued = Some(SubmissionStatus::Queued);
    assert_eq!(scan(&mut world, None, queued).await, [i, w1, w2]);
    assert_eq!(scan(&mut world, Some(1), queued).await, [w1, w2]);
    let e = world.mint();
    let done = passive(w1, 1).place(eid(e)).unwrap();
    let reason = SubmissionState::Write(WriteState::Unanswered { reason: "aborted".to_owned(), detail: Some(json("null")) });
    let unanswered = SubmissionRecord { state: reason, ..passive(w2, 1) };
    let placed = SubmissionRecord { state: SubmissionState::Input(InputState::Placed { entry: eid(e) }), ..of_other };
    world.ok(vec![entry(e, 1), put_submission(&done), put_submission(&unanswered), put_submission(&placed)]).await;
    assert_eq!(done.state, SubmissionState::Write(WriteState::Done { entry: eid(e) }));
    let line = world.line().await;
    for record in [done, unanswered, placed] {
        assert_eq!(line.submission(record.id).await.unwrap(), Some(record));
    }
    assert_eq!(scan(&mut world, None, queued).await, Vec::<i64>::new());
    assert_eq!(scan(&mut world, None, Some(SubmissionStatus::Placed)).await, [i]);
    assert_eq!(scan(&mut world, None, Some(SubmissionStatus::Done)).await, [w1]);
    assert_eq!(scan(&mut world, Some(1), Some(SubmissionStatus::Unanswered)).await, [w2]);
    assert_eq!(scan(&mut world, Some(1), None).await, [w1, w2]);
    assert_eq!(scan(&mut world, None, None).await, [i, w1, w2]);
}

/// A task keeps what it was told about its invocation, also once it is terminal.
pub async fn invocations_stay_with_their_task(mut world: World) {
    world.root().await;
    let t = world.mint();
    let invocation = InvocationId::random();
    let reserved = InvocationRow { task_id: tid(t), invocation, number: 0, digest: None, answer: None };
    let said = InvocationRow { number: 1, digest: Some("d1".to_owned()), answer: Some(json("null")), ..reserved.clone() };
    let last = InvocationRow { number: 2, digest: Some("d2".to_owned()), answer: None, ..reserved.clone() };
    world.ok(vec![Write::Invocation(Box::new(reserved.clone())), put_task(&task(t, pending()))]).await;
    assert_eq!(world.line().await.invocation(tid(t)).await.unwrap(), Some(reserved));
    let running = task(t, TaskState::Running { checkpoint: json("1") });
    world.ok(vec![put_task(&running), Write::Invocation(Box::new(said.clone()))]).await;
    assert_eq!(world.line().await.invocation(tid(t)).await.unwrap(), Some(said.clone()));
    world.ok(vec![put_task(&TaskRecord { version: 2, ..running })]).await;
    assert_eq!(world.line().await.invocation(tid(t)).await.unwrap(), Some(said));
    let terminal = task(t, TaskState::Terminal { outcome: completed() });
    world.ok(vec![put_task(&terminal), Write::Invocation(Box::new(last.clone()))]).await;
    let kept = world.line().await.invocation(tid(t)).await.unwrap().unwrap();
    assert_eq!((kept.invocation, kept.number), (invocation, 2));
    assert_eq!(kept, last);
    assert_eq!(world.line().await.task(tid(t)).await.unwrap(), Some(terminal));
}

/// An invocation belongs to a task of the same commit or an older one.
pub async fn invocations_need_their_task(mut world: World) {
    world.root().await;
    let [t, e] = world.mints();
    let row = |id| {
        let row = InvocationRow { task_id: tid(id), invocation: InvocationId::from_bits(7), number: 0, digest: None, answer: None };
        Write::Invocation(Box::new(row))
    };
    assert_eq!(world.refused(vec![row(t)]).await, Rejection::Missing { what: "task", id: t });
    assert_eq!(world.refused(vec![entry(e, 1), row(e)]).await, Rejection::Missing { what: "task", id: e });
    world.ok(vec![row(t), put_task(&task(t, pending())), entry(e, 1)]).await;
    world.ok(vec![row(t)]).await;
    assert_eq!(world.line().await.invocation(tid(e)).await.unwrap(), None);
}
