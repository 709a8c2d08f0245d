//! Recovery (section 11.3): the confirmed lines of the files make the rows; what nothing confirms is cut off.

mod input;
mod look;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use picofleet_delta::Json;
use picofleet_session::storage::{Batch, Commit, Corruption, Head, SessionRecord, StorageError, Write};
use picofleet_session::{DocumentContent, DocumentCreate, DocumentId, Seq, TaskId, TaskRecord};

use super::format::{AnyLine, CommitLine, ContentLine, MainLine, Pruned, TaskLine, WriteLine, decode, decode_main};
use super::sidecar::{Sidecar, Size, Sizes};
use super::{MAIN, OpenError};
use crate::memory::rows::Rows;
use crate::rules::{self, Import};

pub(super) use input::{Input, Tail};
pub(super) use look::look;

/// A session as its files have it.
pub(super) struct Loaded {
    pub(super) record: SessionRecord,
    pub(super) rows: Rows,
    pub(super) sizes: Sizes,
    /// Rows that were swept since the session was deleted.
    pub(super) swept: u64,
    /// What nothing confirms.
    pub(super) tails: Vec<Tail>,
}

/// Reads a session's directory, and cuts off what no marker confirms.
///
/// # Errors
/// [`StorageError::Corrupt`] where something confirmed is missing or can't be read; [`StorageError::Failed`] where the system refuses.
pub(super) fn session(directory: &Path) -> Result<Loaded, StorageError> {
    let failed = |error| OpenError::io(directory, error).at(directory);
    let mut sidecars = Vec::new();
    for entry in directory.read_dir().map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.ends_with(".tmp") {
            // A replacement that did not take its place.
            std::fs::remove_file(&path).map_err(failed)?;
        } else if let Some(sidecar) = Sidecar::named(name) {
            sidecars.push((sidecar, Input::Own(path)));
        }
    }
    load(directory, &Input::Own(directory.join(MAIN)), sidecars)
}

/// Reads a session's files.
fn load(directory: &Path, main: &Input, inputs: Vec<(Sidecar, Input)>) -> Result<Loaded, StorageError> {
    let mut lines = Vec::new();
    let tail = main.lines(|line| {
        lines.push(decode_main(line)?);
        Ok(true)
    })?;
    let facts = Facts::of(&lines);
    let mut sidecars = Sidecars { contents: HashMap::new(), tasks: HashMap::new(), sizes: Sizes::new(), tails: tail.into_iter().collect() };
    for (sidecar, input) in inputs {
        sidecars.file(&input, sidecar, &facts)?;
    }
    let mut replay = Replay::new(directory, &facts, &sidecars);
    for (at, line) in lines.into_iter().enumerate() {
        replay.take(line).map_err(|why| corrupt(main.path(), format!("line {}", at + 1), why))?;
    }
    replay.finish(directory, main.own())
}

fn corrupt(path: &Path, what: impl Into<String>, why: String) -> StorageError {
    Corruption { store: path.display().to_string(), what: what.into(), why }.into()
}

/// What the markers say about sidecars, before anything is read from those.
#[derive(Default)]
struct Facts {
    /// The newest confirmed sequence.
    last: i64,
    documents: HashMap<i64, DocumentFacts>,
    tasks: HashMap<i64, TaskFacts>,
}

#[derive(Default)]
struct DocumentFacts {
    rewindable: bool,
    retired: bool,
    /// The commits that wrote a base.
    bases: Vec<i64>,
}

#[derive(Default)]
struct TaskFacts {
    terminal: Option<Arc<TaskRecord>>,
}

impl Facts {
    fn of(lines: &[AnyLine]) -> Self {
        let mut facts = Self::default();
        for line in lines {
            match line {
                AnyLine::Main(MainLine::Session { head, .. } | MainLine::Head(head)) => facts.last = facts.last.max(head.seq.0),
                AnyLine::Main(MainLine::Commits(commits)) => {
                    for commit in commits {
                        facts.last += 1;
                        commit.writes.iter().for_each(|write| facts.write(write));
                    }
                }
                AnyLine::Export(picofleet_session::storage::ExportLine::Document(record)) => {
                    let document = facts.documents.entry(record.create.id.get()).or_default();
                    document.rewindable = record.create.placement.rewindable();
                }
                AnyLine::Main(_) | AnyLine::Export(_) => {}
            }
        }
        facts
    }

    fn write(&mut self, write: &WriteLine) {
        match write {
            WriteLine::Create { create, .. } => {
                let document = self.documents.entry(create.id.get()).or_default();
                document.rewindable = create.placement.rewindable();
                document.bases.push(self.last);
            }
            WriteLine::Content { id, base: true } => self.documents.entry(id.get()).or_default().bases.push(self.last),
            WriteLine::Whole(Write::DocumentRetire(id)) => self.documents.entry(id.get()).or_default().retired = true,
            WriteLine::Whole(Write::Task(task)) => self.tasks.entry(task.id.get()).or_default().terminal = Some(Arc::clone(task)),
            WriteLine::Task(id) => {
                self.tasks.entry(id.get()).or_default();
            }
            WriteLine::Content { base: false, .. } | WriteLine::Whole(_) => {}
        }
    }
}

