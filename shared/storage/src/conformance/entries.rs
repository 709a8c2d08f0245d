//! Conversations and entries: scans, ancestry, markers (sections 2.1 and 10).

use picofleet_delta::Json;
use picofleet_session::storage::{
    ConversationQuery, Cursor, DocumentQuery, EntryQuery, PAGE_MAX, Page, SessionCreate, SessionQuery, StorageError, SubmissionQuery,
    TaskQuery,
};
use picofleet_session::{EntryId, Placement, Point};

use super::records::{
    all, cid, conversation, create_as, create_of, eid, entries, entry, entry_record, fork, marker, owned, passive, pending, put_submission,
    put_task, task, tid,
};
use super::{NOW, World};

/// Paging one by one gives what one page gives, and a limit of 0 still gets on.
pub async fn s006_every_limit_gives_the_same_items(mut world: World) {
    world.root().await;
    let ids: [i64; 5] = world.mints();
    world.ok(ids.iter().map(|id| entry(*id, 1)).collect()).await;
    let line = world.line().await;
    let newest_first: Vec<i64> = ids.iter().rev().copied().collect();
    for limit in [1, 2, 3, 5, PAGE_MAX, u32::MAX] {
        let found = all(limit, |limit, cursor| line.scan_entries(EntryQuery::all(cid(1)), limit, cursor)).await;
        assert_eq!(found.iter().map(|entry| entry.id.get()).collect::<Vec<_>>(), newest_first, "limit {limit}");
    }
    let (one, next) = entries(&*line, EntryQuery::all(cid(1)), 0, None).await;
    assert_eq!(one, [ids[4]]);
    let (rest, next) = entries(&*line, EntryQuery::all(cid(1)), 4, next).await;
    assert_eq!((rest.len(), next), (4, None));
}

/// A page has at most the largest size.
pub async fn s006_a_page_has_a_largest_size(mut world: World) {
    world.root().await;
    let count = PAGE_MAX as usize + 1;
    let writes = (0..count).map(|_| entry(world.mint(), 1)).collect();
    world.ok(writes).await;
    let line = world.line().await;
    let (first, next) = entries(&*line, EntryQuery::all(cid(1)), u32::MAX, None).await;
    assert_eq!(first.len(), PAGE_MAX as usize);
    let (rest, next) = entries(&*line, EntryQuery::all(cid(1)), u32::MAX, next).await;
    assert_eq!((rest.len(), next), (1, None));
}

/// A page goes on where it ended: what came meanwhile does not appear.
pub async fn s007_new_entries_do_not_enter_a_running_scan(mut world: World) {
    world.root().await;
    let [o, m, n] = world.mints();
    world.ok(vec![entry(o, 1), entry(m, 1), entry(n, 1)]).await;
    let (first, next) = entries(&*world.line().await, EntryQuery::all(cid(1)), 2, None).await;
    assert_eq!(first, [n, m]);
    let newer = world.mint();
    world.ok(vec![entry(newer, 1)]).await;
    let (rest, next) = entries(&*world.line().await, EntryQuery::all(cid(1)), 2, Some(next.unwrap())).await;
    assert_eq!((rest, next), (vec![o], None));
}

/// Conversations by the conversation and by the task that own them.
pub async fn s008_conversations_by_their_owner(mut world: World) {
    world.root().await;
    let [other, t1, t2, t3, a, b, c, d] = world.mints();
    let elsewhere = picofleet_session::TaskRecord { conversation_id: cid(other), ..task(t3, pending()) };
    world
        .ok(vec![
            conversation(other),
            put_task(&task(t1, pending())),
            put_task(&task(t2, pending())),
            put_task(&elsewhere),
            owned(d, (1, t1)),
            owned(a, (1, t1)),
            owned(b, (1, t2)),
            owned(c, (other, t3)),
        ])
        .await;
    let line = world.line().await;
    for (owner_conversation_id, owner_task_id, expected) in [
        (None, None, vec![1, other, a, b, c, d]),
        (Some(1), None, vec![a, b, d]),
        (Some(other), None, vec![c]),
        (None, Some(t1), vec![a, d]),
        (Some(1), Some(t2), vec![b]),
        (Some(other), Some(t2), vec![]),
        (Some(1), Some(t3), vec![]),
    ] {
        let query = ConversationQuery { owner_conversation_id: owner_conversation_id.map(cid), owner_task_id: owner_task_id.map(tid) };
        for limit in [1, 2, 10] {
            let found = all(limit, |limit, cursor| line.scan_conversations(query, limit, cursor)).await;
            assert_eq!(found.iter().map(|record| record.id.get()).collect::<Vec<_>>(), expected, "{query:?} by {limit}");
        }
    }
}

