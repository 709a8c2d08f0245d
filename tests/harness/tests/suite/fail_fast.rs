//! Waits that stop at the first failure (section 5.5).

use std::sync::Arc;

use picofleet_harness::effects::Fault;
use picofleet_harness::kind::{Next, Outcome, TaskOptions};
use picofleet_harness_tests::{ABORTED, Act, Kit, Owner, failed, scenario, status};
use picofleet_session::{JoinPolicy, TaskId};
use tokio::sync::Notify;

const TOP: TaskOptions = TaskOptions::top_level();

/// A task that waits for children of these names, which run, and fails fast.
async fn waiting<const N: usize>(kit: &Kit, owner: &Owner, names: [&str; N]) -> (TaskId<u32>, [TaskId<u32>; N]) {
    let parent = kit.add("parent", TOP).await;
    let mut children = Vec::new();
    for name in names {
        children.push(kit.add(name, TaskOptions::owned_by(parent)).await);
        kit.ran(owner, &[&format!("{name}:0")]).await;
    }
    owner.tell("parent", Act::wait(&children, JoinPolicy::FailFast));
    kit.comes(parent, "waiting").await;
    (parent, children.try_into().unwrap())
}

/// Reads how tasks ended, notes it, and ends.
pub(crate) fn reads(owner: &Owner, of: &[TaskId<u32>]) -> Act {
    let (owner, of) = (owner.clone(), of.to_vec());
    Act::new(move |_, runtime| async move {
        for outcome in runtime.outcomes(&of).await? {
            owner.note(match outcome {
                Outcome::Completed(n) => format!("completed {n}"),
                Outcome::Failed { .. } => "failed".to_owned(),
                Outcome::Aborted { .. } => "aborted".to_owned(),
                Outcome::Orphaned(_) => "orphaned".to_owned(),
                Outcome::Faulted(_) => "faulted".to_owned(),
            });
        }
        runtime.commit(async |_, _| Ok::<_, Fault>(Next::End(Outcome::Completed(1)))).await
    })
}

async fn one_of_four(kit: &Kit, owner: &Owner, ends: Act, outcome: &str) {
    let (parent, children) = waiting(kit, owner, ["one", "two", "three", "four"]).await;
    owner.tell("parent", reads(owner, &children));
    owner.tell("two", ends);
    assert_eq!(kit.harness().wait_for_task(parent).await.unwrap(), Outcome::Completed(1));
    let log = owner.log();
    assert_eq!(log[log.len() - 5..], ["parent:1", "aborted", outcome, "aborted", "aborted"]);
    let mut aborts = owner.aborts();
    aborts.sort();
    assert_eq!(aborts, ["four", "one", "three"]);
    assert_eq!(kit.tap.first(|record| record.id == parent.erase() && record.abort_requested), None);
}

scenario!(s097_a_failure_aborts_its_siblings, async |kit| {
    let owner = kit.owner().await;
    one_of_four(&kit, &owner, Act::end(failed()), "failed").await;
});

scenario!(s097_a_fault_aborts_its_siblings, async |kit| {
    let owner = kit.owner().await;
    one_of_four(&kit, &owner, Act::throw("boom"), "faulted").await;
});

scenario!(s098_a_held_failure_counts, async |kit| {
    let owner = kit.owner().await;
    let gate = Arc::new(Notify::new());
    let (parent, [failing, sibling]) = waiting(&kit, &owner, ["failing", "sibling"]).await;
    let below = kit.add("below", TaskOptions::owned_by(failing)).await;
    kit.ran(&owner, &["below:0"]).await;
    owner.tell("below:abort", Act::end(ABORTED).behind(&gate));
    owner.tell("failing", Act::end(failed()));
    kit.comes(sibling, "terminal aborted").await;
    kit.ran(&owner, &["below:abort"]).await;
    let states = [kit.state(failing).await, kit.state(below).await, kit.state(parent).await];
    assert_eq!(states, ["completing failed", "running", "waiting"], "before it has drained");
    owner.tell("parent", reads(&owner, &[failing, sibling]));
    gate.notify_one();
    assert_eq!(kit.harness().wait_for_task(parent).await.unwrap(), Outcome::Completed(1));
    let log = owner.log();
    assert_eq!(log[log.len() - 3..], ["parent:1", "failed", "aborted"]);
});

scenario!(x047_marks_come_later_and_the_wait_ends_behind_all, async |kit| {
    let owner = kit.owner().await;
    let gate = Arc::new(Notify::new());
    let (parent, children) = waiting(&kit, &owner, ["failing", "slow", "quick"]).await;
    let [failing, slow, quick] = children;
    owner.tell("slow:abort", Act::end(ABORTED).behind(&gate));
    owner.tell("failing", Act::end(failed()));
    kit.ran(&owner, &["slow:abort"]).await;
    kit.comes(quick, "terminal aborted").await;
    assert_eq!((kit.state(failing).await.as_str(), kit.state(parent).await.as_str()), ("terminal failed", "waiting"));
    owner.tell("parent", reads(&owner, &children));
    gate.notify_one();
    assert_eq!(kit.harness().wait_for_task(parent).await.unwrap(), Outcome::Completed(1));
    let first = |task: TaskId<u32>, state: &str| kit.tap.first(|record| record.id == task.erase() && status(record) == state).unwrap();
    let marked = |task: TaskId<u32>| kit.tap.first(|record| record.id == task.erase() && record.abort_requested).unwrap();
    let failure = first(failing, "terminal failed");
    assert!(failure < marked(slow) && failure < marked(quick), "a later commit");
    let resumed = kit.tap.last(|record| record.id == parent.erase() && status(record) == "running").unwrap();
    for (task, state) in [(failing, "terminal failed"), (slow, "terminal aborted"), (quick, "terminal aborted")] {
        assert!(first(task, state) < resumed);
    }
});