/// What the sidecars have.
struct Sidecars {
    contents: HashMap<i64, BTreeMap<i64, DocumentContent>>,
    tasks: HashMap<i64, BTreeMap<i64, Arc<TaskRecord>>>,
    sizes: Sizes,
    tails: Vec<Tail>,
}

impl Sidecars {
    fn file(&mut self, input: &Input, sidecar: Sidecar, facts: &Facts) -> Result<(), StorageError> {
        let mut size = Size::default();
        let tail = match sidecar {
            Sidecar::Document(id) => {
                let history = facts.documents.get(&id).is_some_and(|document| document.rewindable);
                let mut contents = BTreeMap::new();
                let tail = input.lines(|line| {
                    let ContentLine { seq, content } = decode(line)?;
                    let confirmed = seq.0 <= facts.last && facts.documents.contains_key(&id);
                    if confirmed {
                        size.append(seq, line.len() as u64 + 1, !history && matches!(content, DocumentContent::Base { .. }));
                        contents.insert(seq.0, content);
                    }
                    Ok(confirmed)
                })?;
                // A look may have two files of one sidecar: the one before a reclamation and the one after it.
                self.contents.entry(id).or_default().extend(contents);
                tail
            }
            Sidecar::Task(id) => {
                let mut records = BTreeMap::new();
                let tail = input.lines(|line| {
                    let TaskLine { seq, task } = decode(line)?;
                    let confirmed = seq.0 <= facts.last && facts.tasks.contains_key(&id);
                    if confirmed {
                        size.append(seq, line.len() as u64 + 1, true);
                        records.insert(seq.0, Arc::new(task));
                    }
                    Ok(confirmed)
                })?;
                self.tasks.entry(id).or_default().extend(records);
                tail
            }
        };
        self.tails.extend(tail);
        if size.all == 0 {
            let path = input.path();
            return if input.own() { std::fs::remove_file(path).map_err(|error| OpenError::io(path, error).at(path)) } else { Ok(()) };
        }
        self.sizes.insert(sidecar, size);
        Ok(())
    }
}

/// Plays the lines of `main.jsonl` through the rules.
struct Replay<'a> {
    directory: &'a Path,
    facts: &'a Facts,
    sidecars: &'a Sidecars,
    record: Option<SessionRecord>,
    rows: Option<Rows>,
    import: Option<Import>,
    tasks: HashSet<i64>,
    /// Content that stands for one that went.
    placeholders: Vec<(i64, i64)>,
    swept: u64,
}

impl<'a> Replay<'a> {
    fn new(directory: &'a Path, facts: &'a Facts, sidecars: &'a Sidecars) -> Self {
        let (tasks, placeholders) = (HashSet::new(), Vec::new());
        Self { directory, facts, sidecars, record: None, rows: None, import: None, tasks, placeholders, swept: 0 }
    }

    fn take(&mut self, line: AnyLine) -> Result<(), String> {
        match line {
            AnyLine::Main(MainLine::Session { record, head }) => {
                let own = self.directory.file_name().and_then(|name| name.to_str()) == Some(record.id.to_string().as_str());
                if !own || self.rows.is_some() {
                    return Err("the line of a session is not the first, or belongs to another one".to_owned());
                }
                self.record = Some(record);
                self.rows = Some(Rows::new(head));
                Ok(())
            }
            AnyLine::Main(line) => self.main(line),
            AnyLine::Export(line) => {
                let rows = self.rows.as_mut().ok_or(NO_SESSION)?;
                let import = self.import.get_or_insert_with(|| {
                    rows.commits.clear();
                    Import::default()
                });
                import.take(rows, &line).map_err(|error| error.to_string())
            }
        }
    }

    fn main(&mut self, line: MainLine) -> Result<(), String> {
        let rows = self.rows.as_mut().ok_or(NO_SESSION)?;
        if let Some(import) = self.import.take() {
            import.finish(rows).map_err(|error| error.to_string())?;
        }
        match line {
            MainLine::Session { .. } => return Err("a session begins twice".to_owned()),
            MainLine::Head(head) => {
                // The count of openings that an import began with is none.
                rows.set_head(head);
            }
            MainLine::State(state) => self.record.as_mut().ok_or(NO_SESSION)?.state = state,
            MainLine::Acknowledged(submissions) => {
                for submission in submissions {
                    rows.outbox.remove(&submission.get());
                }
            }
            MainLine::Pruned(pruned) => prune(rows, &pruned),
            MainLine::Swept(count) => self.swept += count,
            MainLine::Commits(commits) => self.commits(commits)?,
        }
        Ok(())
    }

    fn commits(&mut self, commits: Vec<CommitLine>) -> Result<(), String> {
        let record = self.record.as_ref().ok_or(NO_SESSION)?;
        let id = record.id;
        let mut rows = self.rows.take().ok_or(NO_SESSION)?;
        let head: Head = rows.head;
        let mut seq = head.seq;
        let mut batch = Batch { expect: (head.seq, head.token), commits: Vec::with_capacity(commits.len()) };
        for CommitLine { token, at, next_id, writes } in commits {
            seq = seq.next();
            let mut whole = Vec::with_capacity(writes.len());
            for write in writes {
                whole.extend(self.write(write, seq)?);
            }
            batch.commits.push(Commit { token, at, next_id, writes: whole });
        }
        rules::apply_batch(&mut rows, id, &head, &batch).map_err(|error| error.to_string())?;
        self.rows = Some(rows);
        Ok(())
    }

