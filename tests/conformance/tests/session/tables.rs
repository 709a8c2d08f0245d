//! Tables in a transaction: reads before writes, owners, tasks, submissions (scenarios S052-S057, X025-X027).

use std::sync::{Arc, Mutex};

use picofleet_conformance::World;
use picofleet_conformance::documents::{
    AS_OF, IN_SESSION, IN_TASK, Note, append, append_plain, child, commit, completed, json, put_state, task, task_record,
};
use picofleet_delta::Json;
use picofleet_session::storage::{ConversationQuery, EntryQuery, SubmissionQuery, TaskQuery, Write};
use picofleet_session::{
    Bound, CommitError, ConversationId, ConversationOwner, ConversationOwnership, DraftHead, EntryDraft, EntryId, EntryKind, InputState,
    Session, Settlement, SubmissionId, SubmissionRecord, SubmissionState, SubmissionStatus, TaskCreate, TaskId, TaskRecord, TaskState, Tx,
    TxError, Violation, WriteState,
};

scenarios! {
    s052_tables_are_read_before_they_are_written,
    s052_reads_show_what_is_committed,
    s053_lookups_of_the_kernel_work_after_table_writes,
    s054_a_child_lives_in_its_owners_conversation,
    s054_what_a_commit_is_bound_to,
    s055_an_owner_must_be_able_to_own,
    s055_an_owner_is_judged_on_its_final_record,
    s056_an_owner_of_the_same_transaction,
    s057_a_task_keeps_its_conversation_and_owner,
    x025_listeners_see_each_complete_commit_on_the_line,
    x025_publications_chain,
    x026_settlement,
    x027_placement,
    x027_the_root_is_made_once,
}

const OWNERLESS: ConversationOwnership = ConversationOwnership::Ownerless;

async fn new_task(session: &Session, conversation: ConversationId) -> TaskId {
    commit(session, async |tx| tx.create_task_raw(task(conversation)).await).await.unwrap()
}

async fn submission(session: &Session, conversation: ConversationId, state: SubmissionState) -> SubmissionRecord {
    Arc::unwrap_or_clone(commit(session, async |tx| tx.create_submission(conversation, None, state).await).await.unwrap())
}

const QUEUED_INPUT: SubmissionState = SubmissionState::Input(InputState::Queued);
const QUEUED_WRITE: SubmissionState = SubmissionState::Write(WriteState::Queued);

/// Every table read, by name.
async fn reads(tx: &Tx, conversation: ConversationId, id: TaskId) -> Vec<(&'static str, Result<(), TxError>)> {
    const KIND: EntryKind<Json> = EntryKind::new("t.entry");
    let entry = EntryId::new(3).unwrap();
    let done = |name, result: Result<(), TxError>| (name, result);
    vec![
        done("conversation", tx.conversation(conversation).await.map(|_| ())),
        done("scan_conversations", tx.scan_conversations(ConversationQuery::default(), 1, None).await.map(|_| ())),
        done("entry", tx.entry(entry).await.map(|_| ())),
        done("entry_as", tx.entry_as(&KIND, entry).await.map(|_| ())),
        done("scan_entries", tx.scan_entries(EntryQuery::all(conversation), 1, None).await.map(|_| ())),
        done("latest_head_marker", tx.latest_head_marker(conversation).await.map(|_| ())),
        done("task", tx.task(id).await.map(|_| ())),
        done("scan_tasks", tx.scan_tasks(TaskQuery::default(), 1, None).await.map(|_| ())),
        done("submission", tx.submission(SubmissionId::new(4).unwrap()).await.map(|_| ())),
        done("submission_by_request", tx.submission_by_request(conversation, "r").await.map(|_| ())),
        done("scan_submissions", tx.scan_submissions(SubmissionQuery::default(), 1, None).await.map(|_| ())),
    ]
}

#[derive(Clone, Copy, Debug)]
enum TableWrite {
    AppendEntry,
    CreateConversation,
    ForkConversation,
    CreateTask,
    PutTask,
    CreateSubmission,
    PlaceSubmission,
    SettleSubmission,
}

