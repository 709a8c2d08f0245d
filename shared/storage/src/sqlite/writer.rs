//! The one thread that writes.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use picofleet_session::PartitionCount;
use picofleet_session::storage::{Rejection, StorageError};
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::SqliteOptions;
use super::errors::Place;
use super::export::Exports;
use super::lock::Lock;
use super::maintain::{Reclaim, Round};
use super::schema;
use super::tables::Tx;
use crate::tables::Found;

/// Most commands that wait. Each session has at most one batch among them, so a busy store has about as many as it has sessions.
const QUEUE_MAX: usize = 4_096;

/// Most bytes of text that wait, so that large batches can't fill the memory.
const QUEUE_BYTES_MAX: usize = 256 << 20;

/// Most units of a group (`protocol.md` 2).
const GROUP_UNITS_MAX: usize = 256;

/// A group that has this many bytes of text takes no more units.
const GROUP_BYTES: usize = 1 << 20;

/// After how many groups the size of the log is looked at. A group has some MB at most.
const GROUPS_PER_LOOK: u64 = 64;

/// Work that shares its transaction with others. It may be run several times until one transaction lands.
pub(super) trait Unit: Send {
    /// Writes. Nothing of it stays when this fails.
    fn run(&mut self, tx: &mut Tx<'_>) -> Found<()>;

    /// About how many bytes it writes.
    fn bytes(&self) -> usize {
        0
    }

    /// Answers.
    fn settle(self: Box<Self>, outcome: Result<(), StorageError>);
}

/// Gets the error instead of the writer where it is never begun.
type Alone = Box<dyn FnOnce(Result<&mut Writer, StorageError>) + Send>;

enum Command {
    Unit(Box<dyn Unit>),
    /// Work with transactions of its own, between groups.
    Alone(Alone),
    Close(oneshot::Sender<()>),
}

/// Whether something can be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Gate {
    #[default]
    Open,
    /// The store was closed.
    Closed,
    /// The thread ended without being told to.
    Gone,
}

/// The way to the thread.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    place: Place,
    commands: SyncSender<Command>,
    bytes: Arc<AtomicUsize>,
    /// Held while something is sent, so that nothing comes after the last command.
    gate: Arc<RwLock<Gate>>,
}

impl Queue {
    /// Sends a unit. One that can't be sent is answered.
    pub(super) fn send(&self, unit: Box<dyn Unit>) {
        let gate = self.gate();
        if let Err(error) = self.check(*gate) {
            return unit.settle(Err(error));
        }
        let bytes = unit.bytes();
        if bytes > QUEUE_BYTES_MAX {
            return unit.settle(Err(Rejection::TooLarge { bytes, most: QUEUE_BYTES_MAX }.into()));
        }
        if self.bytes.load(Ordering::Relaxed).saturating_add(bytes) > QUEUE_BYTES_MAX {
            return unit.settle(Err(Rejection::Overloaded.into()));
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let (unit, error) = match self.commands.try_send(Command::Unit(unit)) {
            Ok(()) => return,
            Err(TrySendError::Full(Command::Unit(unit))) => (unit, Rejection::Overloaded.into()),
            Err(TrySendError::Disconnected(Command::Unit(unit))) => (unit, self.place.gone()),
            Err(_) => return,
        };
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        unit.settle(Err(error));
    }

    /// Does a small piece of work in a group.
    pub(super) async fn unit<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut Tx<'_>) -> Found<T> + Send + 'static,
    ) -> Result<T, StorageError> {
        self.sized(0, work).await
    }

    /// Does a piece of work that writes about `bytes` in a group.
    pub(super) async fn sized<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnMut(&mut Tx<'_>) -> Found<T> + Send + 'static,
    ) -> Result<T, StorageError> {
        let (answer, answered) = oneshot::channel();
        self.send(Box::new(Work { work, bytes, done: None, answer }));
        answered.await.unwrap_or_else(|_| Err(StorageError::lost()))
    }

    /// Does a piece of work with transactions of its own.
    pub(super) async fn alone<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Writer) -> Result<T, StorageError> + Send + 'static,
    ) -> Result<T, StorageError> {
        let (answer, answered) = oneshot::channel();
        let command: Alone = Box::new(move |writer| {
            // The caller may have gone.
            let _ = answer.send(writer.and_then(work));
        });
        {
            let gate = self.gate();
            self.check(*gate)?;
            match self.commands.try_send(Command::Alone(command)) {
                Ok(()) => {}
                Err(TrySendError::Full(_)) => return Err(Rejection::Overloaded.into()),
                Err(TrySendError::Disconnected(_)) => return Err(self.place.gone()),
            }
        }
        answered.await.unwrap_or_else(|_| Err(StorageError::lost()))
    }

    fn gate(&self) -> RwLockReadGuard<'_, Gate> {
        self.gate.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self, gate: Gate) -> Result<(), StorageError> {
        match gate {
            Gate::Open => Ok(()),
            Gate::Closed => Err(StorageError::Closed),
            Gate::Gone => Err(self.place.gone()),
        }
    }

    /// Refuses what comes from now on.
    pub(super) fn seal(&self) {
        *self.gate.write().unwrap_or_else(PoisonError::into_inner) = Gate::Closed;
    }

    /// Lets what was sent settle and ends the thread. A blocking call, since the queue may be full.
    pub(super) fn close(&self) {
        self.seal();
        let (answer, answered) = oneshot::channel();
        if self.commands.send(Command::Close(answer)).is_ok() {
            // An error means that the thread has ended, which is all that is asked for.
            let _ = answered.blocking_recv();
        }
    }
}

