//! The tables, how a file is made, and what is checked when one is opened.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use picofleet_session::PartitionCount;
use picofleet_session::storage::StorageError;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::errors::{OpenError, Place};
use super::{Durability, beside, sql};

/// "PFLT": tells our files from other applications'.
pub(super) const APPLICATION_ID: i32 = 0x5046_4c54;

/// The schema that this program writes.
pub(super) const VERSION: u32 = 1;

/// The oldest program that can use a file with [`VERSION`]: the one that knows this schema version.
pub(super) const COMPATIBLE_FROM: u32 = 1;

/// How long a statement waits for a lock of another process, such as a shell that looks into the file.
const BUSY: Duration = Duration::from_secs(5);

/// Most prepared statements that a connection keeps; there are fewer texts than this.
const STATEMENTS_MAX: usize = 160;

/// All tables begin with the local number of a session and not with its id: 16 bytes less in every row and index entry, and the rows of
/// a deleted or half imported session are never those of another session with the same id. Records are JSON text; the narrow columns
/// beside it are what queries and rules look at. Partial indexes hold what is alive, so that what is over costs no scan.
///
/// Narrow tables are WITHOUT ROWID. Entries, tasks and submissions are not: their records are long and only added, so they go to the end
/// of the table, where the records of many sessions share a page; that halves what a commit writes (18 KB instead of 38 KB with 1,000
/// sessions, and a file of half the size with entries of 2 KB). Content stays together by document, since it is read as a range and
/// removed as a range.
pub(super) const TABLES: &str = "
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;

