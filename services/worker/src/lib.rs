//! The worker: takes hints, reserves tasks, runs their phases. It owns no state.
//!
//! **Architecture invariants.** It reaches sessions through the transport only. A hint is done with once its reservation is answered,
//! whatever the answer; liveness is not the hint's business.

mod beats;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use picofleet_harness::effects::{Code, Invocation, Pulse, Services, Slot, Slots, run};
use picofleet_harness::kinds::{COMPACTION, GENERATION};
use picofleet_harness::transport::{CallError, Transport};
use picofleet_harness::wire::{Answer, Hint, Invoked, Request, Signal, WorkerId};
use picofleet_session::{InvocationId, SessionId};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How a worker works.
#[derive(Clone)]
pub struct Options {
    /// How many effects run at once.
    pub slots: usize,
    /// How long a worker that is to stop lets its invocations hand over at their next phase boundary, before it stops them where they are.
    pub grace: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { slots: 16, grace: Duration::ZERO }
    }
}

/// A worker.
pub struct Worker {
    transport: Arc<dyn Transport>,
    services: Services,
    options: Options,
    shared: Arc<Shared>,
}

/// What the parts of a worker know together.
struct Shared {
    id: WorkerId,
    running: Mutex<HashMap<InvocationId, Running>>,
    pulse: Arc<Pulse>,
    /// It takes no more work.
    draining: AtomicBool,
    free: AtomicU32,
}

/// An invocation that has reserved its task here.
struct Running {
    invoked: Invoked,
    kind: String,
    since: Instant,
    cancel: CancellationToken,
    /// Its effect is over, and what came of it is being said.
    settles: Arc<AtomicBool>,
}

impl Running {
    /// Whether it may run on for long without an answered beat: a model request, or what an effect that is over has come to.
    fn may_run_on(&self) -> bool {
        matches!(self.kind.as_str(), GENERATION | COMPACTION) || self.settles.load(Ordering::Acquire)
    }
}

impl Worker {
    /// A worker of this process.
    #[must_use]
    pub fn new(transport: Arc<dyn Transport>, services: Services, options: Options) -> Self {
        let shared = Shared {
            id: WorkerId(InvocationId::random()),
            running: Mutex::default(),
            pulse: Arc::default(),
            draining: AtomicBool::new(false),
            free: AtomicU32::new(0),
        };
        Self { transport, services, options, shared: Arc::new(shared) }
    }

    /// Takes hints while slots are free, until `stop` fires or no hints come any more. Then it drains: what runs hands over at its next
    /// phase boundary, and is stopped where it is once the grace is over.
    pub async fn run(self, mut hints: mpsc::Receiver<Hint>, signals: mpsc::Receiver<(WorkerId, Signal)>, stop: CancellationToken) {
        // Both end with this future, however it ends; so does what runs.
        let mut beside = JoinSet::new();
        beside.spawn(obey(Arc::clone(&self.shared), signals));
        beside.spawn(beats::beat(Arc::clone(&self.transport), self.services.registry.clone(), Arc::clone(&self.shared)));
        let slots = Slots::new(self.options.slots);
        let mut running = JoinSet::new();
        let cancel = CancellationToken::new();
        loop {
            while running.try_join_next().is_some() {}
            let slot = tokio::select! {
                () = stop.cancelled() => break,
                slot = slots.take() => slot,
            };
            self.shared.free.store(u32::try_from(slots.free()).unwrap_or(u32::MAX), Ordering::Relaxed);
            let hint = tokio::select! {
                () = stop.cancelled() => break,
                hint = hints.recv() => hint,
                // An effect that waited goes on before new work begins; with no hint to come it would wait for this slot for ever.
                () = slots.wanted() => continue,
            };
            let Some(hint) = hint else { break };
            running.spawn(take(
                Arc::clone(&self.transport),
                self.services.clone(),
                Arc::clone(&self.shared),
                hint,
                (cancel.child_token(), slot),
            ));
        }
        self.shared.draining.store(true, Ordering::Release);
        self.shared.pulse.kick();
        let drained = tokio::time::timeout(self.options.grace, joined(&mut running)).await;
        if drained.is_err() {
            cancel.cancel();
            joined(&mut running).await;
        }
    }
}

async fn joined(running: &mut JoinSet<()>) {
    while running.join_next().await.is_some() {}
}

impl Shared {
    fn running(&self) -> std::sync::MutexGuard<'_, HashMap<InvocationId, Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cancel(&self, invocation: InvocationId) {
        if let Some(running) = self.running().get(&invocation) {
            running.cancel.cancel();
        }
    }
}

/// Stops what the line says. A signal for something that is over changes nothing; one that comes too early is repeated.
async fn obey(shared: Arc<Shared>, mut signals: mpsc::Receiver<(WorkerId, Signal)>) {
    while let Some((to, Signal::Cancel { invocation, .. })) = signals.recv().await {
        if to == shared.id {
            shared.cancel(invocation);
        }
    }
}

/// How often a reservation is asked for while no answer comes, and the pause between: together well below a lease.
const RESERVE_ATTEMPTS: u32 = 20;
const RESERVE_PAUSE: Duration = Duration::from_millis(250);

/// Asks for a reservation. A lost answer burns nothing: the same invocation gets the same reservation again.
async fn reserve(transport: &dyn Transport, session: SessionId, request: Request, cancel: &CancellationToken) -> Result<Answer, CallError> {
    for _ in 1..RESERVE_ATTEMPTS {
        match transport.call(session, request.clone()).await {
            Err(CallError::NoAnswer(_)) if !cancel.is_cancelled() => tokio::time::sleep(RESERVE_PAUSE).await,
            answer => return answer,
        }
    }
    transport.call(session, request).await
}

/// Reserves the task of a hint and runs it.
async fn take(
    transport: Arc<dyn Transport>,
    services: Services,
    shared: Arc<Shared>,
    hint: Hint,
    (cancel, slot): (CancellationToken, Slot),
) {
    let Hint { session, task, route } = hint;
    let invocation = InvocationId::random();
    let kind = route.kind();
    let Some(code) = kind.as_deref().and_then(|kind| Code::of(&services.registry, kind)) else {
        // Somebody else's: the hint waits for a worker that has the code.
        tracing::warn!(route = route.0, "a hint for a task that this worker has no code for");
        return;
    };
    let request = Request::Reserve { task, invocation, worker: shared.id, definition: Some(code.definition()) };
    match reserve(&*transport, session, request, &cancel).await {
        Ok(Answer::Reserved(reservation)) => {
            let invoked = Invoked { session, task, invocation };
            let (id, kind, pulse) = (invocation, reservation.record.kind.clone(), Arc::clone(&shared.pulse));
            let invocation =
                Invocation::new(transport, session, task, id, cancel.clone(), services, slot).with_pulse(pulse).with_code(code);
            let running = Running { invoked, kind, since: Instant::now(), cancel, settles: invocation.settles() };
            shared.running().insert(id, running);
            run(Arc::new(invocation), *reservation).await;
            shared.running().remove(&id);
        }
        Ok(_) => {}
        // The sweep sends another hint.
        Err(error) => tracing::debug!(session = %session, task = %task, error = %error, "a reservation got no answer"),
    }
}
