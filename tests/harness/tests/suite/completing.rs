//! Outcomes that are held until the work below has drained (section 5.5).

use std::sync::{Arc, LazyLock};

use picofleet_harness::effects::Fault;
use picofleet_harness::inspection::TaskView;
use picofleet_harness::kind::{Next, Outcome, TaskOptions};
use picofleet_harness_tests::{ABORTED, Act, Kit, Owner, Reply, failed, scenario, status, tasks};
use picofleet_session::storage::{Commit, Write};
use picofleet_session::{
    DocDefinition, DocToken, DocumentAddress, DocumentScope, EntryDraft, InTask, Json, ROOT_CONVERSATION_ID, Settlement, SubmissionId,
    SubmissionRecord, SubmissionStatus, TaskCreate, TaskId, TaskOutcome, TaskOwnership, TaskState,
};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::{cascade::built_in, empty, reason};

const TOP: TaskOptions = TaskOptions::top_level();

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
struct Note {
    n: u32,
}

/// A document of a task.
static NOTE: LazyLock<DocToken<Note, InTask>> = LazyLock::new(|| {
    DocToken::new("test.note", 1, || DocDefinition { initial: Note::default, migrate: None, checkpoint_when: |_, _, _| true })
});

async fn note(kit: &Kit, task: TaskId<u32>) -> Option<Json> {
    let scope = DocumentScope::Task { id: task.erase() };
    let address = DocumentAddress { kind: "test.note".to_owned(), scope, key: None };
    kit.harness().document(address).await.unwrap().map(|stored| stored.value)
}

/// Writes the note of the task, and goes on.
fn notes(n: u32) -> Act {
    Act::new(move |task, runtime| async move {
        runtime
            .commit(async |tx, current| {
                tx.doc(&*NOTE, current.id.erase()).await?.edit(|note| note.n = n)?;
                Ok::<_, Fault>(Next::Checkpoint(task.checkpoint.next()))
            })
            .await
    })
}

async fn failure_aborts_the_child_first(kit: &Kit, owner: &Owner, ends: Act, word: &str) {
    let gate = Arc::new(Notify::new());
    let (parent, child) = (format!("{word} parent"), format!("{word} child"));
    let task = kit.add(&parent, TOP).await;
    let below = kit.add(&child, TaskOptions::owned_by(task)).await;
    kit.ran(owner, &[&format!("{child}:0")]).await;
    owner.tell(&format!("{child}:abort"), Act::end(ABORTED).behind(&gate));
    owner.tell(&parent, ends);
    kit.ran(owner, &[&format!("{child}:abort")]).await;
    let TaskState::Completing { outcome } = kit.task(task.erase()).await.state else { panic!("not held") };
    gate.notify_one();
    kit.comes(task, &format!("terminal {word}")).await;
    assert_eq!(kit.task(task.erase()).await.state, TaskState::Terminal { outcome });
    assert_eq!(kit.state(below).await, "terminal aborted");
    let over = |task: TaskId<u32>| kit.tap.first(|record| record.id == task.erase() && record.terminal()).unwrap();
    assert!(over(below) < over(task));
    assert!(!owner.aborts().contains(&parent), "its own outcome stays");
}

scenario!(s085_a_failed_owner_ends_behind_its_aborted_child, async |kit| {
    let owner = kit.owner().await;
    failure_aborts_the_child_first(&kit, &owner, Act::end(failed()), "failed").await;
    failure_aborts_the_child_first(&kit, &owner, Act::throw("boom"), "faulted").await;
});