/// The conversations and entries of S009.
struct Forks {
    c: i64,
    g: i64,
    r1: i64,
    r2: i64,
    r3: i64,
    r4: i64,
    c1: i64,
    c2: i64,
    c3: i64,
    g1: i64,
    g2: i64,
}

async fn forks(world: &mut World) -> Forks {
    world.root().await;
    let [r1, r2, r3] = world.mints();
    world.ok(vec![entry(r1, 1), marker(r2, 1, r1), entry(r3, 1)]).await;
    let [c, c1, c2] = world.mints();
    world.ok(vec![fork(c, 1, r2), entry(c1, c), entry(c2, c)]).await;
    let r4 = world.mint();
    world.ok(vec![entry(r4, 1)]).await;
    let [g, g1, g2] = world.mints();
    world.ok(vec![fork(g, c, c1), marker(g1, g, g1), entry(g2, g)]).await;
    let c3 = world.mint();
    world.ok(vec![entry(c3, c)]).await;
    Forks { c, g, r1, r2, r3, r4, c1, c2, c3, g1, g2 }
}

/// A fork sees its parents only up to where it left them.
pub async fn s009_a_scan_applies_every_cap(mut world: World) {
    let f = forks(&mut world).await;
    let mut pages = Vec::new();
    let mut cursor = None;
    loop {
        let (ids, next) = entries(&*world.line().await, EntryQuery::all(cid(f.g)), 2, cursor).await;
        pages.push(ids);
        cursor = next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(pages, [vec![f.g2, f.g1], vec![f.c1, f.r2], vec![f.r1]]);
    let line = world.line().await;
    let (of_c, _) = entries(&*line, EntryQuery::all(cid(f.c)), 10, None).await;
    assert_eq!(of_c, [f.c3, f.c2, f.c1, f.r2, f.r1]);
    let (of_root, _) = entries(&*line, EntryQuery::all(cid(1)), 10, None).await;
    assert_eq!(of_root, [f.r4, f.r3, f.r2, f.r1]);
}

/// The newest visible entry with a head, and ranges of entries.
pub async fn s010_markers_and_ranges(mut world: World) {
    let f = forks(&mut world).await;
    let line = world.line().await;
    let newest = async |conversation, at: Option<i64>| {
        let found = line.latest_head_marker(cid(conversation), at.map(eid)).await.unwrap();
        found.map(|entry| (entry.id.get(), entry.head.map(EntryId::get)))
    };
    assert_eq!(newest(f.g, None).await, Some((f.g1, Some(f.g1))));
    assert_eq!(newest(f.g, Some(f.g1)).await, Some((f.g1, Some(f.g1))));
    assert_eq!(newest(f.g, Some(f.c1)).await, Some((f.r2, Some(f.r1))));
    assert_eq!(newest(f.g, Some(f.r1)).await, None);
    assert_eq!(newest(f.c, None).await, Some((f.r2, Some(f.r1))));
    let range =
        |min: i64, max: Option<i64>| EntryQuery { conversation_id: cid(f.g), min_entry_id: Some(eid(min)), max_entry_id: max.map(eid) };
    assert_eq!(entries(&*line, range(f.g1, None), 10, None).await.0, [f.g2, f.g1]);
    assert_eq!(entries(&*line, range(f.r1, Some(f.c1)), 10, None).await.0, [f.c1, f.r2, f.r1]);
    assert_eq!(entries(&*line, range(f.c1, Some(f.r1)), 10, None).await.0, Vec::<i64>::new());
    let paged = all(1, |limit, cursor| line.scan_entries(range(f.r2, Some(f.g1)), limit, cursor)).await;
    assert_eq!(paged.iter().map(|entry| entry.id.get()).collect::<Vec<_>>(), [f.g1, f.c1, f.r2]);
}

/// An entry is found by its id, and through a conversation where it is visible.
pub async fn s011_an_entry_is_visible_through_its_descendants(mut world: World) {
    let f = forks(&mut world).await;
    let line = world.line().await;
    let (record, seq) = line.entry(None, eid(f.r1)).await.unwrap().unwrap();
    assert_eq!(record, entry_record(f.r1, 1));
    let (_, second) = line.entry(None, eid(f.r2)).await.unwrap().unwrap();
    let (_, later) = line.entry(None, eid(f.c1)).await.unwrap().unwrap();
    assert!(seq == second && second < later, "entries of one commit have its sequence");
    for (conversation, id, visible) in [
        (f.g, f.r1, true),
        (f.g, f.c1, true),
        (f.g, f.g2, true),
        (f.c, f.c2, true),
        (f.g, f.r3, false),
        (f.g, f.r4, false),
        (f.g, f.c2, false),
        (1, f.g1, false),
        (f.c, f.r3, false),
    ] {
        let found = line.entry(Some(cid(conversation)), eid(id)).await.unwrap();
        assert_eq!(found.is_some(), visible, "{id} through {conversation}");
    }
    assert_eq!(line.entry(Some(cid(f.g)), eid(f.r1)).await.unwrap().unwrap(), (record, seq));
    assert_eq!(line.entry(None, eid(900)).await.unwrap(), None);
    assert_eq!(line.entry(Some(cid(f.g)), eid(900)).await.unwrap(), None);
    let unknown = |error: Option<StorageError>| {
        assert!(matches!(error, Some(StorageError::UnknownConversation { conversation }) if conversation == cid(901)), "{error:?}");
    };
    unknown(line.entry(Some(cid(901)), eid(f.r1)).await.err());
    unknown(line.scan_entries(EntryQuery::all(cid(901)), 10, None).await.err());
    unknown(line.latest_head_marker(cid(901), None).await.err());
}

/// A fork of a child at an entry of its grandparent sees nothing of the child.
pub async fn s011_the_cap_is_the_least_along_the_forks(mut world: World) {
    let f = forks(&mut world).await;
    let [h, h1] = world.mints();
    world.ok(vec![fork(h, f.c, f.r1), entry(h1, h)]).await;
    let line = world.line().await;
    assert_eq!(entries(&*line, EntryQuery::all(cid(h)), 10, None).await.0, [h1, f.r1]);
    assert_eq!(line.entry(Some(cid(h)), eid(f.c1)).await.unwrap(), None);
    assert_eq!(line.entry(Some(cid(h)), eid(f.r2)).await.unwrap(), None);
    assert!(line.entry(Some(cid(h)), eid(f.r1)).await.unwrap().is_some());
    assert_eq!(line.latest_head_marker(cid(h), None).await.unwrap(), None);
}

/// The order of a scan is that of the ids, and its cursor is plain JSON.
pub async fn x002_a_cursor_survives_as_json(mut world: World) {
    let [two, three] = world.mints();
    world.ok(vec![conversation(three), conversation(two), conversation(1)]).await;
    let query = ConversationQuery::default();
    let page = world.line().await.scan_conversations(query, 2, None).await.unwrap();
    assert_eq!(page.items.iter().map(|record| record.id.get()).collect::<Vec<_>>(), [1, two]);
    let text = page.next.unwrap().0.to_string();
    let cursor = Cursor(Json::parse(text.as_bytes()).unwrap());
    let rest = world.line().await.scan_conversations(query, 2, Some(cursor)).await.unwrap();
    assert_eq!(rest.items.iter().map(|record| record.id.get()).collect::<Vec<_>>(), [three]);
    assert_eq!(rest.next, None);
}

/// What is no cursor of a scan is refused.
pub async fn x002_a_damaged_cursor_is_refused(mut world: World) {
    world.root().await;
    let line = world.line().await;
    for text in ["null", "{}", "[]", r#"{"entries":"x"}"#, r#"{"other":3}"#] {
        let cursor = Cursor(super::records::json(text));
        let error = line.scan_entries(EntryQuery::all(cid(1)), 2, Some(cursor)).await.err();
        assert!(matches!(error, Some(StorageError::BadCursor { .. })), "{text}: {error:?}");
    }
}

/// One page of each scan of a session, with its cursor.
async fn pages(
    world: &mut World,
    limit: u32,
    cursor: Option<Cursor>,
) -> [(&'static str, Result<(usize, Option<Cursor>), StorageError>); 5] {
    let line = world.line().await;
    let scope = picofleet_session::DocumentScope::Session;
    let documents = DocumentQuery { scope, at: Point::Current, kind: None };
    [
        ("conversations", counted(line.scan_conversations(ConversationQuery::default(), limit, cursor.clone()).await)),
        ("entries", counted(line.scan_entries(EntryQuery::all(cid(1)), limit, cursor.clone()).await)),
        ("tasks", counted(line.scan_tasks(TaskQuery::default(), limit, cursor.clone()).await)),
        ("submissions", counted(line.scan_submissions(SubmissionQuery::default(), limit, cursor.clone()).await)),
        ("documents", counted(line.scan_documents(documents, limit, cursor).await)),
    ]
}

fn counted<T>(page: Result<Page<T>, StorageError>) -> Result<(usize, Option<Cursor>), StorageError> {
    page.map(|page| (page.items.len(), page.next))
}

/// Two records of each kind.
async fn two_of_each(world: &mut World) {
    world.root().await;
    let [c, e1, e2, t1, t2, s1, s2, d1, d2] = world.mints();
    let documents = [d1, d2].map(|id| create_as(create_of(id, &format!("k{id}"), None, Placement::Session), "{}"));
    let writes = [conversation(c), entry(e1, 1), entry(e2, 1), put_task(&task(t1, pending())), put_task(&task(t2, pending()))];
    let submissions = [s1, s2].map(|id| put_submission(&passive(id, 1)));
    world.ok(writes.into_iter().chain(submissions).chain(documents).collect()).await;
}

/// A cursor goes on with the scan that it is of; another scan refuses it, also where its key would fit.
pub async fn x003_a_cursor_belongs_to_its_scan(mut world: World) {
    two_of_each(&mut world).await;
    for (scan, page) in pages(&mut world, 1, None).await {
        let (1, Some(cursor)) = page.unwrap() else { panic!("{scan}: the first of two pages") };
        for (other, page) in pages(&mut world, 1, Some(cursor.clone())).await {
            match page {
                Ok(rest) => assert_eq!((scan, rest), (other, (1, None)), "the second of two pages"),
                Err(error) => assert!(scan != other && matches!(error, StorageError::BadCursor { .. }), "{scan} in {other}: {error}"),
            }
        }
    }
}

/// A page that holds exactly the last items ends its scan; so does a page without items.
pub async fn x006_a_full_last_page_has_no_next(mut world: World) {
    for (scan, page) in pages(&mut world, 2, None).await {
        // Without any record there is no conversation to scan the entries of.
        assert!(matches!(page, Ok((0, None)) | Err(StorageError::UnknownConversation { .. })), "{scan}");
    }
    two_of_each(&mut world).await;
    for (scan, page) in pages(&mut world, 2, None).await {
        assert_eq!(page.unwrap(), (2, None), "{scan}");
    }
    let store = world.store().await;
    store.create(SessionCreate::new(NOW)).await.unwrap();
    for (limit, more) in [(1, true), (2, false), (3, false)] {
        let sessions = store.sessions(SessionQuery::default(), limit, None).await.unwrap();
        assert_eq!(sessions.next.is_some(), more, "sessions, limit {limit}");
    }
}
