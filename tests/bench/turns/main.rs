//! The embedded engine's half of the comparison that `tests/bench/turns/run` makes:
//! `turns_compare turns STORE SCRIPT SESSIONS TURNS FOLDER`, and `history`, `streams` and `watchers`, print a line of JSON for each figure.

#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a benchmark prints and times")]

mod answers;
mod engine;
mod modes;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use picofleet_harness::host::{Conversation, EntryRange};
use picofleet_harness::submission::SubmissionDraft;
use picofleet_models::js;
use picofleet_session::{Json, SubmissionStatus};
use rustix::time::{ClockId, clock_gettime};
use tokio::task::JoinSet;

use answers::{Answers, Pace};
use engine::Engine;

/// As the binary has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["turns", store, script, sessions, turns, folder] => {
            let tool = match *script {
                "plain" => false,
                "tool" => true,
                other => bail!("there is no script {other:?}; use plain or tool"),
            };
            let (sessions, turns) = (number(sessions)?, number(turns)?);
            runtime.block_on(turns_of(store, tool, (sessions, turns), Path::new(folder)))
        }
        ["history", store, turns, folder] => runtime.block_on(modes::history(store, number(turns)?, Path::new(folder))),
        ["streams", store, sessions, seconds, folder] => {
            let seconds = u32::try_from(number(seconds)?)?;
            runtime.block_on(modes::streams(store, number(sessions)?, seconds, Path::new(folder)))
        }
        ["watchers", store, turns, folder] => runtime.block_on(modes::watchers(store, number(turns)?, Path::new(folder))),
        _ => bail!(
            "usage: turns_compare turns STORE plain|tool SESSIONS TURNS FOLDER, history STORE TURNS FOLDER, streams STORE SESSIONS SECONDS \
             FOLDER, or watchers STORE TURNS FOLDER; STORE is memory, process or power"
        ),
    }
}

fn number(text: &str) -> Result<usize> {
    text.parse().with_context(|| format!("read the number {text:?}"))
}

/// Some turns in each of some sessions, all sessions at once.
async fn turns_of(store: &str, tool: bool, (sessions, turns): (usize, usize), folder: &Path) -> Result<()> {
    let engine = Engine::start(engine::store(store, folder)?, Answers::new(tool, Pace::AtOnce)?)?;
    let mut conversations = Vec::new();
    for _ in 0..sessions {
        conversations.push(engine.conversation().await?);
    }
    let first = conversations.first().context("no session was asked for")?.clone();
    let (began, used) = (Instant::now(), cpu());
    let mut talks = JoinSet::new();
    for conversation in conversations {
        talks.spawn(talk(conversation, turns));
    }
    while let Some(talk) = talks.join_next().await {
        talk??;
    }
    let (wall, used) = (began.elapsed(), cpu().saturating_sub(used));
    let page = first.entries(EntryRange::default(), 20, None).await?;
    let kinds: Vec<Json> = page.items.iter().rev().map(|entry| Json::from(entry.kind.as_str())).collect();
    engine.close().await?;
    print(
        "turns",
        store,
        [
            ("script", if tool { "tool" } else { "plain" }.into()),
            ("sessions", sessions.into()),
            ("turns", (sessions * turns).into()),
            ("wall", seconds(wall)?),
            ("cpu", seconds(used)?),
            ("kinds", Json::array(kinds)),
        ],
    );
    Ok(())
}

/// Prints a line: what was measured, of whom and with which store, and the values.
fn print(mode: &str, store: &str, values: impl IntoIterator<Item = (&'static str, Json)>) {
    let memory = store == "memory";
    let head = [
        ("mode", Json::from(mode)),
        ("who", "picofleet".into()),
        ("store", if memory { "memory" } else { "sqlite" }.into()),
        ("durability", if memory { "none" } else { store }.into()),
    ];
    println!("{}", js::stringify(&Json::object(head.into_iter().chain(values))));
}

fn seconds(time: Duration) -> Result<Json> {
    Ok(Json::from_serde(&time.as_secs_f64())?)
}

async fn talk(conversation: Conversation, turns: usize) -> Result<()> {
    for _ in 0..turns {
        let settled = conversation.submit(SubmissionDraft::input("Go on.")).await?.wait().await?;
        ensure!(settled.status() == SubmissionStatus::Done, "a turn ended as {settled:?}");
    }
    Ok(())
}

/// What this process has used of its processors.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}
