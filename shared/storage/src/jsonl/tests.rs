//! Recovery and the order of writes (section 11.3).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use picofleet_session::storage::{Batch, Commit, SessionCreate, SessionStore, StorageError, Store, Write};
use picofleet_session::{CommitToken, DocumentId, Point, Seq, SessionId, TaskId, TaskState};
use tempfile::TempDir;

use super::files::{Files, SystemFiles};
use super::{JsonlOptions, JsonlStore, MAIN};
use crate::conformance::records::{self, completed, conversation, latest, pending, put_task, retire};
use crate::conformance::{NOW, fence};

/// Files that tell what was done, and fail the call of a test's choice before it does anything.
#[derive(Clone, Default)]
struct Watched {
    log: Arc<Mutex<Vec<String>>>,
    fail: Arc<Mutex<Option<&'static str>>>,
}

impl Watched {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.log.lock().unwrap())
    }

    fn call(&self, what: &str, path: &Path) -> io::Result<()> {
        let name = path.file_name().unwrap().to_str().unwrap();
        let name = if name.parse::<SessionId>().is_ok() { "directory" } else { name };
        let call = format!("{what} {name}");
        if self.fail.lock().unwrap().take_if(|fail| call == *fail).is_some() {
            return Err(io::Error::other("a test's fault"));
        }
        self.log.lock().unwrap().push(call);
        Ok(())
    }
}

struct WatchedFiles(Watched, SystemFiles);

impl Files for WatchedFiles {
    fn append(&mut self, path: &Path, bytes: &[u8]) -> io::Result<bool> {
        self.0.call("append", path)?;
        self.1.append(path, bytes)
    }

    fn sync(&mut self, path: &Path) -> io::Result<()> {
        self.0.call("sync", path)?;
        self.1.sync(path)
    }

    fn sync_directory(&mut self, path: &Path) -> io::Result<()> {
        self.0.call("sync", path)?;
        self.1.sync_directory(path)
    }

    fn replace(&mut self, path: &Path, bytes: &[u8], sync: bool) -> io::Result<()> {
        self.0.call(if sync { "sync and replace" } else { "replace" }, path)?;
        self.1.replace(path, bytes, sync)
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        self.0.call("remove", path)?;
        self.1.remove(path)
    }

    fn make_directory(&mut self, path: &Path, file: &str, bytes: &[u8], sync: bool) -> io::Result<()> {
        self.0.call("make", path)?;
        self.1.make_directory(path, file, bytes, sync)
    }

    fn remove_directory(&mut self, path: &Path) -> io::Result<()> {
        self.0.call("remove", path)?;
        self.1.remove_directory(path)
    }
}

struct Bench {
    directory: TempDir,
    options: JsonlOptions,
    watched: Watched,
    store: JsonlStore,
    session: SessionId,
    line: Arc<dyn SessionStore>,
    head: (Seq, CommitToken),
    next_id: i64,
}

impl Bench {
    async fn new(options: JsonlOptions) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let watched = Watched::default();
        let store = open(directory.path(), options, &watched);
        let session = store.create(SessionCreate::new(NOW)).await.unwrap().session.id;
        let line = store.open(session, fence()).await.unwrap();
        let head = (line.opened().seq, line.opened().token);
        watched.take();
        Self { directory, options, watched, store, session, line, head, next_id: 2 }
    }

    /// A commit with these writes, which mint ids below `next_id`.
    async fn commit(&mut self, next_id: i64, writes: Vec<Write>) -> Result<(), StorageError> {
        self.next_id = self.next_id.max(next_id);
        let commit = Commit { token: CommitToken::random(), at: NOW, next_id: self.next_id, writes };
        let head = self.line.commit(Batch { expect: self.head, commits: vec![commit] }).await?;
        self.head = (head.seq, head.token);
        Ok(())
    }

    /// As after the end of the process: what is in the files is all there is.
    async fn reopen(&mut self) {
        self.store.close().await.unwrap();
        self.store = open(self.directory.path(), self.options, &self.watched);
        self.line = self.store.open(self.session, fence()).await.unwrap();
        self.head = (self.line.opened().seq, self.line.opened().token);
        self.watched.take();
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(self.session.to_string()).join(name)
    }

    fn lines(&self, name: &str) -> usize {
        std::fs::read(self.file(name)).map_or(0, |bytes| bytes.iter().filter(|byte| **byte == b'\n').count())
    }

    async fn value(&self, document: i64) -> Option<String> {
        let stored = self.line.document(DocumentId::new(document).unwrap(), Point::Current).await.unwrap();
        stored.map(|stored| stored.value.to_string())
    }
}