scenario!(s085_a_completed_owner_waits_for_what_it_owns_also_for_what_comes_later, async |kit| {
    let owner = kit.owner().await;
    let parent = kit.add("parent", TOP).await;
    let child = kit.add("child", TaskOptions::owned_by(parent)).await;
    let below = kit.owned(parent).await;
    owner.tell("parent", Act::end(Outcome::Completed(5)));
    kit.comes(parent, "completing completed").await;
    let later = kit.add("later", TaskOptions::owned_by(child)).await;
    let inside = kit.add("inside", TOP.in_conversation(below)).await;
    for (name, task, state) in
        [("child", child, "completing completed"), ("inside", inside, "terminal completed"), ("later", later, "terminal completed")]
    {
        assert_eq!(kit.state(parent).await, "completing completed");
        owner.tell(name, Act::end(Outcome::Completed(1)));
        kit.comes(task, state).await;
    }
    assert_eq!(kit.harness().wait_for_task(parent).await.unwrap(), Outcome::Completed(5));
    assert_eq!(kit.state(child).await, "terminal completed");
    assert!(owner.aborts().is_empty());
});

scenario!(s099_a_held_outcome_becomes_terminal_with_the_last_child, async |kit| {
    let owner = kit.owner().await;
    let parent = kit.add("parent", TOP).await;
    let child = kit.add("child", TaskOptions::owned_by(parent)).await;
    owner.tell("parent", notes(3));
    owner.tell("parent", Act::end(Outcome::Completed(5)));
    kit.comes(parent, "completing completed").await;
    let outcome = TaskOutcome::Completed { result: 5.into() };
    assert_eq!(kit.task(parent.erase()).await.state, TaskState::Completing { outcome: outcome.clone() });
    let (harness, root) = (kit.harness(), kit.root().await);
    let waits = tokio::spawn(async move { harness.wait_for_task(parent).await });
    let idle = tokio::spawn(async move { root.wait_for_idle().await });
    kit.ran(&owner, &["child:0"]).await;
    assert_eq!(note(&kit, parent).await, Some(Json::object([("n", 3)])));
    let inspection = kit.harness().inspect().await.unwrap();
    let views: Vec<_> = inspection.tasks.into_iter().map(|task| (task.record.id, task.state)).collect();
    assert_eq!(views, [(parent.erase(), TaskView::Completing), (child.erase(), TaskView::Running)]);
    assert!(!waits.is_finished() && !idle.is_finished());
    owner.tell("child", Act::end(Outcome::Completed(1)));
    assert_eq!(waits.await.unwrap().unwrap(), Outcome::Completed(5));
    idle.await.unwrap().unwrap();
    assert_eq!(kit.task(parent.erase()).await.state, TaskState::Terminal { outcome });
    assert_eq!(note(&kit, parent).await, None);
    assert_eq!(kit.harness().wait_for_task(child).await.unwrap(), Outcome::Completed(1));
});

/// Answers an input with an entry, changes its document, and ends.
fn answers(input: SubmissionId) -> Act {
    Act::new(move |_, runtime| async move {
        runtime
            .commit(async |tx, current| {
                tx.doc(&*NOTE, current.id.erase()).await?.edit(|note| note.n = 4)?;
                let answer = tx.append_entry(current.conversation, EntryDraft::new("answer")).await?.id;
                tx.settle_submission(input, Settlement::Done { answer }).await?;
                Ok::<_, Fault>(Next::End(Outcome::Completed(5)))
            })
            .await
    })
}

scenario!(s100_the_writes_of_a_terminal_commit_land_at_the_hold, async |kit| {
    let owner = kit.owner().await;
    let parent = kit.add("parent", TOP).await;
    kit.add("child", TaskOptions::owned_by(parent)).await;
    let input = kit.asking("hi", Reply::text("x")).await;
    owner.tell("parent", answers(input.id()));
    kit.comes(parent, "completing completed").await;
    assert_eq!(input.status().await.unwrap().status(), SubmissionStatus::Done);
    assert_eq!(kit.kinds().await.last().map(String::as_str), Some("answer"));
    assert_eq!(note(&kit, parent).await, Some(Json::object([("n", 4)])), "retired with the final commit");
    let harness = kit.harness();
    let waits = tokio::spawn(async move { harness.wait_for_task(parent).await });
    kit.ran(&owner, &["child:0"]).await;
    assert!(!waits.is_finished());
    owner.tell("child", Act::end(Outcome::Completed(1)));
    assert_eq!(waits.await.unwrap().unwrap(), Outcome::Completed(5));
    assert_eq!(note(&kit, parent).await, None);
    let last = kit.tap.last(|record| record.id == parent.erase()).unwrap();
    let writes = kit.tap.commit(last).writes;
    assert!(writes.iter().all(|write| matches!(write, Write::Task(_) | Write::DocumentRetire(_) | Write::Wake(_))), "{writes:?}");
    kit.stage.release();
    kit.until("the end of the run", async || kit.run().await.is_none()).await;
});

