//! The processes of a run: coordinators and workers that are started, frozen and killed.

use std::sync::Arc;
use std::time::Duration;

use picofleet_coordinator::{Coordinator, Options};
use picofleet_harness::effects::Services;
use picofleet_harness::guard::Guards;
use picofleet_harness::line::{Invocations, LineOptions};
use picofleet_harness::registry::Registry;
use picofleet_harness::task::LineTasks;
use picofleet_harness::wire::{Hint, Signal, WorkerId};
use picofleet_session::Clock;
use picofleet_session::storage::Store;
use picofleet_worker::Worker;
use tokio::sync::{broadcast, mpsc};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::network::{Network, Reached, Side};
use crate::world::{SimModels, World};

/// How many hints and signals are on their way at once.
const ON_THE_WAY: usize = 1_024;

/// The processes.
pub(crate) struct Cluster {
    world: World,
    network: Network,
    store: Arc<dyn Store>,
    clock: Clock,
    registry: Registry,
    /// One process: coordinator and worker live and die together.
    embedded: bool,
    guards: Guards,
    hints: mpsc::Sender<Hint>,
    hinted: Arc<tokio::sync::Mutex<mpsc::Receiver<Hint>>>,
    signals: broadcast::Sender<(WorkerId, Signal)>,
    workers: Vec<RunningWorker>,
    coordinator: Option<RunningCoordinator>,
}

struct RunningWorker {
    side: Side,
    stop: CancellationToken,
    run: JoinHandle<()>,
    parts: Vec<JoinHandle<()>>,
}

struct RunningCoordinator {
    coordinator: Coordinator,
    killed: CancellationToken,
    parts: Vec<JoinHandle<()>>,
}

impl Cluster {
    /// Processes over a store, none running yet.
    #[must_use]
    pub(crate) fn new(
        world: World,
        network: Network,
        store: Arc<dyn Store>,
        clock: Clock,
        registry: Registry,
        embedded: bool,
        guards: Guards,
    ) -> Self {
        let (hints, hinted) = mpsc::channel(ON_THE_WAY);
        let hinted = Arc::new(tokio::sync::Mutex::new(hinted));
        let (signals, _) = broadcast::channel(ON_THE_WAY);
        Self { world, network, store, clock, registry, embedded, guards, hints, hinted, signals, workers: Vec::new(), coordinator: None }
    }

    /// How many workers there are.
    #[must_use]
    pub(crate) fn workers(&self) -> usize {
        self.workers.len()
    }

