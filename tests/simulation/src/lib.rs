//! Simulations of a fleet: the real line, coordinator and workers on a simulated network and clock, with seeded faults. After every commit
//! the invariants of `docs/invariants.md` are checked on what was written; at the end everything must have come to rest.
//!
//! **Architecture invariants.** Nothing here runs outside of tests. The checker knows records and documents only, not the code under test.

mod checker;
mod cluster;
mod fences;
mod network;
mod users;
mod world;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use picofleet_harness::config::{CompactionPolicy, ConversationConfig, RetryPolicy};
pub use picofleet_harness::guard::Guard;
use picofleet_harness::guard::Guards;
use picofleet_harness::kinds::GENERATION;
use picofleet_harness::submission::SubmissionDraft;
use picofleet_harness::transport::Transport as _;
use picofleet_harness::wire::{Answer, HostCall, Request};
use picofleet_session::storage::{Rejection, SessionCreate, Store as _};
use picofleet_session::{Clock, Millis, SessionId};
use picofleet_storage::memory::{Fault, Faults, MemoryStore};
use tokio::time::Instant;

use checker::Checker;
use cluster::Cluster;
use fences::Fences;
use network::{Network, Side};
use world::{ROOT, World};

/// How long faults go on, in simulated time.
const STORM: Duration = Duration::from_secs(240);

/// How long everything may take to come to rest afterwards, in simulated time.
const REST: Duration = Duration::from_secs(7_200);

/// What became of one seed.
#[derive(Debug)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// How many commits were checked.
    pub commits: u64,
    /// How often things happened.
    pub counts: BTreeMap<&'static str, u64>,
    /// How often each guard of the line stopped something.
    pub guards: BTreeMap<&'static str, u64>,
    /// What was broken.
    pub violations: Vec<String>,
}

/// Runs one seed on a runtime of its own, where it is asked for without a guard of the line.
///
/// # Errors
/// That the runtime can't be made.
pub fn run(seed: u64, without: Option<Guard>) -> std::io::Result<Report> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    let report = runtime.block_on(simulate(seed, without));
    // What a killed process left behind is dropped with its runtime.
    runtime.shutdown_background();
    Ok(report)
}

async fn simulate(seed: u64, without: Option<Guard>) -> Report {
    let checker = Checker::default();
    let guards = without.map_or_else(Guards::default, Guards::without);
    let session = SessionId::random();
    let world = World::new(seed, session, checker.clone());
    let began = Instant::now();
    let clock = Clock::from_fn(move || Millis(1_000_000 + i64::try_from(began.elapsed().as_millis()).unwrap_or(i64::MAX / 2)));
    let faults = storage_faults(&world, &checker);
    let store = Arc::new(Fences { store: MemoryStore::with_faults(faults), checker: checker.clone() });
    if let Err(error) = store.create(SessionCreate { id: session, ..SessionCreate::new(Millis(0)) }).await {
        checker.broken(format!("the session could not be made: {error}"));
        return report(seed, &world, &checker);
    }
    let network = Network::new(world.clone());
    let registry = match world::registry(&world) {
        Ok(registry) => registry,
        Err(error) => {
            checker.broken(format!("the registry could not be made: {error}"));
            return report(seed, &world, &checker);
        }
    };
    let embedded = world.once_in(4);
    let mut cluster = Cluster::new(world.clone(), network.clone(), store, clock, registry, embedded, guards.clone());
    cluster.start_coordinator().await;
    for _ in 0..if embedded { 1 } else { 3 } {
        cluster.start_worker();
    }
    let host = network.side();
    set_up(&world, &host).await;
    let users: Vec<_> = (0..3).map(|number| tokio::spawn(users::act(world.clone(), network.side(), number))).collect();
    storm(&world, &network, &mut cluster).await;
    for user in users {
        user.abort();
    }
    world.calm();
    settle(&world, &mut cluster, &host).await;
    let mut report = report(seed, &world, &checker);
    report.guards = Guard::ALL.iter().map(|guard| (guard.name(), guards.fired(*guard))).collect();
    report
}

fn report(seed: u64, world: &World, checker: &Checker) -> Report {
    Report { seed, commits: checker.commits(), counts: world.counts(), guards: BTreeMap::new(), violations: checker.violations() }
}

/// The root conversation with its model. Repeated until it is done.
async fn set_up(world: &World, host: &Side) {
    let retry = RetryPolicy { enabled: true, max_retries: 2, base_delay_ms: 500.0, max_agent_delay_ms: Some(5_000.0) };
    // Answers report up to 100 tokens of a window of 1,000: many are above 30, some above 80.
    let compaction = CompactionPolicy { enabled: true, reserve_tokens: 920, keep_recent_tokens: 30, background_tokens: 50 };
    let config = ConversationConfig {
        model: Some(world::model_ref()),
        active_tools: world::TOOLS.iter().map(|name| (*name).to_owned()).collect(),
        retry: Some(retry),
        compaction: Some(compaction),
        ..ConversationConfig::default()
    };
    for call in [HostCall::Root, HostCall::Configure { conversation: ROOT, config: Box::new(config) }] {
        loop {
            match host.call(world.session, Request::Host(Box::new(call.clone()))).await {
                Ok(Answer::Value(_) | Answer::Done) => break,
                _ => tokio::time::sleep(Duration::from_millis(500)).await,
            }
        }
    }
}

