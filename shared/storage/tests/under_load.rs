//! Exports and copies that are taken while another process writes as fast as it can: each is complete, and all of it is of one commit.
//!
//! A test makes 8 tries; `PICOFLEET_LOAD_TRIES=1000` is the long form.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking, and so does its child process")]

use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use picofleet_session::storage::{Batch, Commit, ExportLine, ExportReader, SessionCreate, Store};
use picofleet_session::{CommitToken, DocumentContent, Json, Seq, SessionId, TaskState, apply};
use picofleet_storage::conformance::records::{completed, conversation, create, entry, pending, put_task, rebase, rewindable, set, task};
use picofleet_storage::conformance::{NOW, fence};
use picofleet_storage::jsonl::{JsonlOptions, JsonlStore};
use picofleet_storage::sqlite::{Durability, SqliteOptions, SqliteStore};

/// The variable that makes the test `writer` the writer: its store, a file or a directory.
const STORE: &str = "LOAD_STORE";

fn tries() -> usize {
    std::env::var("PICOFLEET_LOAD_TRIES").ok().and_then(|text| text.parse().ok()).unwrap_or(8)
}

fn session() -> SessionId {
    SessionId::from_key("load", "one")
}

fn is_file(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "db")
}

/// Each commit makes an entry and a task, ends the task before, and counts up in two documents, one of which begins anew now and then.
/// So the number of each part tells the others.
async fn write_for_ever(path: &Path) {
    // A commit need not survive a loss of power here: more of them come to pass.
    let sqlite = SqliteOptions { durability: Durability::Process, ..SqliteOptions::default() };
    let jsonl = JsonlOptions { reclaim_bytes: 1, ..JsonlOptions::default() };
    let store: Arc<dyn Store> =
        if is_file(path) { Arc::new(SqliteStore::open(path, sqlite).unwrap()) } else { Arc::new(JsonlStore::open(path, jsonl).unwrap()) };
    store.create(SessionCreate { id: session(), ..SessionCreate::new(NOW) }).await.unwrap();
    let line = store.open(session(), fence()).await.unwrap();
    let mut head = line.opened();
    let mut before = None;
    let progress = std::fs::File::create(path.with_extension("progress")).unwrap();
    for n in 0_i64.. {
        let (e, t) = (4 + 2 * n, 5 + 2 * n);
        let mut writes = vec![entry(e, 1), put_task(&task(t, pending()))];
        if n == 0 {
            writes.extend([conversation(1), create(2, rewindable(1), r#"{"n":0}"#)]);
            writes.push(picofleet_storage::conformance::records::create_as(
                picofleet_storage::conformance::records::create_of(3, "latest", None, picofleet_session::Placement::Session),
                r#"{"n":0}"#,
            ));
        } else {
            writes.push(set(2, "n", &n.to_string()));
            writes.push(if n % 5 == 0 { rebase(1, 3, &format!(r#"{{"n":{n}}}"#)) } else { set(3, "n", &n.to_string()) });
        }
        writes.extend(before.replace(t).map(|before| put_task(&task(before, TaskState::Terminal { outcome: completed() }))));
        let commit = Commit { token: CommitToken::random(), at: NOW, next_id: t + 1, writes };
        head = line.commit(Batch { expect: (head.seq, head.token), commits: vec![commit] }).await.unwrap();
        progress.write_all_at(&head.seq.0.to_le_bytes(), 0).unwrap();
        // The parent ends it; a parent that is gone does, too, since nobody reads what is far too large.
        if n > 2_000_000 {
            return;
        }
    }
}

/// The writer; without its variable it is no test.
#[test]
fn writer() {
    if let Some(path) = std::env::var_os(STORE) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(write_for_ever(Path::new(&path)));
    }
}

/// The longest that the writer may take for a commit. It only ends a test that can't succeed.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between two looks at what the writer has done.
const POLL: Duration = Duration::from_millis(1);

/// The writer at work, which ends with this value, and the file into which it writes its newest acknowledged commit.
struct Writer(Child, PathBuf);

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = (self.0.kill(), self.0.wait());
    }
}

impl Writer {
    async fn start(path: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "writer", "--nocapture", "--test-threads=1"]).env(STORE, path);
        let progress = path.with_extension("progress");
        let mut own = Self(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap(), progress);
        own.advanced(Seq(20)).await;
        own
    }

    /// Waits until a commit above this one was acknowledged, and says which.
    async fn advanced(&mut self, last: Seq) -> Seq {
        let advanced = async {
            loop {
                self.lives();
                let written = std::fs::read(&self.1).ok().and_then(|bytes| bytes.try_into().ok()).map(i64::from_le_bytes);
                if let Some(seq) = written.map(Seq).filter(|seq| *seq > last) {
                    return seq;
                }
                tokio::time::sleep(POLL).await;
            }
        };
        tokio::time::timeout(PATIENCE, advanced).await.expect("the writer advances")
    }

    fn lives(&mut self) {
        if self.0.try_wait().unwrap().is_some() {
            let mut said = String::new();
            self.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            panic!("the writer ended: {said}");
        }
    }
}

/// Checks an export, and gives its sequence.
async fn sound(store: &dyn Store) -> Seq {
    let mut lines = store.export(session()).await.unwrap();
    let (mut reader, mut seq, mut entries, mut newest_task) = (ExportReader::default(), Seq(0), 0_i64, None);
    let (mut tasks, mut values): (i64, Vec<(i64, Json)>) = (0, Vec::new());
    while let Some(line) = lines.next().await {
        let line = line.unwrap();
        reader.check(&line).unwrap();
        match line {
            ExportLine::Session(session) => seq = session.seq,
            ExportLine::Entry { entry, .. } => {
                assert_eq!(entry.id.get(), 4 + 2 * entries);
                entries += 1;
            }
            ExportLine::Task { task, .. } => {
                assert_eq!(task.id.get(), 5 + 2 * tasks);
                // All are over but the newest.
                assert!(newest_task.replace(task.terminal()).is_none_or(|terminal| terminal), "task {} follows a live one", task.id);
                tasks += 1;
            }
            ExportLine::Content { document, content, .. } => {
                if values.last().is_none_or(|(id, _)| *id != document.get()) {
                    values.push((document.get(), Json::null()));
                }
                let (_, value) = values.last_mut().unwrap();
                *value = match content {
                    DocumentContent::Base { value, .. } => value,
                    DocumentContent::Delta { ops, .. } => apply(Some(&*value), &ops).unwrap(),
                };
            }
            _ => {}
        }
    }
    reader.finish().unwrap();
    let n = entries - 1;
    assert_eq!((tasks, newest_task), (entries, Some(false)));
    assert_eq!(
        values.iter().map(|(id, value)| (*id, value.get("n").and_then(Json::as_i64))).collect::<Vec<_>>(),
        [(2, Some(n)), (3, Some(n))]
    );
    // The session begins with one commit, opening is the next, and each of the writer's makes an entry.
    assert_eq!(seq.0, n + 2, "the sequence that the export names");
    seq
}

async fn look(path: &Path) -> Arc<dyn Store> {
    let path = path.to_owned();
    let open = move || -> Arc<dyn Store> {
        if is_file(&path) {
            Arc::new(SqliteStore::open_read_only(&path).unwrap())
        } else {
            Arc::new(JsonlStore::open_read_only(&path).unwrap())
        }
    };
    tokio::task::spawn_blocking(open).await.unwrap()
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// The writer starts anew when it has written a lot, so that the tries don't get longer and longer.
const ROUND: usize = 4;

async fn exports(name: &str) {
    for round in 0..tries().div_ceil(ROUND) {
        let folder = folder();
        let path = folder.path().join(name);
        let mut writer = Writer::start(&path).await;
        let mut last = Seq(0);
        for _ in 0..ROUND.min(tries() - round * ROUND) {
            let acknowledged = writer.advanced(last).await;
            let store = look(&path).await;
            last = sound(&*store).await;
            assert!(last >= acknowledged, "commit {acknowledged} was acknowledged, and the export is of {last}");
            store.close().await.unwrap();
            writer.lives();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exports_of_a_file_that_another_process_writes_are_of_one_commit() {
    exports("store.db").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exports_of_a_directory_that_another_process_writes_are_of_one_commit() {
    exports("store").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_of_a_file_that_another_process_writes_are_stores_of_one_commit() {
    for round in 0..tries().div_ceil(ROUND) {
        let folder = folder();
        let path = folder.path().join("store.db");
        let mut writer = Writer::start(&path).await;
        let mut last = Seq(0);
        for number in 0..ROUND.min(tries() - round * ROUND) {
            let acknowledged = writer.advanced(last).await;
            let copy: PathBuf = folder.path().join(format!("copy-{number}.db"));
            SqliteStore::open_read_only(&path).unwrap().copy_to(&copy).await.unwrap();
            // It is a store that can be written, and its own check finds nothing.
            let store = SqliteStore::open(&copy, SqliteOptions::default()).unwrap();
            assert_eq!(store.examine().await.unwrap(), []);
            last = sound(&store).await;
            assert!(last >= acknowledged, "commit {acknowledged} was acknowledged, and the copy is of {last}");
            store.open(session(), fence()).await.unwrap();
            store.close().await.unwrap();
            std::fs::remove_file(&copy).unwrap();
            writer.lives();
        }
    }
}
