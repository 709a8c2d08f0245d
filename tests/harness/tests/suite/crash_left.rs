//! What a crash between two commits of the scheduler leaves (sections 5.4 and 5.5).

use picofleet_harness::kind::{Outcome, TaskOptions};
use picofleet_harness_tests::{ABORTED, Act, Kit, child, failed, scenario, status, tasks};
use picofleet_session::storage::Commit;
use picofleet_session::{JoinPolicy, TaskId, TaskState};

use tempfile::TempDir;

use super::cascade::{built_in, marks};
use super::fail_fast::reads;

const TOP: TaskOptions = TaskOptions::top_level();

/// Picks the commit that brings a task into a state.
fn becomes(task: TaskId<u32>, state: &'static str) -> impl Fn(&Commit) -> bool + Send + Sync + 'static {
    move |commit| tasks(commit).any(|record| record.id == task.erase() && status(record) == state)
}

async fn stored(kit: &Kit, task: TaskId<u32>) -> String {
    status(&kit.stored(task.erase()).await)
}

scenario!(s089_a_mark_above_an_unmarked_child, async |kit| {
    let owner = kit.owner().await;
    let parent = kit.add("parent", TOP).await;
    let child = kit.add("child", TaskOptions::owned_by(parent)).await;
    owner.tell("parent", Act::wait(&[child], JoinPolicy::AllSettled));
    kit.comes(parent, "waiting").await;
    kit.ran(&owner, &["child:0"]).await;
    kit.tap.crash_behind(marks(parent));
    let harness = kit.harness();
    let abort = tokio::spawn(async move { harness.abort_task(parent.erase()).await });
    kit.crash().await;
    abort.abort();
    assert!(kit.stored(parent.erase()).await.abort_requested && !kit.stored(child.erase()).await.abort_requested);
    assert_eq!(stored(&kit, parent).await, "waiting");
    let before = owner.log().len();
    kit.reopen().await;
    kit.comes(parent, "terminal aborted").await;
    assert_eq!(kit.state(child).await, "terminal aborted");
    assert_eq!(owner.log()[before..], ["child:abort", "parent:abort"]);
});

scenario!(s089_a_failure_beside_an_unmarked_sibling, async |kit| {
    // One slot, so that the sibling has not begun when the other one fails.
    kit.worker.slots = 1;
    let owner = kit.owner().await;
    let parent = kit.add("parent", TOP).await;
    kit.ran(&owner, &["parent:0"]).await;
    let failing = kit.add("failing", TaskOptions::owned_by(parent)).await;
    let sibling = kit.add("sibling", TaskOptions::owned_by(parent)).await;
    kit.tap.crash_behind(becomes(failing, "terminal failed"));
    owner.tell("failing", Act::end(failed()));
    owner.tell("parent", Act::wait(&[failing, sibling], JoinPolicy::FailFast));
    kit.crash().await;
    assert_eq!([stored(&kit, parent).await, stored(&kit, failing).await], ["waiting", "terminal failed"]);
    let left = kit.stored(sibling.erase()).await;
    assert!(!left.abort_requested && matches!(left.state, TaskState::Pending { .. }), "{left:?}");
    owner.tell("parent", reads(&owner, &[failing, sibling]));
    kit.reopen().await;
    assert_eq!(kit.harness().wait_for_task(parent).await.unwrap(), Outcome::Completed(1));
    assert_eq!(kit.state(sibling).await, "terminal aborted");
    assert_eq!(owner.log(), ["parent:0", "failing:0", "sibling:abort", "parent:1", "failed", "aborted"]);
});

scenario!(s089_a_wait_whose_child_is_over, async |kit| {
    let owner = kit.owner().await;
    let parent = kit.add("parent", TOP).await;
    let child = kit.add("child", TaskOptions::owned_by(parent)).await;
    owner.tell("parent", Act::wait(&[child], JoinPolicy::AllSettled));
    kit.comes(parent, "waiting").await;
    kit.tap.crash_behind(becomes(child, "terminal completed"));
    owner.tell("child", Act::end(Outcome::Completed(3)));
    kit.crash().await;
    assert_eq!([stored(&kit, parent).await, stored(&kit, child).await], ["waiting", "terminal completed"]);
    let before = owner.log().len();
    owner.tell("parent", reads(&owner, &[child]));
    kit.reopen().await;
    assert_eq!(kit.harness().wait_for_task(parent).await.unwrap(), Outcome::Completed(1));
    kit.reopen().await;
    kit.harness().wait_for_idle().await.unwrap();
    assert_eq!(owner.log()[before..], ["parent:1", "completed 3"]);
});

scenario!(s089_s103_a_held_outcome_whose_work_has_drained, async |kit| {
    let owner = kit.owner().await;
    let (drained, holding) = (kit.add("drained", TOP).await, kit.add("holding", TOP).await);
    let child = kit.add("child", TaskOptions::owned_by(drained)).await;
    let stays = kit.add("stays", TaskOptions::owned_by(holding)).await;
    owner.tell("drained", Act::end(Outcome::Completed(5)));
    owner.tell("holding", Act::end(Outcome::Completed(6)));
    kit.comes(drained, "completing completed").await;
    kit.comes(holding, "completing completed").await;
    kit.ran(&owner, &["stays:0"]).await;
    kit.tap.crash_behind(becomes(child, "terminal completed"));
    owner.tell("child", Act::end(Outcome::Completed(1)));
    kit.crash().await;
    assert_eq!([stored(&kit, drained).await, stored(&kit, child).await], ["completing completed", "terminal completed"]);
    // No definition is needed, and nobody has to ask for progress.
    kit.resume = false;
    kit.tasks = built_in();
    kit.restart().await;
    let states = [kit.state(drained).await, kit.state(holding).await, kit.state(stays).await];
    assert_eq!(states, ["terminal completed", "completing completed", "pending"]);
    assert_eq!(kit.harness().wait_for_task(drained).await.unwrap(), Outcome::Completed(5));
    // S103: the rest of the work ends without a definition, too; its owner keeps what it decided.
    kit.harness().abort_task(stays.erase()).await.unwrap();
    assert_eq!(kit.harness().wait_for_task(holding).await.unwrap(), Outcome::Completed(6));
    assert_eq!(kit.state(stays).await, "terminal orphaned");
    assert!(owner.aborts().is_empty());
});

/// The child: an aborted parent that waits and a held outcome, both above a task that runs; killed before the cascade's commit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_with_a_mark_and_a_held_outcome() {
    let Some(directory) = child::directory() else { return };
    let mut kit = Kit::in_directory(&directory, None).await;
    let owner = kit.owner().await;
    let (parent, holding) = (kit.add("parent", TOP).await, kit.add("holding", TOP).await);
    let below = kit.add("below", TaskOptions::owned_by(parent)).await;
    let stays = kit.add("stays", TaskOptions::owned_by(holding)).await;
    owner.tell("parent", Act::wait(&[below], JoinPolicy::AllSettled));
    owner.tell("holding", Act::end(Outcome::Completed(6)));
    kit.comes(parent, "waiting").await;
    kit.comes(holding, "completing completed").await;
    kit.ran(&owner, &["below:0", "stays:0"]).await;
    let ids = [parent, holding, below, stays].map(|task| task.to_string());
    std::fs::write(directory.join("ids"), ids.join(" ")).unwrap();
    kit.tap.crash_behind(marks(parent));
    let harness = kit.harness();
    tokio::spawn(async move { harness.abort_task(parent.erase()).await });
    kit.tap.crashed().await;
    child::say("waits");
    std::future::pending::<()>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s089_a_killed_process_leaves_a_mark_and_a_held_outcome() {
    let directory = TempDir::new().unwrap();
    let mut process = child::Process::spawn("crash_left::child_with_a_mark_and_a_held_outcome", directory.path());
    process.expect("waits");
    process.kill();
    let ids = std::fs::read_to_string(directory.path().join("ids")).unwrap();
    let ids: Vec<TaskId<u32>> = ids.split(' ').map(|id| TaskId::new(id.parse().unwrap()).unwrap()).collect();
    let [parent, holding, below, stays] = ids.try_into().unwrap();
    let path = directory.path().to_owned();
    let mut kit = Kit::in_directory(&path, Some(directory)).await;
    assert!(kit.stored(parent.erase()).await.abort_requested && !kit.stored(below.erase()).await.abort_requested);
    let owner = kit.owner().await;
    assert_eq!(kit.harness().wait_for_task(parent).await.unwrap(), ABORTED);
    assert_eq!(kit.state(below).await, "terminal aborted");
    assert_eq!(owner.aborts(), ["below", "parent"]);
    kit.ran(&owner, &["stays:0"]).await;
    assert_eq!((kit.state(holding).await.as_str(), kit.state(stays).await.as_str()), ("completing completed", "running"));
    owner.tell("stays", Act::end(Outcome::Completed(1)));
    assert_eq!(kit.harness().wait_for_task(holding).await.unwrap(), Outcome::Completed(6));
    assert_eq!(owner.log().len(), 3, "{:?}", owner.log());
    kit.stop().await;
}
