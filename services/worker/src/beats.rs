//! The beats of a worker, and what it stops when they are not answered.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use picofleet_harness::effects::{BEAT, routes};
use picofleet_harness::registry::Registry;
use picofleet_harness::transport::Transport;
use picofleet_harness::wire::{Beat, Invoked};
use tokio::time::Instant;

use crate::Shared;

/// How often the worker looks whether something runs that may not, however long a beat waits for its answer.
const LOOK: Duration = Duration::from_millis(500);

/// Says that the worker is alive, and stops what may not run on while nobody answers, until it is dropped.
pub(crate) async fn beat(transport: Arc<dyn Transport>, registry: Registry, shared: Arc<Shared>) {
    let stopping = async {
        loop {
            tokio::time::sleep(LOOK).await;
            stop_unheard(&shared);
        }
    };
    tokio::join!(beats(transport, registry, Arc::clone(&shared)), stopping);
}

/// Says that the worker is alive, every 3 seconds and when an effect waits for it.
async fn beats(transport: Arc<dyn Transport>, registry: Registry, shared: Arc<Shared>) {
    let mut counter = 0_u64;
    loop {
        counter += 1;
        let invocations: Vec<Invoked> = shared.running().values().map(|running| running.invoked).collect();
        let named = invocations.iter().map(|invoked| invoked.invocation).collect::<HashSet<_>>();
        let beat = Beat {
            worker: shared.id,
            counter,
            invocations,
            free: shared.free.load(Ordering::Relaxed),
            draining: shared.draining.load(Ordering::Acquire),
            routes: routes(&registry),
        };
        let sent = Instant::now();
        match tokio::time::timeout(BEAT, transport.beat(beat)).await {
            Ok(Ok(answer)) if answer.counter == counter => {
                shared.pulse.answered(sent, named);
                for invocation in answer.cancels.into_iter().chain(answer.gone) {
                    shared.cancel(invocation);
                }
            }
            Ok(Ok(_)) => tracing::debug!("an answer to another beat"),
            Ok(Err(error)) => tracing::debug!(error = %error, "a beat got no answer"),
            Err(_) => tracing::debug!("a beat got no answer in time"),
        }
        tokio::select! {
            () = shared.pulse.kicked() => {}
            () = tokio::time::sleep(BEAT) => {}
        }
    }
}

/// Stops what may not run on while nobody answers.
fn stop_unheard(shared: &Shared) {
    for running in shared.running().values() {
        if !running.cancel.is_cancelled() && shared.pulse.stops(running.may_run_on(), running.since) {
            tracing::warn!(task = %running.invoked.task, "stopped: no beat was answered for too long");
            running.cancel.cancel();
        }
    }
}
