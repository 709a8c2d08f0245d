//! Files that are no store, or not one that can be used now.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Stdio};

use picofleet_session::PartitionCount;
use picofleet_session::storage::{Rejection, SessionCreate, StorageError, Store};
use picofleet_storage::sqlite::{OpenError, SqliteOptions, SqliteStore};
use rusqlite::Connection;

use crate::child::chain;
use crate::program::{NOW, batch, creation, fence, session};
use crate::run::{command, directory};

/// The variable with the store of the test `holder`.
pub(crate) const HELD: &str = "CRASH_HELD";

fn open(path: &Path) -> Result<SqliteStore, StorageError> {
    SqliteStore::open(path, SqliteOptions::default())
}

/// A closed store with a session in it.
async fn make(path: &Path) {
    let store = open(path).unwrap();
    store.create(creation(0)).await.unwrap();
    let line = store.open(session(0), fence()).await.unwrap();
    let mut head = line.opened();
    for index in 0..10 {
        head = line.commit(batch(&head, index)).await.unwrap();
    }
    store.close().await.unwrap();
}

/// The error with its causes, which names the file.
fn told(path: &Path, result: Result<SqliteStore, StorageError>) -> String {
    let error = result.err().unwrap_or_else(|| panic!("{} was opened", path.display()));
    let text = chain(&error);
    assert!(text.contains(&path.display().to_string()), "the error names the file: {text}");
    text
}

fn cause(result: Result<SqliteStore, StorageError>) -> String {
    let Err(StorageError::Failed { cause, .. }) = &result else { panic!("{result:?}") };
    cause.downcast_ref::<OpenError>().map(|error| format!("{error:?}")).unwrap_or_default()
}

#[tokio::test]
async fn a_truncated_file_is_refused_at_every_length() {
    let directory = directory();
    let whole = directory.path().join("whole.db");
    make(&whole).await;
    let bytes = fs::read(&whole).unwrap();
    let pages = (0..bytes.len()).step_by(4_096);
    let lengths = (0..=128).chain([511, 512, 1_000]).chain(pages.flat_map(|page| [page, page + 1, page + 4_095])).chain([bytes.len() - 1]);
    for length in lengths.filter(|length| *length < bytes.len()) {
        let path = directory.path().join(format!("cut-{length}.db"));
        fs::write(&path, &bytes[..length]).unwrap();
        for result in [open(&path), SqliteStore::open_read_only(&path)] {
            assert!(matches!(result, Err(StorageError::Corrupt(_))), "{length} bytes: {result:?}");
            assert!(told(&path, result).contains("restore it from a backup"), "{length} bytes");
        }
        assert_eq!(fs::read(&path).unwrap(), &bytes[..length], "a refused file is left alone");
    }
}

#[tokio::test]
async fn a_damaged_page_is_told_and_never_read_as_absence() {
    let directory = directory();
    let path = directory.path().join("store.db");
    make(&path).await;
    let bytes = fs::read(&path).unwrap();
    for page in 1..bytes.len() / 4_096 {
        let mut damaged = bytes.clone();
        damaged[page * 4_096..(page + 1) * 4_096].fill(0x5a);
        fs::write(&path, damaged).unwrap();
        let Ok(store) = open(&path) else { continue };
        let found = store.session(session(0)).await;
        assert!(!matches!(found, Ok(None)), "page {page}: the session is absent");
        if let Ok(reader) = store.reader(session(0)).await {
            for id in 8..12 {
                let entry = reader.entry(None, picofleet_storage::conformance::records::eid(id)).await;
                assert!(!matches!(entry, Ok(None)), "page {page}: entry {id} is absent");
            }
        }
        store.close().await.unwrap();
    }
}

#[tokio::test]
async fn other_files_are_refused_and_left_alone() {
    let directory = directory();
    let garbage = directory.path().join("garbage.db");
    fs::write(&garbage, "not a database at all, but long enough to have a header ".repeat(100)).unwrap();
    let before = fs::read(&garbage).unwrap();
    assert!(told(&garbage, open(&garbage)).contains("is no SQLite database"));
    assert!(told(&garbage, SqliteStore::open_read_only(&garbage)).contains("is no SQLite database"));
    assert_eq!(fs::read(&garbage).unwrap(), before);

    let other = directory.path().join("other.db");
    Connection::open(&other).unwrap().execute_batch("CREATE TABLE theirs (a)").unwrap();
    let before = fs::read(&other).unwrap();
    assert!(told(&other, open(&other)).contains("another application"));
    assert_eq!(fs::read(&other).unwrap(), before, "another application's file is left alone");

    assert!(told(directory.path(), open(directory.path())).contains("is a directory"));
    let nowhere = directory.path().join("no/such/folder.db");
    told(&nowhere, open(&nowhere));
    assert!(told(&nowhere, SqliteStore::open_read_only(&nowhere)).contains("does not exist"));

    let lost = directory.path().join("lost.db");
    fs::write(directory.path().join("lost.db-wal"), "the log of a file that is gone").unwrap();
    assert!(told(&lost, open(&lost)).contains("bring the file back"));
}

