//! Kills: a child runs the engine, and is killed as a crash does.

use picofleet_harness::config::ConfigPatch;
use picofleet_harness_tests::{Kit, Reply, Stage, child};
use picofleet_session::SubmissionStatus;
use tempfile::TempDir;

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
