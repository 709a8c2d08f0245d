//! The session that a case works on, and the restarts between its steps.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use picofleet_session::storage::{Fence, SessionCreate, Store};
use picofleet_session::{
    CacheSize, Clock, ConversationId, Epoch, Millis, ROOT_CONVERSATION_ID, Report, Session, SessionId, SessionOptions,
};

use crate::documents::commit;
use crate::{Backend, Probe};

/// The time of everything in a case.
pub const NOW: Millis = Millis(1_700_000_000_000);

/// How a case runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Everything stays open, and committed state stays in memory.
    Warm,
    /// Next to nothing stays in memory, and every read of storage gives way.
    Cold,
    /// Between every two steps the session is released, the store closed, and both opened again.
    Reopened,
}

/// One session on one backend.
pub struct World {
    backend: Arc<dyn Backend>,
    mode: Mode,
    store: Arc<dyn Store>,
    id: SessionId,
    /// The open session.
    pub session: Session,
    /// Between the session and its storage.
    pub probe: Probe,
    /// Its clock.
    pub clock: Clock,
    report: Option<Report>,
}

impl World {
    /// A store with one session without any record.
    pub async fn empty(backend: impl Backend, mode: Mode) -> Self {
        let backend: Arc<dyn Backend> = Arc::new(backend);
        let store = backend.open().await;
        let create = SessionCreate::new(NOW);
        let id = create.id;
        store.create(create).await.unwrap();
        let (probe, clock) = (Probe::default(), Clock::manual(NOW));
        let session = open(&*store, id, mode, &probe, &clock, None).await;
        Self { backend, mode, store, id, session, probe, clock, report: None }
    }

    /// A store with one session that has its root conversation.
    pub async fn new(backend: impl Backend, mode: Mode) -> Self {
        let world = Self::empty(backend, mode).await;
        commit(&world.session, async |tx| tx.create_root().await).await.unwrap();
        let _ = world.probe.batches();
        world
    }

    /// The mode.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The root conversation.
    #[must_use]
    pub const fn root(&self) -> ConversationId {
        ROOT_CONVERSATION_ID
    }

    /// Another session in the same store, open and with its root conversation.
    pub async fn another(&self) -> Session {
        let create = SessionCreate::new(NOW);
        let id = create.id;
        self.store.create(create).await.unwrap();
        let session = open(&*self.store, id, self.mode, &Probe::default(), &self.clock, None).await;
        commit(&session, async |tx| tx.create_root().await).await.unwrap();
        session
    }

    /// Who is told when the session fails, from the next opening on.
    pub fn on_report(&mut self, report: Report) {
        self.report = Some(report);
    }

    /// The end of a step: where the mode says so, everything is opened again.
    pub async fn step(&mut self) {
        if self.mode == Mode::Reopened {
            self.session.release().await.unwrap();
            self.store = self.backend.reopen(Arc::clone(&self.store)).await;
            self.open().await;
        }
    }

    /// Whatever the mode, everything is opened again.
    pub async fn reopen(&mut self) {
        self.session.close().await.unwrap();
        self.store = self.backend.reopen(Arc::clone(&self.store)).await;
        self.open().await;
    }

    /// Opens the session again, whether or not somebody still has it.
    pub async fn open(&mut self) {
        // Openings here are no failures, so that their count starts again before each.
        self.store.set_quarantined(self.id, false).await.unwrap();
        self.session = open(&*self.store, self.id, self.mode, &self.probe, &self.clock, self.report.clone()).await;
    }
}

async fn open(store: &dyn Store, id: SessionId, mode: Mode, probe: &Probe, clock: &Clock, on_report: Option<Report>) -> Session {
    let line = store.open(id, Fence { epoch: Epoch(0), at: NOW }).await.unwrap();
    let cache = match mode {
        Mode::Warm | Mode::Reopened => CacheSize::default(),
        Mode::Cold => CacheSize { documents: NonZeroUsize::MIN, records: NonZeroUsize::MIN },
    };
    probe.slow(mode == Mode::Cold);
    Session::over(
        probe.before(line),
        SessionOptions { clock: clock.clone(), epoch: Epoch(0), cache, on_report, ..SessionOptions::default() },
    )
}

/// Runs one case, with a bound on how long it may take.
pub fn run<B: Backend>(backend: B, mode: Mode, case: impl AsyncFnOnce(World)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bounded = async {
        let world = World::new(backend, mode).await;
        tokio::time::timeout(Duration::from_secs(60), case(world)).await.expect("the case hangs");
    };
    runtime.block_on(Box::pin(bounded));
}

/// How long a condition has to come true: far longer than any takes, since a file's thread may be slow on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits for a condition that nothing tells about. The only wait that looks again and again.
///
/// # Panics
/// When it does not come true for a long time.
pub async fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let looking = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let came = tokio::time::timeout(PATIENCE, looking).await;
    assert!(came.is_ok(), "{what} did not come true");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A slow disk takes longer than many turns of the runtime.
    #[test]
    fn a_condition_may_take_its_time() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let begun = tokio::time::Instant::now();
            wait_for("a slow condition", || begun.elapsed() > Duration::from_millis(200)).await;
        });
    }
}