#[tokio::test]
async fn a_file_that_must_not_be_written_is_only_read() {
    let directory = directory();
    let path = directory.path().join("store.db");
    make(&path).await;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    assert!(cause(open(&path)).starts_with("ReadOnly"));
    let store = SqliteStore::open_read_only(&path).unwrap();
    assert!(store.session(session(0)).await.unwrap().is_some());
    assert_eq!(store.reader(session(0)).await.unwrap().head().await.unwrap().seq.0, 11);
    let refused = [
        store.create(SessionCreate::new(NOW)).await.err(),
        store.open(session(0), fence()).await.err(),
        store.delete(session(0), NOW).await.err(),
        store.maintain(10, NOW).await.err(),
        store.set_quarantined(session(0), true).await.err(),
        store.acknowledge(Vec::new()).await.err(),
    ];
    for error in refused {
        let Some(StorageError::Rejected(refused)) = error else { panic!("{error:?}") };
        assert_eq!(refused.reason, Rejection::ReadOnly { store: path.display().to_string() });
    }
    store.close().await.unwrap();
    assert!(matches!(store.session(session(0)).await, Err(StorageError::Closed)));
}

#[tokio::test]
async fn a_newer_schema_is_refused_where_it_says_so() {
    let directory = directory();
    let path = directory.path().join("store.db");
    make(&path).await;
    let set = |key: &str, value: i64| {
        Connection::open(&path).unwrap().execute("UPDATE meta SET value = ?2 WHERE key = ?1", (key, value)).unwrap();
    };
    set("version", 3);
    open(&path).unwrap().close().await.unwrap();
    set("compatible_from", 2);
    let error = open(&path).unwrap_err();
    let StorageError::SchemaTooNew { store, found: 3, compatible_from: 2, known: 1 } = error else { panic!("{error:?}") };
    assert_eq!(store, path.display().to_string());
}

#[tokio::test]
async fn the_count_of_partitions_never_changes() {
    let directory = directory();
    let path = directory.path().join("store.db");
    let with = |count| SqliteStore::open(&path, SqliteOptions { partitions: PartitionCount::new(count), ..SqliteOptions::default() });
    with(7).unwrap().close().await.unwrap();
    assert_eq!(cause(with(8)), format!("Partitions {{ file: {path:?}, stored: 7, asked: 8 }}"));
    let store = open(&path).unwrap();
    assert_eq!(store.partitions().get(), 7);
    store.close().await.unwrap();
    Connection::open(&path).unwrap().execute("UPDATE meta SET value = 0 WHERE key = 'partitions'", []).unwrap();
    assert!(told(&path, open(&path)).contains("no count of partitions"));
}

/// A process that has a store open.
struct Holder(Child);

impl Holder {
    fn of(path: &Path) -> Self {
        let mut command = command("holder");
        let mut child = command.env(HELD, path).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("child: holding")), "the other process has opened the store");
        Self(child)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[tokio::test]
async fn one_process_has_the_file_and_others_only_look() {
    let directory = directory();
    let path = directory.path().join("store.db");
    let holder = Holder::of(&path);
    let error = open(&path).unwrap_err();
    let StorageError::InUse { store, pid } = &error else { panic!("{error:?}") };
    assert_eq!((store.as_str(), *pid), (&*path.display().to_string(), Some(holder.0.id())));
    let looking = SqliteStore::open_read_only(&path).unwrap();
    assert!(looking.session(session(0)).await.unwrap().is_some());
    looking.close().await.unwrap();
    drop(holder);
    // A process that died holds nothing.
    let store = open(&path).unwrap();
    assert!(matches!(open(&path), Err(StorageError::InUse { pid, .. }) if pid == Some(std::process::id())), "in one process too");
    assert!(store.session(session(0)).await.unwrap().is_some());
    store.close().await.unwrap();
    open(&path).unwrap().close().await.unwrap();
}

/// Whichever way leads to it, there is one file with one log and one owner.
#[tokio::test]
async fn a_symbolic_link_is_no_second_way_in() {
    let directory = directory();
    let (path, link) = (directory.path().join("store.db"), directory.path().join("link.db"));
    std::os::unix::fs::symlink("store.db", &link).unwrap();
    // Made through the link: the store and its log are where the link leads.
    let store = open(&link).unwrap();
    assert!(path.is_file() && directory.path().join("store.db-wal").is_file());
    for way in [&path, &link] {
        assert!(matches!(open(way), Err(StorageError::InUse { pid, .. }) if pid == Some(std::process::id())), "{}", way.display());
    }
    store.close().await.unwrap();
    let holder = Holder::of(&path);
    assert!(matches!(open(&link), Err(StorageError::InUse { pid, .. }) if pid == Some(holder.0.id())));
    let looking = SqliteStore::open_read_only(&link).unwrap();
    assert!(looking.session(session(0)).await.unwrap().is_some());
    looking.close().await.unwrap();
}

#[tokio::test]
async fn a_hard_link_is_no_second_way_in() {
    let directory = directory();
    let (path, link) = (directory.path().join("store.db"), directory.path().join("link.db"));
    make(&path).await;
    let store = open(&path).unwrap();
    fs::hard_link(&path, &link).unwrap();
    assert!(matches!(open(&link), Err(StorageError::InUse { pid, .. }) if pid == Some(std::process::id())));
    store.close().await.unwrap();
    // Nobody has it open here, but another process might, by the other name.
    for result in [open(&link), open(&path), SqliteStore::open_read_only(&link)] {
        assert!(cause(result).starts_with("SeveralNames"));
    }
    assert!(told(&link, open(&link)).contains("2 names"));
    fs::remove_file(&link).unwrap();
    let holder = Holder::of(&path);
    fs::hard_link(&path, &link).unwrap();
    assert!(cause(open(&link)).starts_with("SeveralNames"), "another process has it open by the other name");
    drop(holder);
    fs::remove_file(&link).unwrap();
    open(&path).unwrap().close().await.unwrap();
}
