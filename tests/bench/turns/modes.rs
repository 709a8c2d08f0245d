//! What is measured of the embedded engine alone: cost against history, many streams at once, and watchers.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use picofleet_harness::host::{AgentEvents, Conversation, ViewWatch};
use picofleet_harness::submission::SubmissionDraft;
use picofleet_session::SubmissionStatus;
use tokio::task::JoinSet;

use crate::answers::{Answers, Pace};
use crate::engine::{self, Engine};
use crate::{cpu, talk};

/// How many turns a window has, and after how many the context begins anew: the same context at every age of the conversation.
const WINDOW: usize = 100;
const RESET: usize = 10;

/// The cost of a turn when a conversation is young and when it is old, with a context of the same size.
pub(crate) async fn history(store: &str, turns: usize, folder: &Path) -> Result<()> {
    ensure!(turns >= 2 * WINDOW, "at least {} turns", 2 * WINDOW);
    let engine = Engine::start(engine::store(store, folder)?, Answers::new(false, Pace::AtOnce)?)?;
    let conversation = engine.conversation().await?;
    talk(conversation.clone(), RESET).await?;
    let young = window(&conversation).await?;
    for _ in 0..(turns - 2 * WINDOW) / RESET {
        block(&conversation).await?;
    }
    let old = window(&conversation).await?;
    engine.close().await?;
    println!("| store | turn | wall, us | CPU, us |\n|---|---:|---:|---:|");
    println!("| {store} | {RESET} to {} | {:.0} | {:.0} |", RESET + WINDOW, young.0, young.1);
    println!("| {store} | {} to {turns} | {:.0} | {:.0} |", turns - WINDOW, old.0, old.1);
    println!("| {store} | the later over the earlier | {:.2} | {:.2} |", old.0 / young.0, old.1 / young.1);
    Ok(())
}

/// Some turns in a new context.
async fn block(conversation: &Conversation) -> Result<()> {
    conversation.reset(None).await?;
    talk(conversation.clone(), RESET).await
}

/// Microseconds of a turn: medians over the blocks of a window.
async fn window(conversation: &Conversation) -> Result<(f64, f64)> {
    let (mut walls, mut cpus) = (Vec::new(), Vec::new());
    for _ in 0..WINDOW / RESET {
        conversation.reset(None).await?;
        let (began, used) = (Instant::now(), cpu());
        talk(conversation.clone(), RESET).await?;
        walls.push(began.elapsed().as_secs_f64() * 1e6 / RESET as f64);
        cpus.push(cpu().saturating_sub(used).as_secs_f64() * 1e6 / RESET as f64);
    }
    Ok((median(&mut walls).context("no window")?, median(&mut cpus).context("no window")?))
}

fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Sessions whose answers all stream at once, ten pieces a second each.
pub(crate) async fn streams(store: &str, sessions: usize, seconds: u32, folder: &Path) -> Result<()> {
    let every = Duration::from_millis(100);
    let pieces = seconds * 10;
    let delays = Arc::new(Delays::default());
    let engine = Engine::start_with(engine::store(store, folder)?, Answers::new(false, Pace::Every { every, pieces })?, sessions)?;
    let mut conversations = Vec::new();
    for _ in 0..sessions {
        conversations.push(engine.conversation().await?);
    }
    // One in ten is looked at, so that it shows when a piece is published.
    let mut readers = JoinSet::new();
    for conversation in conversations.iter().step_by(10) {
        let (events, delays) = (conversation.events().await?, Arc::clone(&delays));
        readers.spawn(read(events, delays));
    }
    let (began, used, wrote) = (Instant::now(), cpu(), written()?);
    let mut talks = JoinSet::new();
    for conversation in conversations {
        talks.spawn(async move {
            let settled = conversation.submit(SubmissionDraft::input("Go on.")).await?.wait().await?;
            ensure!(settled.status() == SubmissionStatus::Done, "a turn ended as {settled:?}");
            Ok(())
        });
    }
    while let Some(talk) = talks.join_next().await {
        talk??;
    }
    let (wall, used, wrote) = (began.elapsed(), cpu().saturating_sub(used), written()?.saturating_sub(wrote));
    readers.abort_all();
    let (updates, p50, p99) = delays.summary();
    engine.close().await?;
    let all = u64::from(pieces) * u64::try_from(sessions)?;
    println!(
        "| store | sessions | pieces | wall, s | processors | published updates of one in ten | delay p50, ms | delay p99, ms | bytes written a piece |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|");
    println!(
        "| {store} | {sessions} | {all} | {:.1} | {:.2} | {updates} | {p50} | {p99} | {:.0} |",
        wall.as_secs_f64(),
        used.as_secs_f64() / wall.as_secs_f64(),
        wrote as f64 / all as f64
    );
    Ok(())
}