/// A document of conversation 1 that keeps no history.
fn create(id: i64, n: i64) -> Write {
    records::create(id, latest(1), &format!(r#"{{"n":{n}}}"#))
}

/// Another document of that kind.
fn other(id: i64) -> Write {
    records::create_as(records::create_of(id, "other", None, latest(1)), r#"{"n":1}"#)
}

/// Its next base.
fn change(id: i64, n: i64) -> Write {
    records::rebase(1, id, &format!(r#"{{"n":{n}}}"#))
}

/// A live task, or another record of it.
fn task(id: i64) -> Write {
    put_task(&records::task(id, pending()))
}

fn terminal(id: i64) -> Write {
    put_task(&records::task(id, TaskState::Terminal { outcome: completed() }))
}

fn open(directory: &Path, options: JsonlOptions, watched: &Watched) -> JsonlStore {
    super::open::open(directory, options, Box::new(WatchedFiles(watched.clone(), SystemFiles::default()))).unwrap()
}

fn fsync() -> JsonlOptions {
    JsonlOptions { fsync: true, reclaim_bytes: 1, ..JsonlOptions::default() }
}

#[tokio::test]
async fn x008_what_no_marker_confirms_is_cut_off() {
    let mut bench = Bench::new(JsonlOptions::default()).await;
    bench.commit(4, vec![conversation(1), create(2, 1), task(3)]).await.unwrap();
    let (before, main) = (bench.head.0, std::fs::read(bench.file(MAIN)).unwrap());
    bench.commit(4, vec![change(2, 2), task(3)]).await.unwrap();
    assert_eq!((bench.lines("doc-2.jsonl"), bench.lines("task-3.jsonl")), (2, 2));
    // A kill behind the sidecars and before the marker, which is torn in the middle of a character.
    let torn = [main.as_slice(), "{\"commits\":[{\"token\":\"ä".as_bytes().split_last().unwrap().1].concat();
    bench.store.close().await.unwrap();
    std::fs::write(bench.file(MAIN), torn).unwrap();
    bench.store = open(bench.directory.path(), bench.options, &bench.watched);
    assert_eq!(std::fs::read(bench.file(MAIN)).unwrap(), main, "the torn line is cut off where it begins");
    assert_eq!((bench.lines("doc-2.jsonl"), bench.lines("task-3.jsonl")), (1, 1));
    bench.line = bench.store.open(bench.session, fence()).await.unwrap();
    assert_eq!(bench.line.opened().seq, before.next(), "the sequence is used again");
    assert_eq!(bench.value(2).await, Some(r#"{"n":1}"#.to_owned()));
}

#[tokio::test]
async fn x010_a_failed_append_poisons_the_store_until_it_is_opened_again() {
    for fail in ["append doc-2.jsonl", "append main.jsonl", "append task-3.jsonl"] {
        let mut bench = Bench::new(JsonlOptions::default()).await;
        bench.commit(4, vec![conversation(1), create(2, 1), task(3)]).await.unwrap();
        *bench.watched.fail.lock().unwrap() = Some(fail);
        let error = bench.commit(4, vec![change(2, 2), task(3)]).await.unwrap_err();
        assert!(matches!(error, StorageError::Uncertain { .. }), "{error:?}");
        let error = bench.commit(4, vec![change(2, 3)]).await.unwrap_err();
        assert!(matches!(&error, StorageError::Failed { cause, .. } if cause.to_string().contains("open the store again")), "{error:?}");
        assert!(matches!(bench.store.create(SessionCreate::new(NOW)).await, Err(StorageError::Failed { .. })));
        assert_eq!(bench.value(2).await, Some(r#"{"n":1}"#.to_owned()), "what was committed can be read");
        bench.reopen().await;
        assert_eq!(bench.value(2).await, Some(r#"{"n":1}"#.to_owned()), "{fail}");
        bench.commit(4, vec![change(2, 4), task(3)]).await.unwrap();
        bench.reopen().await;
        assert_eq!(bench.value(2).await, Some(r#"{"n":4}"#.to_owned()));
    }
}

#[tokio::test]
async fn x010_sidecars_are_flushed_before_their_marker_and_the_marker_before_a_reclamation() {
    let mut bench = Bench::new(fsync()).await;
    bench.commit(4, vec![conversation(1), create(2, 1), task(3)]).await.unwrap();
    let sidecars = ["append doc-2.jsonl", "append task-3.jsonl", "sync doc-2.jsonl", "sync task-3.jsonl"];
    assert_eq!(bench.watched.take(), [&sidecars[..], &["sync directory", "append main.jsonl"]].concat());
    bench.commit(5, vec![conversation(4)]).await.unwrap();
    assert_eq!(bench.watched.take(), ["append main.jsonl"], "a commit without sidecars flushes nothing");
    bench.commit(5, vec![terminal(3)]).await.unwrap();
    assert_eq!(bench.watched.take(), ["append main.jsonl", "sync main.jsonl", "remove task-3.jsonl"]);
    bench.commit(5, vec![change(2, 23)]).await.unwrap();
    bench.watched.take();
    bench.commit(5, vec![change(2, 24)]).await.unwrap();
    let reclaims = ["append doc-2.jsonl", "sync doc-2.jsonl", "append main.jsonl", "sync main.jsonl", "sync and replace doc-2.jsonl"];
    assert_eq!(bench.watched.take(), reclaims);
    assert_eq!(bench.lines("doc-2.jsonl"), 1);
    // An append behind the replacement goes into the new file.
    bench.commit(5, vec![change(2, 25)]).await.unwrap();
    assert_eq!(bench.lines("doc-2.jsonl"), 2);
    bench.reopen().await;
    assert_eq!(bench.value(2).await, Some(r#"{"n":25}"#.to_owned()));
}

#[tokio::test]
async fn x010_a_flush_that_fails_defers_the_reclamation() {
    let mut bench = Bench::new(fsync()).await;
    bench.commit(4, vec![conversation(1), task(3)]).await.unwrap();
    *bench.watched.fail.lock().unwrap() = Some("sync main.jsonl");
    bench.commit(4, vec![terminal(3)]).await.unwrap();
    assert!(bench.file("task-3.jsonl").exists());
    bench.store.maintain(10, NOW).await.unwrap();
    assert!(!bench.file("task-3.jsonl").exists());
    bench.reopen().await;
    assert!(bench.line.task(TaskId::new(3).unwrap()).await.unwrap().unwrap().terminal());
}

#[tokio::test]
async fn x011_a_crash_in_a_reclamation_loses_nothing() {
    let mut bench = Bench::new(JsonlOptions { reclaim_bytes: 0, ..JsonlOptions::default() }).await;
    bench.commit(5, vec![conversation(1), create(2, 1), task(3), other(4)]).await.unwrap();
    bench.commit(5, vec![change(2, 2), terminal(3), retire(4)]).await.unwrap();
    bench.reopen().await;
    // A replacement that did not take its place, and every sidecar either as it was or gone.
    std::fs::write(bench.file("doc-2.tmp"), "half").unwrap();
    bench.reopen().await;
    assert!(!bench.file("doc-2.tmp").exists());
    bench.store.maintain(100, NOW).await.unwrap();
    assert_eq!((bench.lines("doc-2.jsonl"), bench.file("doc-4.jsonl").exists(), bench.file("task-3.jsonl").exists()), (1, false, false));
    bench.reopen().await;
    assert_eq!((bench.value(2).await, bench.value(4).await), (Some(r#"{"n":2}"#.to_owned()), None));
    assert!(bench.line.task(TaskId::new(3).unwrap()).await.unwrap().unwrap().terminal());
}

#[tokio::test]
async fn what_is_confirmed_and_missing_is_corruption_of_its_session_only() {
    let mut bench = Bench::new(JsonlOptions::default()).await;
    let other = bench.store.create(SessionCreate::new(NOW)).await.unwrap().session.id;
    bench.commit(4, vec![conversation(1), create(2, 1), task(3)]).await.unwrap();
    bench.store.close().await.unwrap();
    for name in ["doc-2.jsonl", "task-3.jsonl", MAIN] {
        let bytes = std::fs::read(bench.file(name)).unwrap();
        std::fs::write(bench.file(name), &bytes[..bytes.len() - 1]).unwrap();
        let damaged = open(bench.directory.path(), bench.options, &bench.watched);
        let opened = damaged.open(bench.session, fence()).await;
        if name == MAIN {
            assert_eq!(opened.unwrap().opened().seq, bench.head.0, "a torn marker confirms nothing");
        } else {
            assert!(matches!(opened, Err(StorageError::Corrupt(_))), "{name}");
        }
        damaged.open(other, fence()).await.unwrap();
        damaged.close().await.unwrap();
        std::fs::write(bench.file(name), bytes).unwrap();
    }
}

#[tokio::test]
async fn a_store_is_opened_once_and_keeps_its_partitions() {
    let bench = Bench::new(JsonlOptions::default()).await;
    let again = JsonlStore::open(bench.directory.path(), bench.options);
    assert!(matches!(again, Err(StorageError::InUse { .. })), "{again:?}");
    bench.store.close().await.unwrap();
    let partitions = picofleet_session::PartitionCount::new(7);
    let error = JsonlStore::open(bench.directory.path(), JsonlOptions { partitions, ..bench.options }).unwrap_err();
    assert!(error.to_string().starts_with("open "), "{error}");
    let other = tempfile::tempdir().unwrap();
    std::fs::write(other.path().join("letter.txt"), "dear").unwrap();
    assert!(JsonlStore::open(other.path(), bench.options).is_err(), "a directory with other files");
}