scenario!(s100_a_generation_answers_and_hands_over_at_its_hold, async |kit| {
    let owner = kit.owner().await;
    let first = kit.asking("a", Reply::text("one")).await;
    let (generation, _) = kit.run().await.unwrap();
    kit.add("child", TaskOptions::owned_by(generation)).await;
    let second = kit.say("b").await;
    kit.stage.give(Reply::text("two"));
    kit.stage.release();
    assert_eq!(kit.settled(&first).await.status(), SubmissionStatus::Done);
    assert_eq!(kit.settled(&second).await.status(), SubmissionStatus::Done);
    assert_eq!(status(&kit.task(generation).await), "completing completed");
    assert_eq!(kit.said().await, ["pi.user:a", "pi.assistant:one", "pi.user:b", "pi.assistant:two"]);
    owner.tell("child", Act::end(Outcome::Completed(1)));
    kit.root().await.wait_for_idle().await.unwrap();
    assert_eq!(status(&kit.task(generation).await), "terminal completed");
});

/// A generation that faults behind a partial, with a task that it owns and whose abort handler waits for the gate.
async fn faulting(kit: &Kit, owner: &Owner, gate: &Arc<Notify>) -> (SubmissionRecord, TaskId, TaskId<u32>) {
    let input = kit.asking("hi", Reply::text("some").broken()).await;
    kit.until("the partial", async || kit.document("pi.live").await.to_string().contains("some")).await;
    let (generation, _) = kit.run().await.unwrap();
    let child = kit.add("child", TaskOptions::owned_by(generation)).await;
    kit.ran(owner, &["child:0"]).await;
    owner.tell("child:abort", Act::end(ABORTED).behind(gate));
    kit.stage.release();
    kit.ran(owner, &["child:abort"]).await;
    (input.status().await.unwrap(), generation, child)
}

/// Picks the commit that ends a task.
fn ends(task: TaskId) -> impl Fn(&Commit) -> bool + Send + Sync + 'static {
    move |commit| tasks(commit).any(|record| record.id == task && record.terminal())
}

async fn held(kit: &Kit, input: &SubmissionRecord, generation: TaskId) {
    assert_eq!(status(&kit.task(generation).await), "completing faulted");
    assert_eq!(kit.run().await, Some((generation, vec![input.id])));
    let input = kit.harness().submission(input.id).await.unwrap().unwrap().status().await.unwrap();
    assert_eq!(input.status(), SubmissionStatus::Placed);
    assert_eq!(kit.said().await, ["pi.user:hi"]);
}

async fn cleaned_up(kit: &Kit, input: &SubmissionRecord, generation: TaskId) {
    let settled = kit.harness().submission(input.id).await.unwrap().unwrap().wait().await.unwrap();
    assert_eq!((settled.status(), reason(&settled)), (SubmissionStatus::Unanswered, "faulted"));
    assert_eq!(status(&kit.task(generation).await), "terminal faulted");
    assert_eq!(kit.document("pi.live").await, empty());
    assert_eq!(kit.said().await, ["pi.user:hi", "pi.assistant:some"]);
}

scenario!(s101_a_faulted_generation_is_cleaned_up_behind_its_owned_work, async |kit| {
    let owner = kit.owner().await;
    let gate = Arc::new(Notify::new());
    let (input, generation, child) = faulting(&kit, &owner, &gate).await;
    held(&kit, &input, generation).await;
    gate.notify_one();
    cleaned_up(&kit, &input, generation).await;
    assert_eq!(kit.state(child).await, "terminal aborted");
    // One commit: the record, the submission, the entry.
    let last = kit.tap.first(|record| record.id == generation && record.terminal()).unwrap();
    let writes = kit.tap.commit(last).writes;
    assert!(writes.iter().any(|write| matches!(write, Write::Submission(record) if record.id == input.id)));
    assert!(writes.iter().any(|write| matches!(write, Write::Entry(entry) if entry.kind == "pi.assistant")));
});