    /// Starts a coordinator, which messages reach from now on. One that runs already does not know.
    pub(crate) async fn start_coordinator(&mut self) {
        let invocations = if self.embedded { Invocations::Ended } else { Invocations::Live };
        let line = LineOptions { invocations, guards: self.guards.clone(), ..LineOptions::of(&self.registry) };
        let options = Options { clock: self.clock.clone(), tasks: LineTasks::of(&self.registry), line, ..Options::new() };
        let (coordinator, mut outgoing) = Coordinator::new(Arc::clone(&self.store), options);
        let killed = CancellationToken::new();
        let (world, hints) = (self.world.clone(), self.hints.clone());
        let carry_hints = tokio::spawn(async move {
            while let Some(hint) = outgoing.hints.recv().await {
                if world.fault(15) {
                    world.count("hint lost");
                    continue;
                }
                let twice = world.fault(15);
                if twice {
                    world.count("hint doubled");
                }
                for _ in 0..if twice { 2 } else { 1 } {
                    let late = world.fault(10);
                    if late {
                        world.count("hint late");
                    }
                    let (hints, hint, late) = (hints.clone(), hint.clone(), world.pause(if late { 20_000 } else { 50 }));
                    tokio::spawn(async move {
                        tokio::time::sleep(late).await;
                        let _ = hints.send(hint).await;
                    });
                }
            }
        });
        let (world, signals) = (self.world.clone(), self.signals.clone());
        let carry_signals = tokio::spawn(async move {
            while let Some(signal) = outgoing.signals.recv().await {
                if world.fault(4) {
                    world.count("signal lost");
                } else {
                    let _ = signals.send(signal);
                }
            }
        });
        self.network.set(Some(Reached { coordinator: coordinator.clone(), killed: killed.clone() }));
        // The owner of a partition opens its sessions; here there is one.
        let (world, opened) = (self.world.clone(), coordinator.clone());
        let (stop, store) = (killed.clone(), Arc::clone(&self.store));
        let open = tokio::spawn(async move {
            loop {
                let resumed = tokio::select! {
                    () = stop.cancelled() => return,
                    resumed = opened.resume(world.session) => resumed,
                };
                if let Err(error) = resumed {
                    let error = error.to_string();
                    if error.contains("another owner") {
                        return;
                    }
                    if error.contains("quarantined") {
                        // What an operator does who has looked at it.
                        world.count("quarantine cleared");
                        let _ = store.set_quarantined(world.session, false).await;
                    }
                }
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(Duration::from_secs(5)) => {}
                }
            }
        });
        self.coordinator = Some(RunningCoordinator { coordinator, killed, parts: vec![carry_hints, carry_signals, open] });
    }

    /// Kills the coordinator where it is: nothing of it answers or decides any more. What it sent to storage lands.
    pub(crate) fn kill_coordinator(&mut self) {
        if let Some(coordinator) = self.coordinator.take() {
            self.network.set(None);
            coordinator.killed.cancel();
            // An opening runs on a task of its own, which would outlive the process here.
            coordinator.coordinator.seal();
            for part in coordinator.parts {
                part.abort();
            }
            self.world.count("coordinator killed");
        }
    }

    /// A second coordinator takes the sessions while the first lives on and does not know.
    pub(crate) async fn take_over(&mut self) {
        let before = self.coordinator.take();
        // Its lease is over: it opens nothing any more. What it has open it takes for its own until a commit is refused.
        if let Some(before) = &before {
            before.coordinator.seal();
        }
        self.start_coordinator().await;
        self.world.count("coordinator taken over");
        if let Some(before) = before {
            // It is cut off after a while: its lease is over by its own clock.
            let late = self.world.pause(30_000);
            tokio::spawn(async move {
                tokio::time::sleep(late).await;
                before.killed.cancel();
                for part in before.parts {
                    part.abort();
                }
            });
        }
    }

    /// Starts a worker.
    pub(crate) fn start_worker(&mut self) {
        let side = self.network.side();
        let services = Services::new(self.registry.clone(), Arc::new(SimModels::new(self.world.clone()))).with_clock(self.clock.clone());
        let worker = Worker::new(Arc::new(side.clone()), services, picofleet_worker::Options { slots: 3, grace: Duration::from_secs(10) });
        let (pulled, hints) = mpsc::channel(1);
        let (sent, signals) = mpsc::channel(ON_THE_WAY);
        let stop = CancellationToken::new();
        let source = Arc::clone(&self.hinted);
        let puller = side.clone();
        let pull = tokio::spawn(async move {
            loop {
                let Ok(permit) = pulled.reserve().await else { return };
                puller.thawed().await;
                let hint = source.lock().await.recv().await;
                let Some(hint) = hint else { return };
                permit.send(hint);
            }
        });
        let mut from = self.signals.subscribe();
        let hear = tokio::spawn(async move {
            loop {
                match from.recv().await {
                    Ok(signal) => drop(sent.try_send(signal)),
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return,
                }
            }
        });
        let run = tokio::spawn(worker.run(hints, signals, stop.clone()));
        self.workers.push(RunningWorker { side, stop, run, parts: vec![pull, hear] });
    }

    /// Kills a worker where it is.
    pub(crate) fn kill_worker(&mut self, index: usize) {
        if index < self.workers.len() {
            let worker = self.workers.swap_remove(index);
            worker.run.abort();
            for part in worker.parts {
                part.abort();
            }
            self.world.count("worker killed");
        }
    }

    /// Lets a worker drain; another one may be there already.
    pub(crate) fn drain_worker(&mut self, index: usize) {
        if index < self.workers.len() {
            let worker = self.workers.swap_remove(index);
            worker.stop.cancel();
            self.world.count("worker drained");
        }
    }

    /// A worker neither sends nor hears for a time.
    pub(crate) fn freeze_worker(&self, index: usize, time: Duration) {
        if let Some(worker) = self.workers.get(index) {
            worker.side.freeze(time);
            self.world.worker_frozen(time);
        }
    }

    /// Whether coordinator and worker are one process.
    #[must_use]
    pub(crate) const fn is_embedded(&self) -> bool {
        self.embedded
    }
}
