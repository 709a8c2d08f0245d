//! What else is measured: cost against history, many streams at once, and watchers.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use picofleet_harness::host::{AgentEvents, Conversation, ViewWatch};
use picofleet_harness::submission::SubmissionDraft;
use picofleet_session::storage::Store;
use picofleet_session::{Json, SubmissionStatus};
use tokio::task::JoinSet;

use crate::answers::{Answers, Pace};
use crate::engine::{self, Engine};
use crate::{cpu, print, seconds, talk};

/// How many turns a window has, and after how many the context begins anew: the same context at every age of the conversation.
const WINDOW: usize = 100;
const RESET: usize = 10;

/// The cost of a turn when a conversation is young and when it is old, with a context of the same size.
pub(crate) async fn history(store: &str, turns: usize, folder: &Path) -> Result<()> {
    let least = RESET + 2 * WINDOW;
    ensure!(turns >= least && turns.is_multiple_of(RESET), "at least {least} turns, in steps of {RESET}");
    let engine = Engine::start(engine::store(store, folder)?, Answers::new(false, Pace::AtOnce)?)?;
    let conversation = engine.conversation().await?;
    talk(conversation.clone(), RESET).await?;
    let young = window(&conversation).await?;
    print_window(store, "young", (RESET, RESET + WINDOW), young)?;
    for _ in 0..(turns - least) / RESET {
        block(&conversation).await?;
    }
    let old = window(&conversation).await?;
    print_window(store, "old", (turns - WINDOW, turns), old)?;
    engine.close().await
}

fn print_window(store: &str, age: &str, (first, last): (usize, usize), (wall, used): (Duration, Duration)) -> Result<()> {
    let values = [("age", age.into()), ("first", first.into()), ("last", last.into()), ("wall", seconds(wall)?), ("cpu", seconds(used)?)];
    print("history", store, values);
    Ok(())
}

/// Some turns in a new context.
async fn block(conversation: &Conversation) -> Result<()> {
    conversation.reset(None).await?;
    talk(conversation.clone(), RESET).await
}

/// Wall and processor time of a turn: medians over the blocks of a window.
async fn window(conversation: &Conversation) -> Result<(Duration, Duration)> {
    let (mut walls, mut cpus) = (Vec::new(), Vec::new());
    for _ in 0..WINDOW / RESET {
        conversation.reset(None).await?;
        let (began, used) = (Instant::now(), cpu());
        talk(conversation.clone(), RESET).await?;
        walls.push(began.elapsed().div_f64(RESET as f64));
        cpus.push(cpu().saturating_sub(used).div_f64(RESET as f64));
    }
    Ok((median(&mut walls).context("no window")?, median(&mut cpus).context("no window")?))
}

fn median(values: &mut [Duration]) -> Option<Duration> {
    values.sort();
    values.get(values.len() / 2).copied()
}

/// Sessions whose answers all stream at once, ten pieces a second each.
pub(crate) async fn streams(store: &str, sessions: usize, length: u32, folder: &Path) -> Result<()> {
    let every = Duration::from_millis(100);
    let pieces = length * 10;
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
    let (observed, p50, p99) = delays.summary();
    engine.close().await?;
    print(
        "streams",
        store,
        [
            ("sessions", sessions.into()),
            ("seconds", length.into()),
            ("pieces", (u64::from(pieces) * u64::try_from(sessions)?).into()),
            ("wall", seconds(wall)?),
            ("cpu", seconds(used)?),
            ("written", wrote.into()),
            ("observed", observed.into()),
            ("p50", p50.into()),
            ("p99", p99.into()),
        ],
    );
    Ok(())
}

/// How long pieces took to be published, in milliseconds. A piece says when it was given out.
#[derive(Default)]
struct Delays(std::sync::Mutex<Vec<u64>>);

impl Delays {
    fn summary(&self) -> (usize, Option<u64>, Option<u64>) {
        let mut all = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        all.sort_unstable();
        let at = |share: usize| all.get(all.len().saturating_sub(1) * share / 100).copied();
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
pub(crate) async fn watchers(store: &str, turns: usize, folder: &Path) -> Result<()> {
    ensure!(turns >= RESET && turns.is_multiple_of(RESET), "at least {RESET} turns, in steps of {RESET}");
    for count in [0, 1, 100] {
        for interface in [Interface::View, Interface::Events] {
            let folder = folder.join(format!("{}-{count}", interface.name()));
            std::fs::create_dir(&folder).with_context(|| format!("make the folder {}", folder.display()))?;
            let (used, seen) = watched(engine::store(store, &folder)?, interface, (count, turns)).await?;
            let values = [
                ("interface", Json::from(interface.name())),
                ("observers", count.into()),
                ("turns", turns.into()),
                ("cpu", seconds(used)?),
                ("seen", seen.into()),
            ];
            print("watchers", store, values);
        }
    }
    Ok(())
}

/// What the observers observe.
#[derive(Clone, Copy)]
enum Interface {
    View,
    Events,
}

impl Interface {
    fn name(self) -> &'static str {
        match self {
            Self::View => "view",
            Self::Events => "events",
        }
    }

    async fn attach(self, conversation: &Conversation) -> Result<Observer> {
        Ok(match self {
            Self::View => Observer::View(Box::new(conversation.watch().await?)),
            Self::Events => Observer::Events(Box::new(conversation.events().await?)),
        })
    }
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

/// Processor time of the turns, and how many changes all observers saw together.
async fn watched(store: Arc<dyn Store>, interface: Interface, (count, turns): (usize, usize)) -> Result<(Duration, u64)> {
    let engine = Engine::start(store, Answers::new(false, Pace::AtOnce)?)?;
    let conversation = engine.conversation().await?;
    let (seen, mut observers) = (Arc::new(AtomicU64::new(0)), JoinSet::new());
    for _ in 0..count {
        observers.spawn(interface.attach(&conversation).await?.observe(Arc::clone(&seen)));
    }
    // The first turns warm up.
    block(&conversation).await?;
    let (before, used) = (seen.load(Ordering::Relaxed), cpu());
    for _ in 0..turns / RESET {
        block(&conversation).await?;
    }
    let (used, seen) = (cpu().saturating_sub(used), seen.load(Ordering::Relaxed).saturating_sub(before));
    ensure!(count == 0 || seen > 0, "nobody saw anything");
    observers.abort_all();
    engine.close().await?;
    Ok((used, seen))
}
