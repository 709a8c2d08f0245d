//! Commits per second of the SQLite backend: `sqlite_commits [sessions] [seconds] [power|process] [file]`.
//!
//! Each session is one task that commits in a loop: one entry, one document delta, one new task.

#![allow(clippy::print_stdout, clippy::expect_used, reason = "a tool for people who measure")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use picofleet_delta::{Json, Op, ops_from_json};
use picofleet_session::storage::{Batch, Commit, Fence, Head, SessionCreate, SessionStore, Store, Write};
use picofleet_session::{
    CommitToken, ConversationPolicy, ConversationRecord, DocumentContent, DocumentCreate, EntryRecord, Epoch, Id, Millis, Placement,
    ROOT_CONVERSATION_ID, RewindableFork, TaskRecord, TaskState,
};
use picofleet_storage::sqlite::{Durability, SqliteOptions, SqliteStore};
use tokio::time::Instant;

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let sessions: usize = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(1_000);
    let seconds: u64 = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(5);
    let durability = if arguments.next().as_deref() == Some("process") { Durability::Process } else { Durability::Power };
    let directory = tempfile::tempdir().expect("a directory");
    let file = arguments.next().map_or_else(|| directory.path().join("store.db"), Into::into);
    let store = SqliteStore::open(&file, SqliteOptions { durability, ..SqliteOptions::default() }).expect("a store");

    let mut lines = Vec::new();
    for _ in 0..sessions {
        let session = store.create(SessionCreate::new(Millis(1))).await.expect("a session").session;
        let line = store.open(session.id, Fence { epoch: Epoch(0), at: Millis(1) }).await.expect("a line");
        let head = line.opened();
        lines.push((line, head));
    }
    let mut ready = Vec::new();
    for (line, head) in lines {
        let head = send(&line, &head, 1, begin()).await;
        ready.push((line, head));
    }

    let (count, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let start = Instant::now();
    let tasks: Vec<_> = ready
        .into_iter()
        .map(|(line, mut head)| {
            let (count, over) = (Arc::clone(&count), Arc::clone(&over));
            tokio::spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    head = send(&line, &head, 2, step(head.next_id)).await;
                    count.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let mut before = 0;
    for second in 1..=seconds {
        tokio::time::sleep_until(start + Duration::from_secs(second)).await;
        let now = count.load(Ordering::Relaxed);
        println!("second {second}: {} commits", now - before);
        before = now;
    }
    over.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.expect("a session");
    }
    let (commits, took) = (count.load(Ordering::Relaxed), start.elapsed().as_secs_f64());
    println!("{sessions} sessions, {durability:?}: {:.0} commits/s", commits as f64 / took);
    let log = std::fs::metadata(format!("{}-wal", file.display())).map_or(0, |file| file.len());
    let bytes = std::fs::metadata(&file).map_or(0, |file| file.len());
    println!("file {} MB, log {} MB, {} bytes a commit", bytes >> 20, log >> 20, bytes / commits.max(1));
    store.close().await.expect("closed");
}

async fn send(line: &Arc<dyn SessionStore>, head: &Head, ids: i64, writes: Vec<Write>) -> Head {
    let commit = Commit { token: CommitToken::random(), at: Millis(2), next_id: head.next_id + ids, writes };
    line.commit(Batch { expect: (head.seq, head.token), commits: vec![commit] }).await.expect("a commit")
}

fn begin() -> Vec<Write> {
    let policy = ConversationPolicy::Rewindable(RewindableFork::AsOf);
    let placement = Placement::Conversation { id: ROOT_CONVERSATION_ID, policy };
    vec![
        Write::Conversation(ConversationRecord { id: ROOT_CONVERSATION_ID, parent: None, owner: None }),
        Write::DocumentCreate {
            create: DocumentCreate { id: Id::new(2).expect("an id"), kind: "live".to_owned(), key: None, placement },
            version: 1,
            value: Json::object([("text", Json::from(""))]),
        },
    ]
}

fn step(next_id: i64) -> Vec<Write> {
    let entry = EntryRecord {
        id: Id::new(next_id).expect("an id"),
        conversation_id: ROOT_CONVERSATION_ID,
        kind: "note".to_owned(),
        model: None,
        data: Some(Json::object([("text", Json::from("x".repeat(300)))])),
        head: None,
        edits: None,
        by_task_id: None,
    };
    let task = TaskRecord {
        id: Id::new(next_id + 1).expect("an id"),
        conversation_id: ROOT_CONVERSATION_ID,
        kind: "work".to_owned(),
        version: 1,
        input: Json::object([("what", Json::from("something to do"))]),
        owner: None,
        background: false,
        abort_requested: false,
        state: TaskState::Pending { checkpoint: Json::object([("phase", Json::from("run"))]) },
        memos: None,
        restarts: 0,
        started_at: None,
        ended_at: None,
    };
    let ops: Vec<Op> = ops_from_json(&Json::parse(br#"[["a",["text"],"twenty characters ok"]]"#).expect("JSON")).expect("operations");
    vec![
        Write::Entry(Arc::new(entry)),
        Write::Task(Arc::new(task)),
        Write::DocumentChange { id: Id::new(2).expect("an id"), content: DocumentContent::Delta { version: 1, ops: ops.into() } },
    ]
}
