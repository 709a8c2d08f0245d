//! Opening a store in a directory: to write it, or to look at it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use picofleet_session::storage::{Corruption, StorageError};
use picofleet_session::{Millis, PartitionCount, SessionId};
use tokio::sync::mpsc;

use super::files::Files;
use super::format::{self, FORMAT, StoreFile, TombstoneLine};
use super::journal::Journal;
use super::load::{self, Input, Loaded, Tail};
use super::sidecar::Sizes;
use super::{JsonlOptions, JsonlStore, OpenError, QUEUE_MAX, STORE, TOMBSTONES, Work};
use crate::memory::state::Shared;
use crate::memory::{Faults, MemoryStore, maintain};
use crate::sqlite::lock::Lock;

/// What the directories of sessions came to.
#[derive(Default)]
struct Found {
    sizes: HashMap<SessionId, Sizes>,
    damaged: BTreeMap<SessionId, StorageError>,
    swept: HashMap<SessionId, u64>,
    tails: Vec<(SessionId, Tail)>,
}

impl Found {
    fn take(&mut self, shared: &Shared, id: SessionId, loaded: Result<Option<Loaded>, StorageError>) {
        match loaded {
            Ok(Some(loaded)) => {
                self.sizes.insert(id, loaded.sizes);
                self.swept.insert(id, loaded.swept);
                self.tails.extend(loaded.tails.into_iter().map(|tail| (id, tail)));
                crate::memory::add(&mut shared.state(), loaded.record, loaded.rows);
            }
            Ok(None) => {}
            Err(error) => {
                tracing::error!(session = %id, error = %error, "the files of a session are damaged; the others can be used");
                self.damaged.insert(id, error);
            }
        }
    }
}

/// See [`JsonlStore::open`].
pub(super) fn open(directory: &Path, options: JsonlOptions, mut files: Box<dyn Files>) -> Result<JsonlStore, StorageError> {
    let failed = |error| OpenError::io(directory, error).at(directory);
    std::fs::create_dir_all(directory).map_err(failed)?;
    let root = directory.canonicalize().map_err(failed)?;
    let lock = Lock::take(&root.join("store"))?;
    let partitions = store_file(&root, options, &mut *files)?;
    let shared = Arc::new(Shared::new(partitions, Faults::new()));
    let tombstones = tombstones(&Input::Own(root.join(TOMBSTONES)))?;
    let mut found = Found::default();
    for (id, path) in session_directories(&root, true)? {
        found.take(&shared, id, load::session(&path).map(Some));
    }
    let Found { sizes, damaged, swept, .. } = found;
    bury(&shared, tombstones, &swept);
    let place: Arc<Path> = Arc::from(&*root);
    let journal = Journal {
        root,
        files,
        fsync: options.fsync,
        reclaim_bytes: options.reclaim_bytes,
        shared: Arc::clone(&shared),
        sizes,
        deferred: BTreeSet::new(),
        poisoned: None,
    };
    let (queue, ended) = start(journal, lock).map_err(failed)?;
    let (damaged, tails) = (Arc::new(damaged), Arc::default());
    Ok(JsonlStore { rows: MemoryStore(shared), queue: Some(queue), directory: place, damaged, tails, ended: Arc::new(ended) })
}

/// See [`JsonlStore::open_read_only`].
pub(super) fn look(directory: &Path) -> Result<JsonlStore, StorageError> {
    let failed = |error| OpenError::io(directory, error).at(directory);
    let missing = || OpenError::Missing(directory.to_owned()).at(directory);
    let root = directory.canonicalize().map_err(|error| if gone(&error) { missing() } else { failed(error) })?;
    let path = root.join(STORE);
    let bytes = std::fs::read(&path).map_err(|error| if gone(&error) { missing() } else { failed(error) })?;
    let shared = Arc::new(Shared::new(partitions_of(&root, &path, &bytes)?, Faults::new()));
    // Before the sessions: one that is deleted meanwhile is shown as it was.
    let path = root.join(TOMBSTONES);
    let bytes = std::fs::read(&path).or_else(|error| if gone(&error) { Ok(Vec::new()) } else { Err(failed(error)) })?;
    let tombstones = tombstones(&Input::Copy { path, bytes })?;
    let mut found = Found::default();
    for (id, path) in session_directories(&root, false)? {
        found.take(&shared, id, load::look(&path));
    }
    bury(&shared, tombstones, &found.swept);
    let (_, ended) = tokio::sync::watch::channel(true);
    let (damaged, tails) = (Arc::new(found.damaged), Arc::new(found.tails));
    Ok(JsonlStore { rows: MemoryStore(shared), queue: None, directory: Arc::from(root), damaged, tails, ended: Arc::new(ended) })
}