-- id is NULL while the session is imported. state: 0 active, 1 quarantined, 2 deleting, 3 importing.
CREATE TABLE session (
  n INTEGER PRIMARY KEY AUTOINCREMENT, id BLOB, tenant TEXT NOT NULL, key TEXT, metadata TEXT NOT NULL,
  state INTEGER NOT NULL, created_at INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX session_id ON session (id);
CREATE INDEX session_tenant ON session (tenant, id);
CREATE INDEX session_key ON session (key, id) WHERE key IS NOT NULL;
CREATE INDEX session_state ON session (state, id) WHERE state <> 0;
CREATE TABLE tombstone (id BLOB PRIMARY KEY, tenant TEXT NOT NULL, at INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE INDEX tombstone_at ON tombstone (at);

CREATE TABLE commits (
  session INTEGER NOT NULL, seq INTEGER NOT NULL, token BLOB NOT NULL, epoch INTEGER NOT NULL, next_id INTEGER NOT NULL,
  opens INTEGER NOT NULL, at INTEGER NOT NULL, PRIMARY KEY (session, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE conversation (
  session INTEGER NOT NULL, id INTEGER NOT NULL, owner_conversation INTEGER, owner_task INTEGER, record TEXT NOT NULL,
  PRIMARY KEY (session, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX conversation_owner ON conversation (session, owner_conversation, id) WHERE owner_conversation IS NOT NULL;
CREATE INDEX conversation_task ON conversation (session, owner_task, id) WHERE owner_task IS NOT NULL;

CREATE TABLE entry (
  session INTEGER NOT NULL, conversation INTEGER NOT NULL, id INTEGER NOT NULL, seq INTEGER NOT NULL, head INTEGER,
  record TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX entry_id ON entry (session, id);
CREATE INDEX entry_place ON entry (session, conversation, id);
CREATE INDEX entry_head ON entry (session, conversation, id) WHERE head IS NOT NULL;

-- status: 0 pending, 1 running, 2 waiting, 3 sleeping, 4 completing, 5 terminal. live is 0 for terminal.
CREATE TABLE task (
  session INTEGER NOT NULL, id INTEGER NOT NULL, conversation INTEGER NOT NULL, owner INTEGER, kind TEXT NOT NULL,
  status INTEGER NOT NULL, live INTEGER NOT NULL, abort INTEGER NOT NULL, background INTEGER NOT NULL, record TEXT NOT NULL,
  invocation TEXT
) STRICT;
CREATE UNIQUE INDEX task_id ON task (session, id);
CREATE INDEX task_live ON task (session, id) WHERE live = 1;
CREATE INDEX task_conversation ON task (session, conversation, id);
CREATE INDEX task_owner ON task (session, owner, id) WHERE owner IS NOT NULL;
CREATE INDEX task_kind ON task (session, kind, id);

-- status: 0 queued, 1 placed, 2 done, 3 unanswered. open is 1 for the first two.
CREATE TABLE submission (
  session INTEGER NOT NULL, id INTEGER NOT NULL, conversation INTEGER NOT NULL, request_id TEXT, input INTEGER NOT NULL,
  status INTEGER NOT NULL, open INTEGER NOT NULL, record TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX submission_id ON submission (session, id);
CREATE INDEX submission_open ON submission (session, id) WHERE open = 1;
CREATE INDEX submission_conversation ON submission (session, conversation, id);
CREATE UNIQUE INDEX submission_request ON submission (session, conversation, request_id) WHERE request_id IS NOT NULL;

-- scope: 0 session, 1 conversation, 2 task. name is '' for a singleton and '=' with the key for a member. policy: 0 none, else
-- 10 * (1 latest, 2 rewindable) + (0 asOf, 1 current, 2 initial). One that was retired by the commit that made it has no address.
CREATE TABLE document (
  session INTEGER NOT NULL, id INTEGER NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, scope INTEGER NOT NULL,
  scope_id INTEGER NOT NULL, policy INTEGER NOT NULL, created_at INTEGER NOT NULL, retired_at INTEGER, PRIMARY KEY (session, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX document_address ON document (session, scope, scope_id, kind, name, created_at)
  WHERE retired_at IS NULL OR retired_at > created_at;
CREATE INDEX document_alive ON document (session, scope, scope_id, id) WHERE retired_at IS NULL;
CREATE INDEX document_past ON document (session, scope, scope_id, id) WHERE retired_at IS NOT NULL;

CREATE TABLE content (
  session INTEGER NOT NULL, document INTEGER NOT NULL, seq INTEGER NOT NULL, version INTEGER NOT NULL, base INTEGER NOT NULL,
  body TEXT NOT NULL, PRIMARY KEY (session, document, seq)
) STRICT, WITHOUT ROWID;

-- Content below this sequence is not needed any more.
CREATE TABLE reclaim (
  session INTEGER NOT NULL, document INTEGER NOT NULL, below INTEGER NOT NULL, PRIMARY KEY (session, document)
) STRICT, WITHOUT ROWID;

CREATE TABLE request (
  session INTEGER NOT NULL, key TEXT NOT NULL, digest TEXT NOT NULL, answer TEXT NOT NULL, at INTEGER NOT NULL,
  PRIMARY KEY (session, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX request_at ON request (at);

CREATE TABLE outbox (id BLOB NOT NULL, submission INTEGER NOT NULL, body TEXT NOT NULL, PRIMARY KEY (id, submission)) STRICT, WITHOUT ROWID;
CREATE TABLE wake (id BLOB PRIMARY KEY, partition INTEGER NOT NULL, at INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE INDEX wake_due ON wake (partition, at, id);
";

/// Makes the file where there is none. It appears complete: built beside its place, synced, then renamed, so that a crash leaves no
/// half-made store and an empty file is always damage.
pub(super) fn create(place: &Place, partitions: PartitionCount) -> Result<(), StorageError> {
    let path = &*place.0;
    let log = beside(path, "-wal");
    // A log without its file would be replayed into the new file.
    if std::fs::metadata(&log).is_ok_and(|log| log.len() > 0) {
        return Err(OpenError::OnlyLog { file: path.to_owned(), log }.at(path));
    }
    let new = beside(path, "-new");
    let io = |error| OpenError::io(path, error).at(path);
    for rest in [new.clone(), beside(&new, "-wal"), beside(&new, "-shm"), beside(&new, "-journal")] {
        match std::fs::remove_file(&rest) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(io(error)),
            _ => {}
        }
    }
    build(&new, partitions).map_err(|error| place.unopened(error))?;
    File::open(&new).and_then(|file| file.sync_all()).map_err(io)?;
    std::fs::rename(&new, path).map_err(io)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    File::open(parent).and_then(|parent| parent.sync_all()).map_err(io)
}

fn build(path: &Path, partitions: PartitionCount) -> rusqlite::Result<()> {
    let connection = Connection::open_with_flags(path, flags(OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE))?;
    connection.pragma_update(None, "application_id", APPLICATION_ID)?;
    connection.execute_batch("BEGIN")?;
    connection.execute_batch(TABLES)?;
    let meta = [
        ("version", i64::from(VERSION)),
        ("compatible_from", i64::from(COMPATIBLE_FROM)),
        ("partitions", i64::from(partitions.get())),
        ("settled", 0),
    ];
    for (key, value) in meta {
        connection.execute(sql::META_INSERT, (key, value))?;
    }
    connection.execute_batch("COMMIT")?;
    connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
    connection.close().map_err(|(_, error)| error)
}

/// The flags of every connection: one thread uses a connection at a time, and a path is a path and no URI.
fn flags(rights: OpenFlags) -> OpenFlags {
    rights | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_EXRESCODE
}

/// The writer's connection to a file that is there.
pub(super) fn writer(path: &Path, durability: Durability) -> rusqlite::Result<Connection> {
    let connection = Connection::open_with_flags(path, flags(OpenFlags::SQLITE_OPEN_READ_WRITE))?;
    common(&connection)?;
    // Readers go on beside the writer, and a commit is one sequential write and one sync.
    connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
    let synchronous = match durability {
        // Every COMMIT syncs the log: what was acknowledged survives a loss of power.
        Durability::Power => "FULL",
        // Only checkpoints sync: what was acknowledged survives a kill of the process, the newest commits not a loss of power.
        Durability::Process => "NORMAL",
    };
    connection.pragma_update(None, "synchronous", synchronous)?;
    // The log is copied into the database when it has about 64 MB, and not 4 MB as by default: a group touches some pages of each of its
    // sessions, and a page that many groups touched is copied once. Reading the log after a crash takes a fraction of a second.
    connection.pragma_update(None, "wal_autocheckpoint", 16_000)?;
    // A log that grew during a long read is cut to this after the next checkpoint, instead of staying large for ever.
    connection.pragma_update(None, "journal_size_limit", 128 << 20)?;
    // 64 MB of pages, so that the newest page of a few thousand sessions stays in memory.
    connection.pragma_update(None, "cache_size", -64_000)?;
    Ok(connection)
}

/// A connection that only reads.
pub(super) fn reader(path: &Path) -> rusqlite::Result<Connection> {
    let connection = only_read(path)?;
    // The flag above concerns the file; this also refuses a statement that would write, so that a mistake is an error.
    connection.pragma_update(None, "query_only", true)?;
    // 8 MB of pages for each reader; the system's cache has the rest.
    connection.pragma_update(None, "cache_size", -8_000)?;
    Ok(connection)
}

/// A connection that reads the file and may write another one.
pub(super) fn copier(path: &Path) -> rusqlite::Result<Connection> {
    only_read(path)
}

/// Opens a file without the right to write it. Even so SQLite has to make files beside it, for its log and the index of that. Where the
/// folder can't be written, it is read as a file that nobody changes, provided that it has no log whose commits would be missed: whoever
/// has the store open has such a log.
fn only_read(path: &Path) -> rusqlite::Result<Connection> {
    let rights = flags(OpenFlags::SQLITE_OPEN_READ_ONLY);
    let opened = Connection::open_with_flags(path, rights).and_then(read_once);
    let unwritable = |error: &rusqlite::Error| matches!(error.sqlite_error_code(), Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly));
    match opened {
        Err(error) if unwritable(&error) && path.exists() && log(path).is_none() => {
            Connection::open_with_flags(immutable(path), rights | OpenFlags::SQLITE_OPEN_URI).and_then(read_once)
        }
        opened => opened,
    }
}

/// The first read of a connection, which is where SQLite opens the log.
fn read_once(connection: Connection) -> rusqlite::Result<Connection> {
    common(&connection)?;
    connection.query_row("PRAGMA schema_version", [], |_| Ok(()))?;
    Ok(connection)
}

/// The log of a file, where it has commits.
pub(super) fn log(path: &Path) -> Option<PathBuf> {
    let log = beside(path, "-wal");
    std::fs::metadata(&log).is_ok_and(|found| found.len() > 0).then_some(log)
}

/// A path as a URI that says that nobody changes the file.
fn immutable(path: &Path) -> String {
    let mut uri = "file:".to_owned();
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => uri.push(char::from(*byte)),
            byte => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri.push_str("?immutable=1");
    uri
}

fn common(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    // A statement has one plan, whatever is bound to it. Otherwise SQLite would compile statements again when other values are bound.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    // There are none; the bundled library would turn the checks on.
    connection.pragma_update(None, "foreign_keys", false)?;
    // Sorting and lists never go to a file.
    connection.pragma_update(None, "temp_store", "MEMORY")
}

/// What every SQLite file begins with.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// Checks that nothing was cut off the file. SQLite takes an empty file for a new database and reads a page that is cut off as if zeros
/// followed. Where there is a log it may hold what the file lacks, and a checkpoint may have been killed in the middle of a page.
pub(super) fn whole(place: &Place, length: u64) -> Result<(), StorageError> {
    let path = &*place.0;
    if std::fs::metadata(beside(path, "-wal")).is_ok_and(|log| log.len() > 0) {
        return Ok(());
    }
    if length == 0 {
        return Err(place.corrupt("the file", "it is empty (if nothing was ever stored in it, remove it and a new store is made)").into());
    }
    let io = |error| OpenError::io(path, error).at(path);
    let mut header = Vec::with_capacity(100);
    File::open(path).and_then(|file| file.take(100).read_to_end(&mut header)).map_err(io)?;
    let begins = header.iter().zip(MAGIC).all(|(found, magic)| found == magic);
    if !begins {
        return Err(OpenError::NoDatabase(path.to_owned()).at(path));
    }
    let number =
        |from: usize, bytes: usize| header.get(from..from + bytes).map(|field| field.iter().fold(0, |n, byte| n << 8 | u64::from(*byte)));
    let cut = |of: String| place.corrupt("the file", format!("it is cut off: it has {length} bytes of {of}")).into();
    let (Some(page), Some(pages), 100) = (number(16, 2), number(28, 4), header.len()) else {
        return Err(cut("a header of 100".to_owned()));
    };
    // The largest page size does not fit into its field and is written as 1.
    let page = if page == 1 { 65_536 } else { page };
    if length < page * pages { Err(cut((page * pages).to_string())) } else { Ok(()) }
}

/// Checks that the file is a store that this program can use, and gives its partitions.
pub(super) fn check(connection: &Connection, place: &Place) -> Result<PartitionCount, StorageError> {
    let path = &*place.0;
    let application: i32 = connection.query_row("PRAGMA application_id", [], |row| row.get(0)).map_err(|error| place.unopened(error))?;
    if application != APPLICATION_ID {
        return Err(OpenError::OtherApplication(path.to_owned()).at(path));
    }
    let meta = |key: &'static str| -> Result<i64, StorageError> {
        connection.query_row(sql::META, [key], |row| row.get(0)).map_err(|error| match error {
            rusqlite::Error::QueryReturnedNoRows => place.corrupt("the table meta", format!("{key} is missing")).into(),
            error => place.unopened(error),
        })
    };
    let number = |key| meta(key).map(|value| u32::try_from(value).unwrap_or(u32::MAX));
    let (found, compatible_from) = (number("version")?, number("compatible_from")?);
    if compatible_from > VERSION {
        return Err(StorageError::SchemaTooNew { store: place.name(), found, compatible_from, known: VERSION });
    }
    let stored = meta("partitions")?;
    let count = u16::try_from(stored).ok().and_then(PartitionCount::new);
    count.ok_or_else(|| place.corrupt("the table meta", format!("{stored} is no count of partitions")).into())
}