fn storage_faults(world: &World, checker: &Checker) -> Faults {
    let faults = Faults::new();
    let (throws, sees) = (world.clone(), checker.clone());
    faults.choose(move |_, _| {
        if throws.fault(150) {
            throws.count("commit uncertain, lost");
            Some(Fault::LostBefore)
        } else if throws.fault(150) {
            throws.count("commit uncertain, landed");
            Some(Fault::LostAfter)
        } else if throws.fault(200) {
            throws.count("commit rejected");
            Some(Fault::Rejected(Rejection::TooLarge { bytes: 1, most: 0 }))
        } else if throws.fault(3) {
            throws.count("commit late");
            Some(Fault::Late(throws.pause(400)))
        } else {
            None
        }
    });
    faults.observe(move |session, batch, head| sees.written(session, batch, head));
    faults
}

/// Kills, freezes, takes over and cuts off.
async fn storm(world: &World, network: &Network, cluster: &mut Cluster) {
    let end = Instant::now() + STORM;
    // Some processes live for seconds only: work that gets nowhere is parked then.
    let deadly = world.once_in(4);
    while Instant::now() < end {
        tokio::time::sleep(world.pause(if deadly && cluster.is_embedded() { 4_000 } else { 20_000 })).await;
        let index = usize::try_from(world.below(cluster.workers() as u64)).unwrap_or(0);
        match world.below(8) {
            _ if cluster.is_embedded() && (deadly || world.once_in(2)) => {
                world.count("process killed");
                cluster.kill_worker(0);
                cluster.kill_coordinator();
                tokio::time::sleep(world.pause(5_000)).await;
                cluster.start_coordinator().await;
                cluster.start_worker();
            }
            _ if cluster.is_embedded() => {}
            0 | 1 => {
                cluster.kill_worker(index);
                tokio::time::sleep(world.pause(10_000)).await;
                cluster.start_worker();
            }
            2 => cluster.freeze_worker(index, world.pause(60_000)),
            3 => {
                cluster.kill_coordinator();
                tokio::time::sleep(world.pause(15_000)).await;
                cluster.start_coordinator().await;
            }
            4 => cluster.take_over().await,
            5 => {
                world.count("network cut");
                network.cut(world.pause(50_000));
            }
            6 => {
                cluster.start_worker();
                cluster.drain_worker(index);
            }
            _ => {}
        }
    }
}

/// Waits until nothing is left to do. Parked tasks are retried once somebody looks.
async fn settle(world: &World, cluster: &mut Cluster, host: &Side) {
    if cluster.workers() == 0 {
        cluster.start_worker();
    }
    let end = Instant::now() + REST;
    loop {
        tokio::time::sleep(Duration::from_secs(5)).await;
        let live = world.checker.live(world.session);
        if live.is_empty() {
            break;
        }
        if Instant::now() > end {
            let tasks: Vec<String> =
                live.iter().map(|task| format!("{} {} {:?} marked {}", task.id, task.kind, task.state, task.abort_requested)).collect();
            let inspected = host.call(world.session, Request::Host(Box::new(HostCall::Inspect))).await;
            let seen = format!("{} workers, embedded {}, {inspected:?}", cluster.workers(), cluster.is_embedded());
            world.checker.broken(format!("{} tasks never came to rest: {tasks:?}; {seen}", live.len()));
            return;
        }
        // What a failed run left in an inbox stays there until somebody says something (section 6); a subagent's question too.
        let mut queued: Vec<_> = world.checker.open_submissions(world.session).iter().map(|record| record.conversation_id).collect();
        queued.dedup();
        queued.retain(|conversation| !live.iter().any(|task| task.conversation_id == *conversation && task.kind == GENERATION));
        for conversation in queued {
            let draft = SubmissionDraft::input("go on").request_id(format!("nudge-{}", world.checker.commits()));
            let _ = host.call(world.session, Request::Host(Box::new(HostCall::Submit { conversation, draft }))).await;
        }
        for task in live.iter().filter(|task| task.restarts >= 5) {
            world.count("parked task retried");
            let retry = Request::Host(Box::new(HostCall::RetryTask { task: task.id }));
            let _ = host.call(world.session, retry).await;
        }
    }
    // Longer than any effect of the world takes by itself.
    tokio::time::sleep(Duration::from_secs(120)).await;
    let going_on = world.going_on();
    if !going_on.is_empty() {
        world.checker.broken(format!("nothing runs, and effects of the tasks {going_on:?} go on"));
    }
    let placed = world.checker.open_submissions(world.session);
    let placed: Vec<_> = placed.iter().filter(|record| record.status() == picofleet_session::SubmissionStatus::Placed).collect();
    if !placed.is_empty() {
        world.checker.broken(format!("nothing runs, and {placed:?} are placed"));
    }
}