async fn s052_tables_are_read_before_they_are_written(mut world: World) {
    use TableWrite::{
        AppendEntry, CreateConversation, CreateSubmission, CreateTask, ForkConversation, PlaceSubmission, PutTask, SettleSubmission,
    };
    let root = world.root();
    let entry = append_plain(&world.session, root).await.id;
    let id = new_task(&world.session, root).await;
    for write in
        [AppendEntry, CreateConversation, ForkConversation, CreateTask, PutTask, CreateSubmission, PlaceSubmission, SettleSubmission]
    {
        let queued = submission(&world.session, root, QUEUED_INPUT).await.id;
        world.step().await;
        commit(&world.session, async |tx| {
            for (name, result) in reads(tx, root, id).await {
                assert!(result.is_ok(), "{name} before {write:?}: {result:?}");
            }
            // Documents and what is no table do not count.
            tx.doc(&AS_OF, root).await?.edit(|note| note.n = 1)?;
            tx.set_wake(None);
            let record = tx.task(id).await?.unwrap();
            match write {
                AppendEntry => tx.append_entry(root, EntryDraft::new("t.entry")).await.map(|_| ())?,
                CreateConversation => tx.create_conversation(OWNERLESS).await.map(|_| ())?,
                ForkConversation => tx.fork_conversation(root, entry, OWNERLESS).await.map(|_| ())?,
                CreateTask => tx.create_task_raw(task(root)).await.map(|_| ())?,
                PutTask => tx.put_task(record).await?,
                CreateSubmission => tx.create_submission(root, None, QUEUED_WRITE).await.map(|_| ())?,
                PlaceSubmission => tx.place_submission(queued, entry).await?,
                SettleSubmission => {
                    tx.settle_submission(queued, Settlement::Unanswered { reason: "withdrawn".to_owned(), detail: None }).await?;
                }
            }
            for (name, result) in reads(tx, root, id).await {
                assert!(matches!(result, Err(TxError::ReadAfterWrite)), "{name} after {write:?}: {result:?}");
            }
            // Documents stay readable and writable, with what the transaction wrote.
            let doc = tx.doc(&IN_SESSION, ()).await?;
            doc.edit(|note| note.n += 1)?;
            if !matches!(write, ForkConversation) {
                let own = tx.doc(&AS_OF, root).await?;
                assert_eq!(own.read()?.n, 1);
                own.edit(|note| note.n = 2)?;
            } else {
                tx.retire_doc(&AS_OF, root).await?;
                tx.retire_doc(&IN_SESSION, ()).await?;
            }
            Ok(())
        })
        .await
        .unwrap_or_else(|error| panic!("{write:?}: {error:?}"));
    }
    // A refused read fails its transaction only where the callback says so.
    let failed = commit(&world.session, async |tx| {
        tx.append_entry(root, EntryDraft::new("t.entry")).await?;
        tx.conversation(root).await.map(|_| ())
    })
    .await;
    assert!(matches!(failed, Err(CommitError::Tx(TxError::ReadAfterWrite))), "{failed:?}");
}

