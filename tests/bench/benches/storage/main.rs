//! Commits per second, cost per commit against history, open time and memory, fork cost.
//!
//! `cargo bench -p picofleet-bench` prints tables; `cargo bench -p picofleet-bench -- quick` uses a tenth of the sizes.
//! The raw SQLite figure of the same run is the floor: one prepared insert in a transaction of its own, same pragmas, same disk.

#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a benchmark prints and times")]

mod load;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use picofleet_session::storage::{SessionCreate, Store};
use picofleet_session::{CommitError, ConversationOwnership, EntryId, Millis, ROOT_CONVERSATION_ID, Session, SessionId, SessionOptions};
use picofleet_storage::memory::MemoryStore;
use picofleet_storage::sqlite::{SqliteOptions, SqliteStore};

/// One store to measure.
struct Subject {
    name: &'static str,
    open: fn(&Path) -> Result<Arc<dyn Store>>,
}

const SUBJECTS: [Subject; 2] = [
    Subject { name: "memory", open: |_| Ok(Arc::new(MemoryStore::new())) },
    Subject { name: "sqlite", open: |folder| Ok(Arc::new(SqliteStore::open(folder.join("bench.db"), SqliteOptions::default())?)) },
];

fn main() -> Result<()> {
    let quick = std::env::args().any(|argument| argument == "quick");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    machine();
    println!("\n## Commits per second (one entry, one document delta, one task each)\n");
    println!("| store | sessions | commits | commits/s | against raw SQLite |\n|---|---|---|---|---|");
    let raw = raw_sqlite(if quick { 200 } else { 2_000 })?;
    println!("| raw SQLite insert | - | - | {raw:.0} | 1.0 |");
    for subject in &SUBJECTS {
        for (sessions, commits) in [(1_usize, 4_000_usize), (1_000, 40_000)] {
            let commits = if quick { commits / 10 } else { commits };
            let rate = runtime.block_on(throughput(subject, sessions, commits))?;
            println!("| {} | {sessions} | {commits} | {rate:.0} | {:.1} |", subject.name, rate / raw);
        }
    }
    println!("\n## Cost against history: one session that has this many entries\n");
    println!("| store | entries | commit, mean | fork, mean | open | resident memory of the open session |\n|---|---|---|---|---|---|");
    for subject in &SUBJECTS {
        for entries in [10_usize, 10_000, 1_000_000] {
            let entries = if quick { entries.min(100_000) } else { entries };
            let row = runtime.block_on(history(subject, entries))?;
            println!(
                "| {} | {entries} | {:.1} us | {:.1} us | {:.2} ms | {} KiB |",
                subject.name,
                row.commit.as_secs_f64() * 1e6,
                row.fork.as_secs_f64() * 1e6,
                row.open.as_secs_f64() * 1e3,
                row.resident_kib
            );
        }
    }
    Ok(())
}

fn machine() {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        cpu.lines().find_map(|line| line.strip_prefix("model name")).map_or("unknown", |rest| rest.trim_start_matches([':', '\t', ' ']));
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    println!("Machine: {cores} cores, {model}");
}

/// The floor: one insert of 200 bytes in a transaction of its own.
fn raw_sqlite(count: u32) -> Result<f64> {
    let folder = tempfile::tempdir()?;
    let db = rusqlite::Connection::open(folder.path().join("raw.db"))?;
    db.execute_batch("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; CREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT)")?;
    let text = "x".repeat(200);
    let mut insert = db.prepare("INSERT INTO t(v) VALUES (?1)")?;
    let started = Instant::now();
    for _ in 0..count {
        insert.execute([&text])?;
    }
    Ok(f64::from(count) / started.elapsed().as_secs_f64())
}

async fn session(store: &dyn Store) -> Result<Session> {
    let created = store.create(SessionCreate::new(Millis(0))).await?;
    Ok(Session::open(store, created.session.id, SessionOptions::default()).await?)
}

async fn throughput(subject: &Subject, sessions: usize, commits: usize) -> Result<f64> {
    let folder = tempfile::tempdir()?;
    let store = (subject.open)(folder.path())?;
    let mut open = Vec::with_capacity(sessions);
    for _ in 0..sessions {
        let session = session(&*store).await?;
        load::begin(&session).await?;
        open.push(session);
    }
    let each = commits / sessions;
    let started = Instant::now();
    let workers = open.iter().cloned().map(|session| {
        tokio::spawn(async move {
            for number in 0..each {
                load::commit(&session, number).await?;
            }
            Ok::<_, CommitError>(())
        })
    });
    for worker in futures::future::join_all(workers).await {
        worker??;
    }
    let rate = (each * sessions) as f64 / started.elapsed().as_secs_f64();
    for session in &open {
        session.close().await?;
    }
    store.close().await?;
    Ok(rate)
}

struct Row {
    commit: Duration,
    fork: Duration,
    open: Duration,
    resident_kib: u64,
}

async fn history(subject: &Subject, entries: usize) -> Result<Row> {
    let folder = tempfile::tempdir()?;
    let store = (subject.open)(folder.path())?;
    let first = session(&*store).await?;
    load::begin(&first).await?;
    load::fill(&first, entries).await?;
    let at = load::newest(&first).await?;
    let id = first.id();
    first.close().await?;

    let (open, resident_kib, opened) = opening(&*store, id).await?;
    let row = Row { commit: commits(&opened).await?, fork: forks(&opened, at).await?, open, resident_kib };
    opened.close().await?;
    store.close().await?;
    Ok(row)
}

/// The median of several openings, and what the last one added to the process.
async fn opening(store: &dyn Store, id: SessionId) -> Result<(Duration, u64, Session)> {
    let mut times = Vec::new();
    for _ in 0..20 {
        let started = Instant::now();
        let session = Session::open(store, id, SessionOptions::default()).await?;
        times.push(started.elapsed());
        session.close().await?;
    }
    times.sort_unstable();
    let before = resident_kib()?;
    let session = Session::open(store, id, SessionOptions::default()).await?;
    load::commit(&session, 0).await?;
    Ok((times[times.len() / 2], resident_kib()?.saturating_sub(before), session))
}

fn resident_kib() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

async fn commits(session: &Session) -> Result<Duration> {
    const COUNT: u32 = 1_000;
    let started = Instant::now();
    for number in 0..COUNT {
        load::commit(session, number as usize).await?;
    }
    Ok(started.elapsed() / COUNT)
}

async fn forks(session: &Session, at: EntryId) -> Result<Duration> {
    const COUNT: u32 = 200;
    let started = Instant::now();
    for _ in 0..COUNT {
        session
            .commit(async |tx| {
                tx.fork_conversation(ROOT_CONVERSATION_ID, at, ConversationOwnership::Ownerless).await?;
                Ok::<_, CommitError>(())
            })
            .await?;
    }
    Ok(started.elapsed() / COUNT)
}
