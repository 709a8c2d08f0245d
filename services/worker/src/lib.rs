//! The worker: takes hints, reserves tasks, runs their phases. It owns no state.
//!
//! **Architecture invariants.** It reaches sessions through the transport only. A hint is done with once its reservation is answered,
//! whatever the answer; liveness is not the hint's business.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use picofleet_harness::effects::{Invocation, Services, Slot, Slots, run};
use picofleet_harness::transport::Transport;
use picofleet_harness::wire::{Answer, Hint, Request, Signal, WorkerId};
use picofleet_session::InvocationId;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How a worker works.
#[derive(Clone)]
pub struct Options {
    /// How many effects run at once.
    pub slots: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { slots: 16 }
    }
}

/// A worker.
pub struct Worker {
    transport: Arc<dyn Transport>,
    services: Services,
    options: Options,
    id: WorkerId,
    running: Running,
}

/// The invocations that run here, by their capability.
type Running = Arc<Mutex<HashMap<InvocationId, CancellationToken>>>;

impl Worker {
    /// A worker of this process.
    #[must_use]
    pub fn new(transport: Arc<dyn Transport>, services: Services, options: Options) -> Self {
        Self { transport, services, options, id: WorkerId(InvocationId::random()), running: Running::default() }
    }

    /// Takes hints while slots are free, until `stop` fires or no hints come any more; then cancels what runs and waits for it.
    pub async fn run(self, mut hints: mpsc::Receiver<Hint>, signals: mpsc::Receiver<(WorkerId, Signal)>, stop: CancellationToken) {
        let obeying = tokio::spawn(obey(self.id, Arc::clone(&self.running), signals));
        let slots = Slots::new(self.options.slots);
        let running = TaskTracker::new();
        let cancel = CancellationToken::new();
        loop {
            let slot = tokio::select! {
                () = stop.cancelled() => break,
                slot = slots.take() => slot,
            };
            let hint = tokio::select! {
                () = stop.cancelled() => break,
                hint = hints.recv() => hint,
            };
            let Some(hint) = hint else { break };
            let (transport, services, worker) = (Arc::clone(&self.transport), self.services.clone(), self.id);
            let (cancel, invocations) = (cancel.child_token(), Arc::clone(&self.running));
            running.spawn(async move {
                let invocation = InvocationId::random();
                lock(&invocations).insert(invocation, cancel.clone());
                take(transport, services, worker, hint, (invocation, cancel, slot)).await;
                lock(&invocations).remove(&invocation);
            });
        }
        cancel.cancel();
        running.close();
        running.wait().await;
        obeying.abort();
    }
}

fn lock(running: &Running) -> std::sync::MutexGuard<'_, HashMap<InvocationId, CancellationToken>> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Stops what the line says. A signal for something that is over changes nothing.
async fn obey(worker: WorkerId, running: Running, mut signals: mpsc::Receiver<(WorkerId, Signal)>) {
    while let Some((to, Signal::Cancel { invocation, .. })) = signals.recv().await {
        if to == worker
            && let Some(cancel) = lock(&running).get(&invocation)
        {
            cancel.cancel();
        }
    }
}

/// Reserves the task of a hint and runs it.
async fn take(
    transport: Arc<dyn Transport>,
    services: Services,
    worker: WorkerId,
    hint: Hint,
    (invocation, cancel, slot): (InvocationId, CancellationToken, Slot),
) {
    let Hint { session, task, .. } = hint;
    let answer = transport.call(session, Request::Reserve { task, invocation, worker }).await;
    match answer {
        Ok(Answer::Reserved(reservation)) => {
            let invocation = Invocation::new(transport, session, task, invocation, cancel, services, slot);
            run(Arc::new(invocation), *reservation).await;
        }
        Ok(_) => {}
        // The sweep sends another hint.
        Err(error) => tracing::debug!(session = %session, task = %task, error = %error, "a reservation got no answer"),
    }
}
