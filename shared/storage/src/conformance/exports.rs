//! Export and import (`protocol.md` 7).

use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream;
use picofleet_session::storage::{
    EXPORT_FORMAT, ExportLine, ExportWriter, ImportId, ImportTarget, Rejection, RequestRow, SessionCreate, SessionLine, SessionQuery,
    StorageError, Store, Tenant, Write,
};
use picofleet_session::{DocumentContent, EntryRecord, InvocationId, InvocationRow, Millis, Placement, Point, Seq, SessionId, TaskState};

use super::records::{
    completed, copy, create, create_as, create_of, did, eid, entry, entry_record, fork, input, json, latest, marker, passive, pending,
    put_submission, put_task, rebase, retire, rewindable, set, sid, task, tid,
};
use super::snapshot::{everything, same};
use super::{NOW, World, export, fence, rejection};

/// A session with records of every kind.
async fn filled(world: &mut World) {
    world.root().await;
    let [e1, e2, t, done, s, w] = world.mints();
    let data = json(r#"{"z":"ünï\u0000","a":[1,2.5,null]}"#);
    let invocation = InvocationId::from_bits(77);
    let row = InvocationRow { task_id: tid(t), invocation, number: 3, digest: Some("d".to_owned()), answer: Some(json("null")) };
    world
        .ok(vec![
            Write::Entry(Arc::new(EntryRecord { data: Some(data), ..entry_record(e1, 1) })),
            marker(e2, 1, e1),
            put_task(&task(t, pending())),
            Write::Invocation(Box::new(row)),
            put_task(&task(done, TaskState::Terminal { outcome: completed() })),
            put_submission(&input(s, 1, Some("key"))),
            put_submission(&passive(w, 1)),
            Write::Wake(Some(Millis(4_242))),
        ])
        .await;
    let [a, b, c, gone] = world.mints();
    let created = world
        .ok(vec![
            create(a, rewindable(1), r#"{"n":1}"#),
            create_as(create_of(b, "b", None, Placement::Session), r#"{"b":1}"#),
            create_as(create_of(c, "c", Some("k"), latest(1)), r#"{"c":1}"#),
            create_as(create_of(gone, "gone", None, rewindable(1)), r#"{"g":1}"#),
        ])
        .await
        .seq;
    world.ok(vec![set(a, "n", "2"), set(b, "b", "2"), set(gone, "g", "2")]).await;
    world.ok(vec![rebase(2, b, r#"{"b":3}"#), rebase(1, a, r#"{"n":3}"#), retire(gone)]).await;
    let [child, copied, e3] = world.mints();
    let request = |key: &str| {
        let row = RequestRow { key: key.to_owned(), digest: "x".to_owned(), answer: json(r#"{"ok":true}"#), at: NOW };
        Write::Request(Box::new(row))
    };
    world
        .ok(vec![
            fork(child, 1, e2),
            copy(create_of(copied, "doc", None, rewindable(child)), a, Point::At(created)),
            set(c, "c", "2"),
            entry(e3, child),
            request("r2"),
            request("r1"),
        ])
        .await;
    world.ok(vec![set(copied, "n", "9"), put_submission(&input(s, 1, Some("key")).place(eid(e1)).unwrap())]).await;
}

async fn import(store: &dyn Store, id: ImportId, lines: Vec<ExportLine>) -> Result<SessionId, StorageError> {
    let target = ImportTarget { id, tenant: Tenant("importer".to_owned()), at: Millis(NOW.0 + 5) };
    let record = store.import(target, stream::iter(lines.into_iter().map(Ok)).boxed()).await?;
    assert_eq!(record.tenant, Tenant("importer".to_owned()));
    assert_eq!(store.session(record.id).await.unwrap(), Some(record.clone()));
    Ok(record.id)
}

/// The same lines with their count and hash made anew.
fn sealed(lines: &[ExportLine]) -> Vec<ExportLine> {
    let mut writer = ExportWriter::default();
    let mut lines: Vec<_> = lines.iter().filter(|line| !matches!(line, ExportLine::End { .. })).cloned().collect();
    for line in &lines {
        writer.count(line).unwrap();
    }
    lines.push(writer.end());
    lines
}

/// An export holds every kind of line, in order, and survives as text.
pub async fn an_export_is_text(mut world: World) {
    filled(&mut world).await;
    let lines = world.export().await;
    let ExportLine::Session(SessionLine { format, id, seq, next_id, wake, .. }) = &lines[0] else { panic!("{:?}", lines[0]) };
    assert_eq!((*format, *id, *wake), (EXPORT_FORMAT, world.session, Some(Millis(4_242))));
    assert_eq!((*seq, *next_id), (world.head.seq, world.head.next_id));
    let texts: Vec<_> = lines.iter().map(|line| line.to_text().unwrap()).collect();
    let parsed: Vec<_> = texts.iter().map(|text| ExportLine::from_text(text).unwrap()).collect();
    assert_eq!(parsed, lines);
    assert_eq!(sealed(&lines), lines);
    for kind in ["session", "conversation", "entry", "task", "submission", "document", "content", "request", "end"] {
        let head = format!(r#"{{"type":"{kind}""#);
        assert!(texts.iter().any(|text| text.starts_with(head.as_bytes())), "no line of {kind}");
    }
}

/// An import reads as the exported session, under a new id and under its own.
pub async fn an_import_reads_as_the_export(mut world: World) {
    filled(&mut world).await;
    let lines = world.export().await;
    let (below, newest) = (world.head.next_id, world.head.seq);
    let store = world.store().await;
    let original = export(&*store, world.session).await;
    assert_eq!(lines[1..lines.len() - 1], original[1..original.len() - 1]);
    let before = everything(&*store.reader(world.session).await.unwrap(), below, newest, &["key", "r1", "r2", "r3"]).await;
    let new = import(&*store, ImportId::New, lines.clone()).await.unwrap();
    assert_ne!(new, world.session);
    let elsewhere = world.another_store().await;
    let same_id = import(&*elsewhere, ImportId::Keep, lines.clone()).await.unwrap();
    assert_eq!(same_id, world.session);
    assert_eq!(export(&*elsewhere, same_id).await, lines);
    let store = world.store().await;
    for (store, id) in [(&store, new), (&elsewhere, same_id)] {
        let reader = store.reader(id).await.unwrap();
        let head = reader.head().await.unwrap();
        assert_eq!((head.seq, head.next_id), (newest, below));
        same(&before, &everything(&*reader, below, newest, &["key", "r1", "r2", "r3"]).await);
        let exported = export(&**store, id).await;
        assert_eq!(exported[1..exported.len() - 1], lines[1..lines.len() - 1]);
    }
}

/// A retired document without history, and content below a base that nobody can read, are in no export; whether maintenance came by
/// makes no difference.
pub async fn an_export_leaves_out_what_nobody_can_read(mut world: World) {
    world.root().await;
    let t = world.mint();
    let [a, b, c] = world.mints();
    let creates = [(a, Placement::Task { id: tid(t) }), (b, Placement::Session), (c, rewindable(1))];
    world
        .ok(creates.map(|(id, placement)| create(id, placement, r#"{"n":1}"#)).into_iter().chain([put_task(&task(t, pending()))]).collect())
        .await;
    world.ok(vec![retire(a), set(b, "n", "2"), retire(c)]).await;
    let d = world.mint();
    world.ok(vec![rebase(1, b, r#"{"n":3}"#), create(d, rewindable(1), "{}"), retire(d)]).await;
    let before = world.export().await;
    let documents: Vec<_> =
        before.iter().filter_map(|line| if let ExportLine::Document(record) = line { Some(record.create.id) } else { None }).collect();
    assert_eq!(documents, [did(b), did(c)]);
    let contents = before.iter().filter(|line| matches!(line, ExportLine::Content { document, .. } if *document == did(b)));
    assert_eq!(contents.count(), 1);
    let store = world.store().await;
    while store.maintain(1_000, NOW).await.unwrap().more {}
    let after = export(&*store, world.session).await;
    assert_eq!(before[1..before.len() - 1], after[1..after.len() - 1]);
    import(&*world.another_store().await, ImportId::Keep, after).await.unwrap();
}

/// A look at sessions as they should be, made or imported, finds nothing.
pub async fn sound_sessions_are_examined_without_a_finding(mut world: World) {
    filled(&mut world).await;
    let lines = world.export().await;
    let store = world.store().await;
    import(&*store, ImportId::New, lines).await.unwrap();
    let store = world.store().await;
    assert_eq!(store.examine().await.unwrap(), []);
    while store.maintain(1_000, NOW).await.unwrap().more {}
    assert_eq!(store.examine().await.unwrap(), []);
}

/// An imported session goes on: opened, committed to, woken, exported again.
pub async fn an_imported_session_goes_on(mut world: World) {
    filled(&mut world).await;
    let lines = world.export().await;
    let store = world.another_store().await;
    let id = import(&*store, ImportId::Keep, lines).await.unwrap();
    let line = store.open(id, fence()).await.unwrap();
    let head = line.opened();
    assert_eq!((head.seq, head.next_id), (world.head.seq.next(), world.head.next_id));
    let e = head.next_id;
    let commit = picofleet_session::storage::Commit {
        token: picofleet_session::CommitToken::random(),
        at: NOW,
        next_id: e + 1,
        writes: vec![entry(e, 1)],
    };
    line.commit(picofleet_session::storage::Batch { expect: (head.seq, head.token), commits: vec![commit] }).await.unwrap();
    assert!(line.entry(None, eid(e)).await.unwrap().is_some());
    assert!(line.submission_by_request(super::records::cid(1), "key".to_owned()).await.unwrap().is_some());
    let due = store.due(0..store.partitions().get(), Millis(4_242), 10, None).await.unwrap();
    assert!(due.items.iter().any(|wake| wake.session == id));
    let again = import(&*store, ImportId::Keep, export(&*store, id).await).await;
    assert_eq!(rejection(again), Rejection::SessionExists { session: id });
}

/// A deleted session can be imported again under its id once its rows are gone.
pub async fn a_deleted_session_comes_back_by_import(mut world: World) {
    filled(&mut world).await;
    let lines = world.export().await;
    let store = world.store().await;
    store.delete(world.session, NOW).await.unwrap();
    while store.maintain(1_000, NOW).await.unwrap().more {}
    let id = import(&*store, ImportId::Keep, lines.clone()).await.unwrap();
    assert_eq!(export(&*store, id).await, lines);
    let request = SessionCreate { id, ..SessionCreate::new(NOW) };
    assert!(store.create(request).await.unwrap().existed);
}

/// Lines that are missing, repeated, swapped, cut off or changed are refused, and nothing is there afterwards.
pub async fn damaged_exports_are_refused(mut world: World) {
    filled(&mut world).await;
    let lines = world.export().await;
    let store = world.another_store().await;
    for at in 0..lines.len() {
        let mut missing = lines.clone();
        missing.remove(at);
        let mut repeated = lines.clone();
        repeated.insert(at, lines[at].clone());
        let mut swapped = lines.clone();
        swapped.swap(at, (at + 1) % lines.len());
        for damaged in [missing, repeated, swapped, lines[..at].to_vec()] {
            refused(&store, damaged).await;
        }
    }
    let mut changed = lines.clone();
    let [ExportLine::Session(session), ..] = &mut changed[..] else { unreachable!() };
    session.metadata = json(r#"{"other":1}"#);
    refused(&store, changed).await;
    let failing = stream::iter(vec![Ok(lines[0].clone()), Err(StorageError::Closed)]).boxed();
    let target = ImportTarget { id: ImportId::New, tenant: Tenant::default(), at: NOW };
    assert!(matches!(store.import(target, failing).await, Err(StorageError::Closed)));
    assert_eq!(store.sessions(SessionQuery::default(), 10, None).await.unwrap().items, []);
    import(&*store, ImportId::Keep, lines).await.unwrap();
}

async fn refused(store: &Arc<dyn Store>, lines: Vec<ExportLine>) {
    let target = ImportTarget { id: ImportId::Keep, tenant: Tenant::default(), at: NOW };
    let outcome = store.import(target, stream::iter(lines.clone().into_iter().map(Ok)).boxed()).await;
    assert!(matches!(rejection(outcome), Rejection::Import { .. }), "{lines:#?}");
    assert_eq!(store.sessions(SessionQuery::default(), 10, None).await.unwrap().items, []);
    assert_eq!(store.session(session_of(&lines)).await.unwrap(), None);
}

fn session_of(lines: &[ExportLine]) -> SessionId {
    let session = lines.iter().find_map(|line| if let ExportLine::Session(session) = line { Some(session.id) } else { None });
    session.unwrap_or_else(SessionId::random)
}

type Change = (&'static str, fn(&mut ExportLine) -> bool);

/// Changes that make a line contradict the others; each says whether the line was of its kind.
fn changes() -> [Change; 10] {
    [
        ("an id that was not minted", |line| entry_line(line, |_, entry| entry.id = eid(900))),
        ("an id of a conversation", |line| entry_line(line, |_, entry| entry.id = eid(1))),
        ("a commit that was not made", |line| entry_line(line, |seq, _| *seq = Seq(seq.0 + 1_000))),
        ("another format", |line| session_line(line, |session| session.format += 1)),
        ("a next id below the records", |line| session_line(line, |session| session.next_id = 3)),
        ("another task's invocation", |line| match line {
            ExportLine::Task { invocation: Some(row), .. } => {
                row.task_id = tid(row.task_id.get() + 1);
                true
            }
            _ => false,
        }),
        ("content of no document", |line| content_line(line, |document, _, _| *document = did(2))),
        ("a first content that is no base", |line| {
            content_line(line, |_, _, content| *content = DocumentContent::Delta { version: 1, ops: Vec::new().into() })
        }),
        ("a delta of another version", |line| {
            content_line(line, |_, _, content| {
                if let DocumentContent::Delta { version, .. } = content {
                    *version += 1;
                }
            }) && matches!(line, ExportLine::Content { content: DocumentContent::Delta { .. }, .. })
        }),
        ("a base that is no object", |line| {
            content_line(line, |_, _, content| *content = DocumentContent::Base { version: 1, value: json("[]") })
        }),
    ]
}

/// Lines that contradict each other are refused also where their hash is right.
pub async fn contradicting_exports_are_refused(mut world: World) {
    filled(&mut world).await;
    let lines = world.export().await;
    let store = world.another_store().await;
    for (what, change) in changes() {
        let mut damaged = lines.clone();
        assert!(damaged.iter_mut().any(change), "{what}: no such line");
        let target = ImportTarget { id: ImportId::Keep, tenant: Tenant::default(), at: NOW };
        let outcome = store.import(target, stream::iter(sealed(&damaged).into_iter().map(Ok)).boxed()).await;
        assert!(matches!(rejection(outcome), Rejection::Import { .. }), "{what}");
    }
    let two: Vec<_> = lines.iter().filter(|line| !matches!(line, ExportLine::Content { .. })).cloned().collect();
    refused(&store, sealed(&two)).await;
    let doubled = lines.iter().cloned().map(|mut line| {
        if let ExportLine::Submission(record) = &mut line {
            record.request_id = Some("key".to_owned());
        }
        line
    });
    refused(&store, sealed(&doubled.collect::<Vec<_>>())).await;
    let moved = lines.iter().cloned().map(|mut line| {
        if let ExportLine::Document(record) = &mut line
            && record.retired_at.is_none()
        {
            record.create = create_of(record.create.id.get(), "one", None, Placement::Session);
        }
        line
    });
    refused(&store, sealed(&moved.collect::<Vec<_>>())).await;
    for at in 1..lines.len() - 2 {
        let mut swapped = lines.clone();
        swapped.swap(at, at + 1);
        refused(&store, sealed(&swapped)).await;
    }
    import(&*store, ImportId::Keep, sealed(&lines)).await.unwrap();
}

fn session_line(line: &mut ExportLine, change: impl FnOnce(&mut SessionLine)) -> bool {
    let ExportLine::Session(session) = line else { return false };
    change(session);
    true
}

fn entry_line(line: &mut ExportLine, change: impl FnOnce(&mut Seq, &mut EntryRecord)) -> bool {
    let ExportLine::Entry { seq, entry } = line else { return false };
    change(seq, entry);
    true
}

fn content_line(line: &mut ExportLine, change: impl FnOnce(&mut picofleet_session::DocumentId, &mut Seq, &mut DocumentContent)) -> bool {
    let ExportLine::Content { document, seq, content } = line else { return false };
    change(document, seq, content);
    true
}

/// An export shows one sequence: what is committed meanwhile is not in it.
pub async fn an_export_shows_one_sequence(mut world: World) {
    filled(&mut world).await;
    let line = world.line().await;
    let store = world.same_store();
    let before = export(&*store, world.session).await;
    let mut running = store.export(world.session).await.unwrap();
    let first = running.next().await.unwrap().unwrap();
    let [e, s] = world.mints();
    let tasks = line.scan_tasks(picofleet_session::storage::TaskQuery::default(), 1, None).await.unwrap().items;
    let changed = picofleet_session::TaskRecord { abort_requested: true, ..tasks[0].clone() };
    let writes = vec![entry(e, 1), put_task(&changed), put_submission(&passive(s, 1)), Write::Wake(None)];
    line.commit(world.batch(vec![world.commit_of(writes)])).await.unwrap();
    let rest: Vec<_> = running.map(Result::unwrap).collect().await;
    assert_eq!(std::iter::once(first).chain(rest).collect::<Vec<_>>(), before);
    assert!(line.submission(sid(s)).await.unwrap().is_some());
}

/// A delete meanwhile ends an export with an error.
pub async fn a_delete_ends_a_running_export(mut world: World) {
    world.root().await;
    let writes = (0..3_000).map(|_| entry(world.mint(), 1)).collect();
    world.ok(writes).await;
    let store = world.store().await;
    let mut running = store.export(world.session).await.unwrap();
    running.next().await.unwrap().unwrap();
    store.delete(world.session, NOW).await.unwrap();
    let mut last = None;
    while let Some(line) = running.next().await {
        last = Some(line);
    }
    assert!(matches!(last, Some(Err(_))), "{last:?}");
}
