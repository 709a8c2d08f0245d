//! Subagents: one that a call owns and waits for, and one that works in the background, answers later, and is spoken to again.
//!
//! `cargo run -p picofleet-examples --bin subagents`; kill it while the background subagent thinks with `... FOLDER --hold asked`, or
//! while its answer is being answered with `... FOLDER --hold answered`, and run it again with `... FOLDER`: every message arrives once.

use std::sync::Arc;

use anyhow::{Context as _, ensure};
use picofleet_examples::subagents::background::{Anchor, Reporter, SUBAGENTS, Tell};
use picofleet_examples::subagents::foreground::Subagent;
use picofleet_examples::{App, Place, hold, say, show};
use picofleet_harness::config::ConfigPatch;
use picofleet_harness::host::Conversation;
use picofleet_harness::kind::{Outcome, TaskKind};
use picofleet_harness::registry::Registry;
use picofleet_harness::submission::SubmissionDraft;
use picofleet_session::SubmissionId;
use tokio::time::Duration;

/// What the model says, to the parent and to its subagents: they are told apart by what they are asked.
const SCRIPT: &str = r#"
[[turns]]
when = { turn = 0, user = "a colleague" }
blocks = [{ type = "toolCall", name = "ask", arguments = { prompt = "six by seven" } }]
[[turns]]
when = { user = "six by seven" }
blocks = [{ type = "text", chunks = ["42"] }]
[[turns]]
when = { user = "a colleague" }
blocks = [{ type = "text", chunks = ["A colleague says: 42."] }]

[[turns]]
when = { turn = 2, user = "a room, please" }
blocks = [{ type = "toolCall", name = "tell", arguments = { name = "scout", text = "find a room" } }]
[[turns]]
when = { user = "a room, please" }
blocks = [{ type = "text", chunks = ["The scout is on its way."] }]
[[turns]]
when = { user = "find a room" }
blocks = [SLOW SCOUT { type = "text", chunks = ["there is one at the Polar"] }]
[[turns]]
when = { user = "scout: there is one" }
blocks = [SLOW PARENT { type = "text", chunks = ["The scout has found a room at the Polar."] }]

[[turns]]
when = { turn = 5, user = "take it" }
blocks = [{ type = "toolCall", name = "tell", arguments = { name = "scout", text = "reserve it" } }]
[[turns]]
when = { user = "take it" }
blocks = [{ type = "text", chunks = ["The scout takes it."] }]
[[turns]]
when = { user = "reserve it" }
blocks = [{ type = "text", chunks = ["it is ours"] }]
[[turns]]
when = { user = "scout: it is ours" }
blocks = [{ type = "text", chunks = ["The room is ours."] }]
"#;

/// What a block of the script takes so long for that somebody can kill the program meanwhile.
const DELAY: &str = r#"{ type = "delay", ms = 3600000 },"#;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let place = Place::of_arguments(&["asked", "answered"])?;
    let (asked, answered) = (place.holds("asked"), place.holds("answered"));
    let slow = |script: String, mark: &str, slow: bool| script.replace(mark, if slow { DELAY } else { "" });
    let script = slow(slow(SCRIPT.to_owned(), "SLOW SCOUT", asked), "SLOW PARENT", answered);
    let app = App::open(place.folder(), registry()?, &script).await?;

    input(&app.root, "ask", "Ask a colleague what six times seven is.").await?;
    input(&app.root, "room", "Let the scout find a room, please.").await?;
    if asked {
        let scout = scout(&app).await?;
        until(async || Ok(scout.live().await?.run.is_some())).await?;
        hold("asked").await;
    }
    if answered {
        let heard = "scout: there is one";
        until(async || Ok(app.root.context().await?.messages.iter().any(|message| message.text().starts_with(heard)))).await?;
        hold("answered").await;
    }
    reports(&app).await?;
    input(&app.root, "take", "The scout may take it.").await?;
    reports(&app).await?;

    say("The conversation:");
    show(&app.root).await?;
    let scout = scout(&app).await?;
    say("Its subagent in the background:");
    show(&scout).await?;
    let (own, all) = (app.root.usage().await?, app.harness.usage().await?);
    let tokens = |usage: &picofleet_harness::usage::UsageState| usage.models.values().map(|usage| usage.total_tokens).sum::<u64>();
    ensure!(tokens(&own) < tokens(&all), "the subagents have spent nothing of their own");
    say("Every conversation counts what it spent itself; the session has the sum.");
    app.close().await
}

fn registry() -> anyhow::Result<Registry> {
    let registry = Registry::new();
    // What the conversations of subagents get: this model and no tools.
    let config = ConfigPatch { model: Some(Some(picofleet::scripted_model())), active_tools: Some(Vec::new()), ..ConfigPatch::default() };
    registry.batch(|stage| {
        stage.tool(Subagent::new("ask", config.clone()))?;
        stage.tool(Tell::new(config))?;
        stage.task(Arc::new(Anchor))?;
        stage.task(Arc::new(Reporter))
    })?;
    Ok(registry)
}

/// Says something and waits for the answer. With the key it is said once, however often the program runs.
async fn input(root: &Conversation, key: &str, text: &str) -> anyhow::Result<()> {
    root.submit(SubmissionDraft::input(text).request_id(key)).await?.wait().await?;
    Ok(())
}

/// Waits until no reporter is on its way and what they brought is answered. Idleness alone does not wait for background work.
async fn reports(app: &App) -> anyhow::Result<()> {
    for task in app.harness.inspect().await?.tasks {
        if task.record.kind == Reporter::NAME {
            let outcome = app.harness.wait_for_task::<SubmissionId>(task.record.id.assume()).await?;
            ensure!(matches!(outcome, Outcome::Completed(_)), "a reporter ended otherwise: {outcome:?}");
        }
    }
    Ok(app.root.wait_for_idle().await?)
}

async fn scout(app: &App) -> anyhow::Result<Conversation> {
    let subagents = app.harness.snapshot(&SUBAGENTS, app.root.id()).await?.context("there are no subagents")?;
    let scout = subagents.named.get("scout").context("there is no scout")?;
    app.harness.conversation(scout.conversation).await?.context("the scout's conversation is gone")
}

/// Waits for something that a killed program was waiting for.
async fn until(seen: impl AsyncFn() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    while !seen().await? {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}