/// How long pieces took to be published, in milliseconds. A piece says when it was given out.
#[derive(Default)]
struct Delays(std::sync::Mutex<Vec<u64>>);

impl Delays {
    fn summary(&self) -> (usize, u64, u64) {
        let mut all = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        all.sort_unstable();
        let at = |share: usize| all.get(all.len().saturating_sub(1) * share / 100).copied().unwrap_or_default();
        (all.len(), at(50), at(99))
    }
}

async fn read(mut events: AgentEvents, delays: Arc<Delays>) {
    while let Some(batch) = events.next().await {
        let now = crate::answers::milliseconds();
        for given in batch.iter().flat_map(crate::answers::given_at) {
            delays.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(now.saturating_sub(given));
        }
    }
}

/// What this process has written to storage.
fn written() -> Result<u64> {
    let io = std::fs::read_to_string("/proc/self/io").context("read /proc/self/io")?;
    let line = io.lines().find_map(|line| line.strip_prefix("wchar: ")).context("find what was written in /proc/self/io")?;
    Ok(line.parse()?)
}

/// The cost of a turn with nobody, one and a hundred who watch the view, and the same for events.
pub(crate) async fn watchers(turns: usize) -> Result<()> {
    println!("| observers | CPU a turn with views, us | CPU a turn with events, us |\n|---:|---:|---:|");
    for count in [0, 1, 100] {
        let views =
            watched(count, turns, async |conversation: &Conversation| Ok(Observer::View(Box::new(conversation.watch().await?)))).await?;
        let events =
            watched(count, turns, async |conversation: &Conversation| Ok(Observer::Events(Box::new(conversation.events().await?)))).await?;
        println!("| {count} | {views:.0} | {events:.0} |");
    }
    Ok(())
}

enum Observer {
    View(Box<ViewWatch>),
    Events(Box<AgentEvents>),
}

impl Observer {
    async fn observe(self, seen: Arc<AtomicU64>) {
        match self {
            Self::View(mut watch) => {
                while watch.next().await.is_some() {
                    seen.fetch_add(1, Ordering::Relaxed);
                }
            }
            Self::Events(mut events) => {
                while events.next().await.is_some() {
                    seen.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }
}

async fn watched(count: usize, turns: usize, attach: impl AsyncFn(&Conversation) -> Result<Observer>) -> Result<f64> {
    let engine = Engine::start(engine::store("memory", Path::new(""))?, Answers::new(false, Pace::AtOnce)?)?;
    let conversation = engine.conversation().await?;
    let (seen, mut observers) = (Arc::new(AtomicU64::new(0)), JoinSet::new());
    for _ in 0..count {
        observers.spawn(attach(&conversation).await?.observe(Arc::clone(&seen)));
    }
    let used = cpu();
    for _ in 0..turns / RESET {
        block(&conversation).await?;
    }
    let cost = cpu().saturating_sub(used).as_secs_f64() * 1e6 / turns as f64;
    ensure!(count == 0 || seen.load(Ordering::Relaxed) > 0, "nobody saw anything");
    observers.abort_all();
    engine.close().await?;
    Ok(cost)
}