async fn s052_reads_show_what_is_committed(mut world: World) {
    const TEXT: EntryKind<String> = EntryKind::new("t.text");
    let root = world.root();
    let entry = append(&world.session, root, EntryDraft::new("t.text").data("hello")).await;
    let marker = append(&world.session, root, EntryDraft::new("t.head").head(DraftHead::Itself)).await;
    let keyed = commit(&world.session, async |tx| tx.create_submission(root, Some("r".to_owned()), QUEUED_INPUT).await).await.unwrap();
    let id = new_task(&world.session, root).await;
    world.step().await;
    commit(&world.session, async |tx| {
        assert_eq!(tx.entry(entry.id).await?.as_ref(), Some(&entry));
        assert_eq!(tx.entry_as(&TEXT, entry.id).await?.map(|typed| typed.data).as_deref(), Some("hello"));
        assert_eq!(tx.entry_as(&TEXT, marker.id).await?, None, "of another kind");
        assert_eq!(tx.entry_as(&TEXT, EntryId::new(9_999).unwrap()).await?, None);
        assert_eq!(tx.latest_head_marker(root).await?, Some(marker.clone()));
        assert_eq!(tx.submission_by_request(root, "r").await?.as_ref(), Some(&*keyed));
        assert_eq!(tx.submission(keyed.id).await?.as_ref(), Some(&*keyed));
        assert_eq!(tx.task(id).await?.map(|task| task.state), Some(TaskState::Pending { checkpoint: json(r#"{"phase":"start"}"#) }));
        let page = tx.scan_entries(EntryQuery::all(root), 1, None).await?;
        assert_eq!(page.items, std::slice::from_ref(&marker));
        assert_eq!(tx.scan_entries(EntryQuery::all(root), 9, page.next).await?.items, std::slice::from_ref(&entry));
        let unknown = tx.scan_entries(EntryQuery::all(ConversationId::new(9_999).unwrap()), 1, None).await;
        assert!(matches!(unknown, Err(TxError::Invalid(Violation::UnknownConversation { .. }))), "{unknown:?}");
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(marker.head, Some(marker.id));
}

async fn s053_lookups_of_the_kernel_work_after_table_writes(mut world: World) {
    let root = world.root();
    let id = new_task(&world.session, root).await;
    let input = submission(&world.session, root, QUEUED_INPUT).await.id;
    let write = submission(&world.session, root, QUEUED_WRITE).await.id;
    world.step().await;
    commit(&world.session, async |tx| {
        let entry = tx.append_entry(root, EntryDraft::new("t.entry")).await?.id;
        let answer = tx.append_entry(root, EntryDraft::new("t.entry")).await?.id;
        tx.place_submission(input, entry).await?;
        tx.place_submission(write, entry).await?;
        tx.settle_submission(input, Settlement::Done { answer }).await?;
        tx.doc(&IN_TASK, id).await?.edit(|note| note.n = 1)?;
        let staged = tx.create_task_raw(child(id)).await?;
        tx.doc(&IN_TASK, staged).await?.edit(|note| note.n = 2)?;
        tx.create_conversation(ConversationOwnership::Task { task_id: staged }).await?;
        tx.fork_conversation(root, EntryId::new(9_999).unwrap(), OWNERLESS).await.unwrap_err();
        Ok(())
    })
    .await
    .unwrap();
    world.step().await;
    commit(&world.session, async |tx| {
        assert_eq!(tx.submission(input).await?.unwrap().status(), SubmissionStatus::Done);
        assert_eq!(tx.submission(write).await?.unwrap().status(), SubmissionStatus::Done);
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(world.session.snapshot(&IN_TASK, id).await.unwrap().unwrap().n, 1);
}

async fn s054_a_child_lives_in_its_owners_conversation(mut world: World) {
    let root = world.root();
    let other = commit(&world.session, async |tx| tx.create_conversation(OWNERLESS).await).await.unwrap().id;
    let owner = new_task(&world.session, root).await;
    world.step().await;
    let create = async |task: TaskCreate| commit(&world.session, async |tx| tx.create_task_raw(task).await).await;
    let result = create(TaskCreate { conversation_id: Some(other), ..child(owner) }).await;
    assert!(matches!(result, Err(CommitError::Invalid(Violation::ChildConversation { .. }))), "{result:?}");
    let result = create(TaskCreate { background: true, ..child(owner) }).await;
    assert!(matches!(result, Err(CommitError::Invalid(Violation::BackgroundChild))), "{result:?}");
    let result = create(TaskCreate { conversation_id: None, ..task(root) }).await;
    assert!(matches!(result, Err(CommitError::Invalid(Violation::NoConversation))), "{result:?}");
    let result = create(task(ConversationId::new(9_999).unwrap())).await;
    assert!(matches!(result, Err(CommitError::Invalid(Violation::UnknownConversation { .. }))), "{result:?}");
    // Named rightly or not at all.
    for conversation_id in [None, Some(root)] {
        let id = create(TaskCreate { conversation_id, ..child(owner) }).await.unwrap();
        let record = task_record(&world.session, id).await.unwrap();
        assert_eq!((record.conversation_id, record.owner), (root, Some(owner)));
    }
    let id = create(TaskCreate { background: true, ..task(other) }).await.unwrap();
    let record = task_record(&world.session, id).await.unwrap();
    assert_eq!((record.conversation_id, record.owner, record.background, record.restarts), (other, None, true, 0));
}

async fn s054_what_a_commit_is_bound_to(mut world: World) {
    let root = world.root();
    let other = commit(&world.session, async |tx| tx.create_conversation(OWNERLESS).await).await.unwrap().id;
    let owner = new_task(&world.session, root).await;
    world.step().await;
    let bound = Bound { conversation: Some(other), task: Some(owner) };
    let (plain, owned, entry) = world
        .session
        .commit_bound(bound, async |tx| {
            assert_eq!((tx.bound(), tx.now()), (bound, picofleet_conformance::NOW));
            let plain = tx.create_task_raw(TaskCreate { conversation_id: None, ..task(root) }).await?;
            // The owner and not the commit says where a child lives.
            let owned = tx.create_task_raw(child(owner)).await?;
            let entry = tx.append_entry(root, EntryDraft::new("t.entry")).await?;
            Ok::<_, CommitError>((plain, owned, entry))
        })
        .await
        .unwrap();
    world.step().await;
    assert_eq!(task_record(&world.session, plain).await.unwrap().conversation_id, other);
    assert_eq!(task_record(&world.session, owned).await.unwrap().conversation_id, root);
    assert_eq!(entry.by_task_id, Some(owner));
    assert_eq!(commit(&world.session, async |tx| tx.entry(entry.id).await).await.unwrap().as_ref(), Some(&*entry));
    assert_eq!(append_plain(&world.session, root).await.by_task_id, None);
}

/// The three ways to own something.
async fn own(tx: &Tx, how: usize, root: ConversationId, at: EntryId, owner: TaskId) -> Result<(), TxError> {
    let ownership = ConversationOwnership::Task { task_id: owner };
    match how {
        0 => tx.create_conversation(ownership).await.map(|_| ()),
        1 => tx.fork_conversation(root, at, ownership).await.map(|_| ()),
        _ => tx.create_task_raw(child(owner)).await.map(|_| ()),
    }
}

const WAYS: usize = 3;

fn states() -> [(&'static str, bool, Option<TaskState>); 3] {
    [
        ("terminal", false, Some(TaskState::Terminal { outcome: completed() })),
        ("completing", false, Some(TaskState::Completing { outcome: completed() })),
        ("abort-marked", true, None),
    ]
}

fn in_state(record: &TaskRecord, marked: bool, state: Option<TaskState>) -> TaskRecord {
    TaskRecord { abort_requested: marked, state: state.unwrap_or_else(|| record.state.clone()), ..record.clone() }
}

async fn s055_an_owner_must_be_able_to_own(mut world: World) {
    let root = world.root();
    let at = append_plain(&world.session, root).await.id;
    for (name, marked, state) in states() {
        let owner = new_task(&world.session, root).await;
        let record = task_record(&world.session, owner).await.unwrap();
        commit(&world.session, async |tx| tx.put_task(in_state(&record, marked, state.clone())).await).await.unwrap();
        world.step().await;
        let _ = world.probe.batches();
        for how in 0..WAYS {
            let result = commit(&world.session, async |tx| {
                tx.append_entry(root, EntryDraft::new("t.entry")).await?;
                own(tx, how, root, at, owner).await
            })
            .await;
            let Err(CommitError::Invalid(error @ Violation::OwnerState { .. })) = result else { panic!("{name} {how}: {result:?}") };
            assert!(error.to_string().contains(&format!("is {name}")), "{error}");
        }
        assert_eq!(world.probe.batches(), [], "{name}");
    }
    let missing = TaskId::new(9_999).unwrap();
    for how in 0..WAYS {
        let result = commit(&world.session, async |tx| own(tx, how, root, at, missing).await).await;
        let Err(CommitError::Invalid(error @ Violation::UnknownTask { .. })) = result else { panic!("{how}: {result:?}") };
        assert!(error.to_string().contains("does not exist"), "{error}");
    }
}

async fn s055_an_owner_is_judged_on_its_final_record(mut world: World) {
    let root = world.root();
    let at = append_plain(&world.session, root).await.id;
    let owner = new_task(&world.session, root).await;
    world.step().await;
    let record = task_record(&world.session, owner).await.unwrap();
    let _ = world.probe.batches();
    for (name, marked, state) in states() {
        for how in 0..WAYS {
            // A task can't create owned work in the commit that finishes it, whatever comes first.
            for own_first in [true, false] {
                let result = commit(&world.session, async |tx| {
                    if own_first {
                        own(tx, how, root, at, owner).await?;
                    }
                    tx.put_task(in_state(&record, marked, state.clone())).await?;
                    if !own_first {
                        own(tx, how, root, at, owner).await?;
                    }
                    Ok(())
                })
                .await;
                assert!(matches!(result, Err(CommitError::Invalid(Violation::OwnerState { .. }))), "{name} {how}: {result:?}");
            }
        }
    }
    assert_eq!(world.probe.batches(), []);
    // What was owned before stays valid when its owner finishes.
    let owned = commit(&world.session, async |tx| {
        let owned = tx.create_task_raw(child(owner)).await?;
        tx.create_conversation(ConversationOwnership::Task { task_id: owner }).await?;
        Ok(owned)
    })
    .await
    .unwrap();
    world.step().await;
    commit(&world.session, async |tx| put_state(tx, &record, TaskState::Terminal { outcome: completed() }).await).await.unwrap();
    assert_eq!(task_record(&world.session, owned).await.unwrap().owner, Some(owner));
}

async fn s056_an_owner_of_the_same_transaction(mut world: World) {
    let other = commit(&world.session, async |tx| tx.create_conversation(OWNERLESS).await).await.unwrap().id;
    world.step().await;
    let (owner, owned, conversation) = commit(&world.session, async |tx| {
        let owner = tx.create_task_raw(task(other)).await?;
        let owned = tx.create_task_raw(child(owner)).await?;
        let conversation = tx.create_conversation(ConversationOwnership::Task { task_id: owned }).await?;
        Ok((owner, owned, conversation))
    })
    .await
    .unwrap();
    let pair = ConversationOwner { conversation_id: other, task_id: owned };
    assert_eq!(conversation.owner, Some(pair));
    world.step().await;
    assert_eq!(world.session.conversation(conversation.id).await.unwrap(), Some(conversation.clone()));
    let record = task_record(&world.session, owned).await.unwrap();
    assert_eq!((record.owner, record.conversation_id), (Some(owner), other));
    let query = ConversationQuery { owner_conversation_id: Some(other), owner_task_id: Some(owned) };
    assert_eq!(world.session.store().scan_conversations(query, 9, None).await.unwrap().items, [conversation]);
}

async fn s057_a_task_keeps_its_conversation_and_owner(mut world: World) {
    let root = world.root();
    let other = commit(&world.session, async |tx| tx.create_conversation(OWNERLESS).await).await.unwrap().id;
    let owner = new_task(&world.session, root).await;
    let id = commit(&world.session, async |tx| tx.create_task_raw(child(owner)).await).await.unwrap();
    world.step().await;
    let record = task_record(&world.session, id).await.unwrap();
    let _ = world.probe.batches();
    let put = async |record: TaskRecord| commit(&world.session, async |tx| tx.put_task(record).await).await;
    let result = put(TaskRecord { conversation_id: other, ..record.clone() }).await;
    let Err(CommitError::Invalid(error @ Violation::TaskChanged { .. })) = result else { panic!("{result:?}") };
    assert!(error.to_string().contains("cannot change conversations"), "{error}");
    let result = put(TaskRecord { owner: None, ..record.clone() }).await;
    assert!(matches!(result, Err(CommitError::Invalid(Violation::TaskChanged { .. }))), "{result:?}");
    let result = put(TaskRecord { id: TaskId::new(9_999).unwrap(), ..record.clone() }).await;
    assert!(matches!(result, Err(CommitError::Invalid(Violation::UnknownTask { .. }))), "{result:?}");
    // Also for one that the same transaction made or replaced.
    let result = commit(&world.session, async |tx| {
        let id = tx.create_task_raw(task(root)).await?;
        tx.put_task(TaskRecord { id, conversation_id: other, owner: None, ..record.clone() }).await
    })
    .await;
    assert!(matches!(result, Err(CommitError::Invalid(Violation::TaskChanged { .. }))), "{result:?}");
    assert_eq!(world.probe.batches(), []);
    assert_eq!(task_record(&world.session, id).await, Some(record));
}

async fn x025_listeners_see_each_complete_commit_on_the_line(world: World) {
    let root = world.root();
    commit(&world.session, async |tx| tx.doc(&IN_SESSION, ()).await.map(|_| ())).await.unwrap();
    let queued = submission(&world.session, root, QUEUED_WRITE).await.id;
    let state = Arc::new(world.session.document_state(&IN_SESSION, ()).await.unwrap().unwrap());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (sink, observed) = (Arc::clone(&seen), Arc::clone(&state));
    let subscription = world.session.subscribe_commits(move |publication| {
        // States come later than the listeners.
        sink.lock().unwrap().push((publication.clone(), observed.value().unwrap().get("n").cloned()));
    });
    let also = Arc::new(Mutex::new(0));
    let count = Arc::clone(&also);
    let other = world.session.subscribe_commits(move |_| *count.lock().unwrap() += 1);
    let committed = commit(&world.session, async |tx| {
        let conversation = tx.create_conversation(OWNERLESS).await?;
        let first = tx.append_entry(root, EntryDraft::new("t.entry")).await?;
        let second = tx.append_entry(conversation.id, EntryDraft::new("t.entry")).await?;
        let id = tx.create_task_raw(task(root)).await?;
        tx.place_submission(queued, first.id).await?;
        tx.doc(&IN_SESSION, ()).await?.edit(|note| note.n = 1)?;
        assert!(seen.lock().unwrap().is_empty());
        Ok((conversation, vec![first, second], id))
    })
    .await
    .unwrap();
    let (conversation, entries, id) = committed;
    let published = std::mem::take(&mut *seen.lock().unwrap());
    let [(publication, at_that_time)] = published.as_slice() else { panic!("{published:?}") };
    assert_eq!(*at_that_time, Some(Json::from(0)));
    assert_eq!(publication.session, world.session.id());
    assert_eq!(publication.conversations, [conversation]);
    assert_eq!(publication.entries, entries);
    // One record from the transaction to storage and to whoever listens.
    let written = world.probe.writes();
    let written: Vec<_> = written.iter().filter_map(|write| if let Write::Entry(entry) = write { Some(entry) } else { None }).collect();
    assert_eq!(written.len(), entries.len());
    for ((published, made), written) in publication.entries.iter().zip(&entries).zip(written) {
        assert!(Arc::ptr_eq(published, made) && Arc::ptr_eq(published, written), "an entry was copied");
    }
    assert_eq!(publication.tasks.iter().map(|task| task.id).collect::<Vec<_>>(), [id]);
    assert_eq!(publication.submissions.iter().map(|record| record.id).collect::<Vec<_>>(), [queued]);
    assert_eq!(publication.documents.len(), 1);
    assert_eq!(state.read().unwrap(), Some(Note { n: 1, ..Note::new("initial") }));
    assert_eq!(*also.lock().unwrap(), 1);
    // A disposed listener is not called; the other one goes on.
    drop(subscription);
    append_plain(&world.session, root).await;
    assert!(seen.lock().unwrap().is_empty());
    assert_eq!(*also.lock().unwrap(), 2);
    drop(other);
}

async fn x025_publications_chain(world: World) {
    let root = world.root();
    let heads = Arc::new(Mutex::new(vec![world.session.store().head().await.unwrap()]));
    let sink = Arc::clone(&heads);
    let _subscription = world.session.subscribe_commits(move |publication| {
        let mut heads = sink.lock().unwrap();
        let last = *heads.last().unwrap();
        assert_eq!(publication.previous, (last.seq, last.token));
        assert_eq!(publication.head.seq, last.seq.next());
        heads.push(publication.head);
    });
    for round in 0..5 {
        append_plain(&world.session, root).await;
        // Neither a commit without writes nor a failed one has a place in the chain.
        commit(&world.session, async |tx| tx.doc(&AS_OF, root).await?.read().map(|_| ())).await.unwrap();
        assert!(commit(&world.session, async |tx| tx.doc(&AS_OF, ConversationId::new(9_999).unwrap()).await.map(|_| ())).await.is_err());
        // One each round, and the document that the first one made.
        assert_eq!(heads.lock().unwrap().len(), round + 3);
    }
    let head = world.session.store().head().await.unwrap();
    assert_eq!(heads.lock().unwrap().last(), Some(&head));
}

async fn settle(session: &Session, id: SubmissionId, settlement: Settlement) -> Result<(), CommitError> {
    commit(session, async |tx| tx.settle_submission(id, settlement).await).await
}

async fn status(session: &Session, id: SubmissionId) -> SubmissionRecord {
    commit(session, async |tx| tx.submission(id).await).await.unwrap().unwrap()
}

async fn x026_settlement(mut world: World) {
    let root = world.root();
    let entry = append_plain(&world.session, root).await.id;
    let answer = append_plain(&world.session, root).await.id;
    let input = submission(&world.session, root, QUEUED_INPUT).await.id;
    let write = submission(&world.session, root, QUEUED_WRITE).await.id;
    let done = Settlement::Done { answer };
    let unanswered = Settlement::Unanswered { reason: "why".to_owned(), detail: Some(json(r#"{"a":1}"#)) };
    world.step().await;
    for id in [input, write] {
        let result = settle(&world.session, id, done.clone()).await;
        let Err(CommitError::Invalid(error @ Violation::NotPlacedInput { .. })) = result else { panic!("{result:?}") };
        assert!(error.to_string().contains("is not a placed input"), "{error}");
    }
    let result = settle(&world.session, SubmissionId::new(9_999).unwrap(), unanswered.clone()).await;
    assert!(matches!(result, Err(CommitError::Invalid(Violation::UnknownSubmission { .. }))), "{result:?}");
    commit(&world.session, async |tx| tx.place_submission(input, entry).await).await.unwrap();
    settle(&world.session, input, done.clone()).await.unwrap();
    settle(&world.session, write, unanswered.clone()).await.unwrap();
    world.step().await;
    let head = world.session.store().head().await.unwrap();
    // The first settlement holds and a second one writes nothing.
    for (id, settlement) in [(input, &unanswered), (input, &done), (write, &done), (write, &unanswered)] {
        settle(&world.session, id, settlement.clone()).await.unwrap();
    }
    assert_eq!(world.session.store().head().await.unwrap(), head);
    assert_eq!(status(&world.session, input).await.state, SubmissionState::Input(InputState::Done { entry, answer }));
    let reason = WriteState::Unanswered { reason: "why".to_owned(), detail: Some(json(r#"{"a":1}"#)) };
    assert_eq!(status(&world.session, write).await.state, SubmissionState::Write(reason));
    // A placed input that ends without an answer keeps its entry; a queued one has none.
    for placed in [true, false] {
        let id = submission(&world.session, root, QUEUED_INPUT).await.id;
        commit(&world.session, async |tx| {
            if placed {
                tx.place_submission(id, entry).await?;
            }
            tx.settle_submission(id, unanswered.clone()).await
        })
        .await
        .unwrap();
        let SubmissionState::Input(InputState::Unanswered { entry: kept, .. }) = status(&world.session, id).await.state else { panic!() };
        assert_eq!(kept, placed.then_some(entry));
    }
}

async fn x027_placement(mut world: World) {
    let root = world.root();
    let entry = append_plain(&world.session, root).await.id;
    let input = submission(&world.session, root, QUEUED_INPUT).await.id;
    let write = submission(&world.session, root, QUEUED_WRITE).await.id;
    world.step().await;
    let place = async |id| commit(&world.session, async |tx| tx.place_submission(id, entry).await).await;
    place(input).await.unwrap();
    place(write).await.unwrap();
    assert_eq!(status(&world.session, input).await.state, SubmissionState::Input(InputState::Placed { entry }));
    assert_eq!(status(&world.session, write).await.state, SubmissionState::Write(WriteState::Done { entry }));
    for id in [input, write] {
        let result = place(id).await;
        assert!(matches!(result, Err(CommitError::Invalid(Violation::NotQueued { .. }))), "{result:?}");
    }
    let result = place(SubmissionId::new(9_999).unwrap()).await;
    assert!(matches!(result, Err(CommitError::Invalid(Violation::UnknownSubmission { .. }))), "{result:?}");
    // One key names one submission of a conversation.
    let create = async || commit(&world.session, async |tx| tx.create_submission(root, Some("key".to_owned()), QUEUED_INPUT).await).await;
    let first = create().await.unwrap();
    let second = create().await;
    assert!(matches!(second, Err(CommitError::Rejected(_))), "{second:?}");
    assert_eq!(status(&world.session, first.id).await, *first);
}

async fn x027_the_root_is_made_once(mut world: World) {
    world.step().await;
    let result = commit(&world.session, async |tx| tx.create_root().await).await;
    assert!(matches!(result, Err(CommitError::Invalid(Violation::RootExists))), "{result:?}");
    let fresh = world.another().await;
    let result = commit(&fresh, async |tx| tx.create_root().await).await;
    assert!(matches!(result, Err(CommitError::Invalid(Violation::RootExists))), "{result:?}");
    let record = world.session.conversation(world.root()).await.unwrap().unwrap();
    assert_eq!((record.id.get(), record.parent, record.owner), (1, None, None));
}