/// The thread's end of the queue. Whatever ends the thread, what is still queued was never begun and is answered so.
struct Commands {
    place: Place,
    /// One that was taken and not begun.
    next: Option<Command>,
    queue: Receiver<Command>,
    gate: Arc<RwLock<Gate>>,
}

impl Commands {
    /// The next command; waits for it. `None` when nobody is left to send.
    fn next(&mut self) -> Option<Command> {
        self.next.take().or_else(|| self.queue.recv().ok())
    }

    /// The next command where it is there and a unit.
    fn unit(&mut self) -> Option<Box<dyn Unit>> {
        match self.queue.try_recv() {
            Ok(Command::Unit(unit)) => Some(unit),
            Ok(other) => {
                self.next = Some(other);
                None
            }
            Err(_) => None,
        }
    }
}

impl Drop for Commands {
    fn drop(&mut self) {
        {
            let mut gate = self.gate.write().unwrap_or_else(PoisonError::into_inner);
            if *gate == Gate::Open {
                *gate = Gate::Gone;
            }
        }
        while let Some(command) = self.next.take().or_else(|| self.queue.try_recv().ok()) {
            match command {
                Command::Unit(unit) => unit.settle(Err(self.place.gone())),
                Command::Alone(work) => work(Err(self.place.gone())),
                // Dropping the answer tells that the thread has ended.
                Command::Close(_) => {}
            }
        }
    }
}

struct Work<T, F> {
    work: F,
    bytes: usize,
    done: Option<T>,
    answer: oneshot::Sender<Result<T, StorageError>>,
}

impl<T: Send, F: FnMut(&mut Tx<'_>) -> Found<T> + Send> Unit for Work<T, F> {
    fn run(&mut self, tx: &mut Tx<'_>) -> Found<()> {
        self.done = Some((self.work)(tx)?);
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn settle(self: Box<Self>, outcome: Result<(), StorageError>) {
        let Self { done, answer, .. } = *self;
        // The caller may have gone.
        let _ = answer.send(outcome.and_then(|()| done.ok_or_else(StorageError::lost)));
    }
}

/// Local numbers of sessions.
pub(super) type Imports = Arc<Mutex<HashSet<i64>>>;

/// The state of the thread.
pub(super) struct Writer {
    pub(super) place: Place,
    pub(super) partitions: PartitionCount,
    pub(super) options: SqliteOptions,
    /// `None` after a failure that the next work answers with a fresh connection.
    connection: Option<Connection>,
    pub(super) reclaim: Reclaim,
    pub(super) round: Round,
    /// The sessions that are being imported: maintenance leaves them alone.
    pub(super) imports: Imports,
    exports: Exports,
    pub(super) groups: u64,
    queued: Arc<AtomicUsize>,
}

/// What the thread has, in the order in which it goes: the file is closed and free before the last are answered.
struct Serving {
    writer: Writer,
    _lock: Lock,
    commands: Commands,
}

impl Writer {
    pub(super) fn new(
        place: Place,
        partitions: PartitionCount,
        options: SqliteOptions,
        connection: Connection,
        imports: Imports,
        exports: Exports,
    ) -> Self {
        let (reclaim, round) = (Reclaim::default(), Round::default());
        Self {
            place,
            partitions,
            options,
            connection: Some(connection),
            reclaim,
            round,
            imports,
            exports,
            groups: 0,
            queued: Arc::default(),
        }
    }

    /// Starts the thread. It holds the lock as long as it runs.
    pub(super) fn start(self, lock: Lock) -> std::io::Result<Queue> {
        let (commands, queue) = sync_channel(QUEUE_MAX);
        let (bytes, gate, place) = (Arc::clone(&self.queued), Arc::default(), self.place.clone());
        let received = Commands { place: place.clone(), next: None, queue, gate: Arc::clone(&gate) };
        let mut serving = Serving { writer: self, _lock: lock, commands: received };
        std::thread::Builder::new().name("sqlite-writer".to_owned()).spawn(move || {
            let closed = serving.writer.serve(&mut serving.commands);
            drop(serving);
            if let Some(answer) = closed {
                // The caller may have gone.
                let _ = answer.send(());
            }
        })?;
        Ok(Queue { place, commands, bytes, gate })
    }

    /// Works until it is told to close or nobody is left to send.
    fn serve(&mut self, commands: &mut Commands) -> Option<oneshot::Sender<()>> {
        while let Some(command) = commands.next() {
            match command {
                Command::Unit(unit) => self.gather(unit, commands),
                Command::Alone(work) => work(Ok(self)),
                Command::Close(answer) => return Some(answer),
            }
        }
        None
    }

    /// Does a group of what is queued, beginning with `unit`.
    fn gather(&mut self, unit: Box<dyn Unit>, commands: &mut Commands) {
        let mut bytes = unit.bytes();
        let mut units = vec![unit];
        while units.len() < GROUP_UNITS_MAX && bytes < GROUP_BYTES {
            let Some(unit) = commands.unit() else { break };
            bytes += unit.bytes();
            units.push(unit);
        }
        self.queued.fetch_sub(bytes, Ordering::Relaxed);
        self.group(units);
        self.groups += 1;
        if self.groups.is_multiple_of(GROUPS_PER_LOOK) {
            self.exports.shed(&self.place);
        }
    }

    pub(super) fn take_connection(&mut self) -> rusqlite::Result<Connection> {
        match self.connection.take() {
            Some(connection) => Ok(connection),
            None => schema::writer(&self.place.0, self.options.durability),
        }
    }

    pub(super) fn keep_connection(&mut self, connection: Connection) {
        if connection.is_autocommit() {
            self.connection = Some(connection);
        }
    }

    /// As it is, for tests of what a broken connection does.
    #[cfg(test)]
    pub(super) fn force_connection(&mut self, connection: Connection) {
        self.connection = Some(connection);
    }
}
