//! Kills: a child runs the engine, and is killed as a crash does.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::AtomicU32;

use picofleet_harness::config::ConfigPatch;
use picofleet_harness::hooks::ToolTask;
use picofleet_harness_tests::{Kit, Reply, Stage, child};
use picofleet_session::SubmissionStatus;
use tempfile::TempDir;
use tokio::sync::Semaphore;

use super::subagents;
use super::tools::Stuck;

/// The child: a call of the unsafe gate tool runs and a follow-up waits until it is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_with_a_call_and_a_queue() {
    let Some(directory) = child::directory() else { return };
    let kit = Kit::in_directory(&directory, None).await;
    let tools = kit.registry.snapshot().tool_names();
    let patch = ConfigPatch { model: Some(Some(Stage::model_ref())), active_tools: Some(tools), ..ConfigPatch::default() };
    kit.root().await.update(patch).await.unwrap();
    kit.busy("a").await;
    kit.say("f").await;
    child::say("waits");
    std::future::pending::<()>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s118_s148_a_killed_process_leaves_a_run_that_goes_on() {
    let directory = TempDir::new().unwrap();
    let mut child = child::Process::spawn("crash::child_with_a_call_and_a_queue", directory.path());
    child.expect("waits");
    child.kill();

    let path = directory.path().to_owned();
    let mut kit = Kit::in_directory(&path, Some(directory)).await;
    kit.stage.give(Reply::text("one"));
    kit.stage.give(Reply::text("two"));
    let root = kit.root().await;
    kit.until("idle", async || root.live().await.unwrap().run.is_none() && kit.inbox().await.is_empty()).await;
    assert_eq!(kit.said().await, ["pi.user:a", "pi.assistant", "pi.tool-result", "pi.assistant:one", "pi.user:f", "pi.assistant:two"]);
    let entries = kit.entries(&root).await;
    let result = entries.iter().find(|entry| entry.kind == "pi.tool-result").unwrap();
    assert_eq!(picofleet_harness_tests::last_code(result), "interrupted");
    let next = kit.turn("b", Reply::text("three")).await;
    assert_eq!(next.status(), SubmissionStatus::Done);
    kit.stop().await;
}

async fn configured(kit: &Kit) {
    let tools = kit.registry.snapshot().tool_names();
    let patch = ConfigPatch { model: Some(Some(Stage::model_ref())), active_tools: Some(tools), ..ConfigPatch::default() };
    kit.root().await.update(patch).await.unwrap();
}

/// Runs the child until it waits, kills it, and opens its store again.
async fn killed(entry: &str) -> Kit {
    let directory = TempDir::new().unwrap();
    let mut child = child::Process::spawn(entry, directory.path());
    child.expect("waits");
    child.kill();
    let path = directory.path().to_owned();
    Kit::in_directory(&path, Some(directory)).await
}

async fn idle(kit: &Kit) {
    let root = kit.root().await;
    kit.until("idle", async || root.live().await.unwrap().run.is_none()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_with_a_safe_call() {
    let Some(directory) = child::directory() else { return };
    let kit = Kit::in_directory(&directory, None).await;
    configured(&kit).await;
    kit.stage.give(Reply::call("c1", "safe_gate", "{}"));
    kit.say("a").await;
    kit.gate.begun().await;
    child::say("waits");
    std::future::pending::<()>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s149_a_killed_process_leaves_a_safe_call_that_runs_again() {
    let mut kit = killed("crash::child_with_a_safe_call").await;
    kit.stage.give(Reply::text("one"));
    kit.root().await;
    kit.gate.begun().await;
    kit.gate.open();
    idle(&kit).await;
    assert_eq!(kit.said().await, ["pi.user:a", "pi.assistant", "pi.tool-result", "pi.assistant:one"]);
    let entries = kit.entries(&kit.root().await).await;
    let result = entries.iter().find(|entry| entry.kind == "pi.tool-result").unwrap();
    assert_eq!(picofleet_harness_tests::last_code(result), "");
    kit.stop().await;
}

fn stuck(kit: &Kit, attempt: u32) -> Arc<Stuck> {
    let stuck = Arc::new(Stuck(Semaphore::new(0), AtomicU32::new(attempt), Mutex::default()));
    kit.registry.hooks::<ToolTask>(None, None, stuck.clone()).unwrap();
    stuck
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_inside_before_tool() {
    let Some(directory) = child::directory() else { return };
    let kit = Kit::in_directory(&directory, None).await;
    configured(&kit).await;
    let stuck = stuck(&kit, 0);
    kit.stage.give(Reply::call("c1", "echo", r#"{"text":"y"}"#));
    kit.say("a").await;
    stuck.0.acquire().await.unwrap().forget();
    child::say("waits");
    std::future::pending::<()>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x070_a_process_killed_before_the_intent_leaves_a_call_that_is_asked_about_again() {
    let mut kit = killed("crash::child_inside_before_tool").await;
    let stuck = stuck(&kit, 1);
    kit.stage.give(Reply::text("one"));
    idle(&kit).await;
    assert_eq!(*stuck.2.lock().unwrap(), [0], "the memo of the process before");
    assert_eq!(kit.said().await, ["pi.user:a", "pi.assistant", "pi.tool-result", "pi.assistant:one"]);
    kit.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_with_a_subagent() {
    let Some(directory) = child::directory() else { return };
    let kit = Kit::in_directory(&directory, None).await;
    configured(&kit).await;
    subagents::register(&kit).await;
    kit.stage.give(subagents::ask("a", "child?"));
    kit.stage.give(Reply::call("c2", "safe_gate", "{}"));
    kit.say("a").await;
    kit.gate.begun().await;
    child::say("waits");
    std::future::pending::<()>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x074_a_process_killed_in_a_subagents_wait_leaves_one_child_with_one_submission() {
    let mut kit = killed("crash::child_with_a_subagent").await;
    kit.stage.give(Reply::text("child!"));
    kit.stage.give(Reply::text("one"));
    subagents::register(&kit).await;
    kit.gate.begun().await;
    kit.gate.open();
    idle(&kit).await;
    let root = kit.root().await;
    let child = subagents::only_child(&kit, root.id()).await;
    let users = kit.entries(&child).await.iter().filter(|entry| entry.kind == "pi.user").count();
    assert_eq!(users, 1);
    assert_eq!(kit.said().await.last().map(String::as_str), Some("pi.assistant:one"));
    kit.stop().await;
}