    /// The write as it was, one that stands for it, or none where it is not needed any more.
    fn write(&mut self, write: WriteLine, seq: Seq) -> Result<Option<Write>, String> {
        match write {
            WriteLine::Whole(write) => Ok(Some(write)),
            WriteLine::Task(id) => self.task(id, seq).map(|task| task.map(Write::Task)),
            WriteLine::Create { create, version } => self.create(create, version, seq).map(Some),
            WriteLine::Content { id, .. } => {
                let content = self.sidecars.contents.get(&id.get()).and_then(|contents| contents.get(&seq.0)).cloned();
                if content.is_none() {
                    self.unneeded(id, seq)?;
                }
                Ok(content.map(|content| Write::DocumentChange { id, content }))
            }
        }
    }

    fn task(&mut self, id: TaskId, seq: Seq) -> Result<Option<Arc<TaskRecord>>, String> {
        let new = self.tasks.insert(id.get());
        let records = self.sidecars.tasks.get(&id.get());
        if let Some(record) = records.and_then(|records| records.get(&seq.0)) {
            return Ok(Some(Arc::clone(record)));
        }
        let later = records.and_then(|records| records.range(seq.0..).next()).map(|(_, record)| Arc::clone(record));
        let later = later.or_else(|| self.facts.tasks.get(&id.get()).and_then(|task| task.terminal.clone()));
        // What never changes about a task is in every record of it; the later one comes in its own commit.
        let later = later.ok_or_else(|| format!("the record of task {id} of commit {seq} is missing"))?;
        Ok(new.then_some(later))
    }

    fn create(&mut self, create: DocumentCreate, version: u32, seq: Seq) -> Result<Write, String> {
        let content = self.sidecars.contents.get(&create.id.get()).and_then(|contents| contents.get(&seq.0));
        match content {
            Some(DocumentContent::Base { version, value }) => Ok(Write::DocumentCreate { create, version: *version, value: value.clone() }),
            Some(DocumentContent::Delta { .. }) => Err(format!("document {} begins with a delta", create.id)),
            None => {
                self.unneeded(create.id, seq)?;
                self.placeholders.push((create.id.get(), seq.0));
                Ok(Write::DocumentCreate { create, version, value: Json::object::<&str, Json>([]) })
            }
        }
    }

    /// Whether a later base or the retirement made content unnecessary.
    fn unneeded(&self, id: DocumentId, seq: Seq) -> Result<(), String> {
        let facts = self.facts.documents.get(&id.get());
        let contents = self.sidecars.contents.get(&id.get());
        let later = |document: &DocumentFacts| {
            document.bases.iter().any(|base| *base > seq.0 && contents.is_some_and(|contents| contents.contains_key(base)))
        };
        match facts.filter(|document| !document.rewindable && (document.retired || later(document))) {
            Some(_) => Ok(()),
            None => Err(format!("the content of document {id} of commit {seq} is missing")),
        }
    }

    fn finish(mut self, directory: &Path, own: bool) -> Result<Loaded, StorageError> {
        let mut sizes = self.sidecars.sizes.clone();
        let (Some(record), Some(mut rows)) = (self.record.take(), self.rows.take()) else {
            return Err(corrupt(&directory.join(MAIN), "the file", "it has no session".to_owned()));
        };
        if self.import.is_some() {
            return Err(corrupt(&directory.join(MAIN), "the file", "the import in it does not end".to_owned()));
        }
        for placeholder in &self.placeholders {
            rows.contents.remove(placeholder);
        }
        // Left by a crash behind the commit that ended them.
        let over: Vec<Sidecar> = sizes.keys().copied().filter(|sidecar| sidecar.over(&rows)).collect();
        for sidecar in over.into_iter().filter(|sidecar| own && matches!(sidecar, Sidecar::Task(_))) {
            let path = sidecar.path(directory);
            std::fs::remove_file(&path).map_err(|error| OpenError::io(&path, error).at(&path))?;
            sizes.remove(&sidecar);
        }
        Ok(Loaded { record, rows, sizes, swept: self.swept, tails: self.sidecars.tails.clone() })
    }
}

const NO_SESSION: &str = "it comes before the line of the session";

fn prune(rows: &mut Rows, pruned: &Pruned) {
    while let Some(seq) = rows.commits.get_min().map(|(seq, _)| *seq).filter(|seq| *seq < pruned.commits_from.0) {
        rows.commits.remove(&seq);
    }
    while let Some(oldest) = rows.requests_by_time.get_min().cloned() {
        if pruned.requests_from.as_ref().is_some_and(|from| oldest >= *from) {
            return;
        }
        rows.requests.remove(&oldest.1);
        rows.requests_by_time.remove(&oldest);
    }
}