scenario!(s101_a_cleanup_that_storage_lost_is_done_at_the_next_opening, async |kit| {
    let owner = kit.owner().await;
    let gate = Arc::new(Notify::new());
    let (input, generation, child) = faulting(&kit, &owner, &gate).await;
    kit.tap.crash_at(ends(generation));
    gate.notify_one();
    kit.crash().await;
    assert_eq!(status(&kit.stored(generation).await), "completing faulted");
    assert_eq!(status(&kit.stored(child.erase()).await), "terminal aborted");
    assert_eq!(kit.stored_submission(input.id).await.status(), SubmissionStatus::Placed);
    // The opening alone does it.
    kit.resume = false;
    kit.restart().await;
    cleaned_up(&kit, &input, generation).await;
});

scenario!(s103_a_held_outcome_needs_no_definition, async |kit| {
    let owner = kit.owner().await;
    let parent = kit.add("parent", TOP).await;
    let child = kit.add("child", TaskOptions::owned_by(parent)).await;
    owner.tell("parent", Act::end(Outcome::Completed(5)));
    kit.comes(parent, "completing completed").await;
    kit.tasks = built_in();
    kit.reopen().await;
    assert_eq!(kit.state(parent).await, "completing completed");
    kit.harness().abort_task(child.erase()).await.unwrap();
    assert_eq!(kit.harness().wait_for_task(parent).await.unwrap(), Outcome::Completed(5));
    assert_eq!(kit.state(child).await, "terminal orphaned");
});

/// A task that nobody has code for.
fn unknown() -> TaskCreate {
    TaskCreate {
        kind: "test.unknown".to_owned(),
        version: 1,
        input: Json::null(),
        checkpoint: Json::object([("phase", "a")]),
        ownership: TaskOwnership::Conversation,
        conversation_id: Some(ROOT_CONVERSATION_ID),
        background: false,
    }
}

scenario!(s104_idleness_waits_for_the_foreground_below, async |kit| {
    let owner = kit.owner().await;
    let front = kit.add("front", TOP).await;
    let inside = kit.add("inside", TOP.in_conversation(kit.owned(front).await)).await;
    let back = kit.add("back", TOP.background()).await;
    kit.add("child", TaskOptions::owned_by(back)).await;
    let owned = kit.owned(back).await;
    kit.add("below", TOP.in_conversation(owned)).await;
    let root = kit.root().await;
    let blocked: Result<_, Box<dyn std::error::Error + Send + Sync>> =
        root.commit(async |tx| Ok(tx.create_task_raw(unknown()).await?)).await;
    let blocked = blocked.unwrap();
    owner.tell("front", Act::end(Outcome::Completed(1)));
    kit.comes(front, "completing completed").await;
    kit.ran(&owner, &["inside:0", "back:0", "child:0", "below:0"]).await;
    let (again, below) = (root.clone(), kit.conversation(owned).await);
    let idle = tokio::spawn(async move { again.wait_for_idle().await });
    let below_idle = tokio::spawn(async move { below.wait_for_idle().await });
    // It looks again behind each commit: a completing task, then a blocked one is what is left.
    owner.tell("inside", Act::end(Outcome::Completed(1)));
    kit.comes(inside, "terminal completed").await;
    kit.comes(front, "terminal completed").await;
    assert!(!idle.is_finished());
    kit.harness().abort_task(blocked).await.unwrap();
    idle.await.unwrap().unwrap();
    kit.harness().wait_for_idle().await.unwrap();
    assert!(!below_idle.is_finished(), "its own work counts");
    owner.tell("below", Act::end(Outcome::Completed(1)));
    below_idle.await.unwrap().unwrap();
    assert_eq!(kit.state(back).await, "running");
});