fn gone(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::NotFound
}

/// Marks what was deleted.
fn bury(shared: &Shared, tombstones: Vec<(SessionId, Millis)>, swept: &HashMap<SessionId, u64>) {
    let mut state = shared.state();
    for (id, at) in tombstones {
        if !crate::memory::delete(&mut state, id, at) {
            state.tombstones.insert(id, at);
        } else if let Some(session) = state.sessions.get_mut(&id) {
            maintain::sweep_again(&mut session.rows, swept.get(&id).copied().unwrap_or(0));
        }
    }
}

fn corrupt(path: &Path, why: String) -> StorageError {
    Corruption { store: path.display().to_string(), what: "the file".to_owned(), why }.into()
}

/// What `store.json` says.
fn partitions_of(root: &Path, path: &Path, bytes: &[u8]) -> Result<PartitionCount, StorageError> {
    let StoreFile { format, partitions } = format::decode(bytes.trim_ascii_end()).map_err(|why| corrupt(path, why))?;
    if format > FORMAT {
        return Err(StorageError::SchemaTooNew {
            store: root.display().to_string(),
            found: format,
            compatible_from: format,
            known: FORMAT,
        });
    }
    PartitionCount::new(partitions).ok_or_else(|| corrupt(path, format!("{partitions} is no count of partitions")))
}

/// Starts the thread that writes; it ends, and gives the lock back, when nobody can send to it any more, or the store is closed.
fn start(mut journal: Journal, lock: Lock) -> std::io::Result<(mpsc::Sender<Work>, tokio::sync::watch::Receiver<bool>)> {
    let (queue, mut works) = mpsc::channel::<Work>(QUEUE_MAX);
    let (over, ended) = tokio::sync::watch::channel(false);
    std::thread::Builder::new().name("picofleet-jsonl".to_owned()).spawn(move || {
        while let Some(work) = works.blocking_recv() {
            if std::panic::catch_unwind(AssertUnwindSafe(|| work(&mut journal))).is_err() {
                // Nobody knows how far it came.
                let _ = journal.poison("write", std::io::Error::other("the work panicked"));
            }
            if journal.shared.state().closed && *journal.shared.in_flight.borrow() == 0 {
                break;
            }
        }
        drop(journal);
        drop(lock);
        over.send_replace(true);
    })?;
    Ok((queue, ended))
}

/// `store.json`, made where the directory is new.
fn store_file(root: &Path, options: JsonlOptions, files: &mut dyn Files) -> Result<PartitionCount, StorageError> {
    let path = root.join(STORE);
    let failed = |error| OpenError::io(&path, error).at(root);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            // A kill may have left the file before it got its name.
            let others = root
                .read_dir()
                .map_err(failed)?
                .filter_map(Result::ok)
                .any(|entry| entry.file_name() != "store-lock" && entry.file_name() != "store.tmp");
            if others {
                return Err(OpenError::OtherFiles(root.to_owned()).at(root));
            }
            let partitions = options.partitions.unwrap_or(PartitionCount::DEFAULT);
            let bytes = format::encode(&StoreFile { format: FORMAT, partitions: partitions.get() }).map_err(|why| corrupt(&path, why))?;
            files.replace(&path, &bytes, options.fsync).map_err(failed)?;
            return Ok(partitions);
        }
        Err(error) => return Err(failed(error)),
    };
    let partitions = partitions_of(root, &path, &bytes)?;
    let stored = partitions.get();
    match options.partitions.filter(|asked| *asked != partitions) {
        Some(asked) => Err(OpenError::Partitions { directory: root.to_owned(), stored, asked: asked.get() }.at(root)),
        None => Ok(partitions),
    }
}

fn tombstones(input: &Input) -> Result<Vec<(SessionId, Millis)>, StorageError> {
    let mut found = Vec::new();
    if input.path().exists() {
        input.lines(|line| {
            let TombstoneLine { session, at } = format::decode(line)?;
            found.push((session, at));
            Ok(true)
        })?;
    }
    Ok(found)
}

/// The directories of sessions. In a store of this process one that was not whole when the last one ended is removed.
fn session_directories(root: &Path, own: bool) -> Result<Vec<(SessionId, PathBuf)>, StorageError> {
    let failed = |error| OpenError::io(root, error).at(root);
    let mut found = Vec::new();
    for entry in root.read_dir().map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.ends_with(".tmp") {
            if !own {
                continue;
            }
            if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) }.map_err(failed)?;
        } else if let Ok(id) = name.parse()
            && path.is_dir()
        {
            found.push((id, path));
        }
    }
    found.sort_unstable();
    Ok(found)
}
