//! Aborts and what they reach (section 5.4).

use std::sync::Arc;

use picofleet_harness::config::ConfigPatch;
use picofleet_harness::effects::Fault;
use picofleet_harness::host::{AbortTask, Conversation, ConversationOptions};
use picofleet_harness::kind::{Next, Outcome, TaskOptions, TxTasks as _};
use picofleet_harness::registry::Registry;
use picofleet_harness::submission::SubmissionDraft;
use picofleet_harness::task::LineTasks;
use picofleet_harness::wire::{Answer, Refusal, Request, WorkerId};
use picofleet_harness_tests::{ABORTED, Act, Kit, Owner, Reply, Stage, failed, scenario, tasks};
use picofleet_session::storage::Commit;
use picofleet_session::{ConversationOwnership, EntryDraft, InvocationId, JoinPolicy, SubmissionStatus, TaskId, TaskState};
use tokio::sync::Notify;

use super::reason;

const TOP: TaskOptions = TaskOptions::top_level();

/// Picks the commit that marks a task.
pub(crate) fn marks(task: TaskId<u32>) -> impl Fn(&Commit) -> bool + Send + Sync + 'static {
    move |commit| tasks(commit).any(|record| record.id == task.erase() && record.abort_requested)
}

/// Polls a call until it waits for the line, which something else has. On one thread.
async fn queued<F: Future + Unpin>(call: &mut F) {
    for _ in 0..20 {
        assert!(futures::poll!(&mut *call).is_pending(), "the line is taken");
        tokio::task::yield_now().await;
    }
}

async fn aborted(kit: &Kit, task: TaskId<u32>) {
    assert_eq!(kit.harness().abort_task(task.erase()).await.unwrap(), AbortTask::Marked);
    assert_eq!(kit.harness().wait_for_task(task).await.unwrap(), ABORTED);
}

/// Tasks that are live and carry no mark.
async fn untouched(kit: &Kit, tasks: &[TaskId<u32>]) {
    for task in tasks {
        let record = kit.task(task.erase()).await;
        assert!(!record.abort_requested && matches!(record.state, TaskState::Running { .. }), "{record:?}");
    }
}

scenario!(s083_a_cascade_goes_down_and_its_handlers_run_bottom_up, async |kit| {
    let owner = kit.owner().await;
    let a = kit.add("a", TOP).await;
    let b = kit.add("b", TaskOptions::owned_by(a)).await;
    let below = kit.owned(b).await;
    let x = kit.add("x", TOP.in_conversation(below)).await;
    // A background task there, with work of both kinds below it.
    let g = kit.add("g", TOP.in_conversation(below).background()).await;
    let h = kit.add("h", TaskOptions::owned_by(g)).await;
    let y = kit.add("y", TOP.in_conversation(kit.owned(g).await)).await;
    kit.ran(&owner, &["a:0", "b:0", "x:0", "g:0", "h:0", "y:0"]).await;
    aborted(&kit, a).await;
    assert_eq!(owner.aborts(), ["x", "b", "a"]);
    for task in [a, b, x] {
        assert_eq!(kit.state(task).await, "terminal aborted");
    }
    untouched(&kit, &[g, h, y]).await;
    let marked = |task: TaskId<u32>| kit.tap.first(|record| record.id == task.erase() && record.abort_requested).unwrap();
    assert!(marked(a) < marked(b) && marked(a) < marked(x), "the cascade is a later commit");
    // With an intent of its own it shields nothing.
    aborted(&kit, g).await;
    let mut below = owner.aborts()[3..].to_vec();
    assert_eq!(below.pop().as_deref(), Some("g"));
    below.sort();
    assert_eq!(below, ["h", "y"]);
});

scenario!(s086_only_a_live_owner_cancels_what_is_created_below, async |kit| {
    let owner = kit.owner().await;
    let gate = Arc::new(Notify::new());
    let failing = kit.add("failing", TOP).await;
    let child = kit.add("child", TaskOptions::owned_by(failing)).await;
    let below = kit.owned(failing).await;
    owner.tell("child:abort", Act::end(ABORTED).behind(&gate));
    owner.tell("failing", Act::end(failed()));
    kit.comes(failing, "completing failed").await;
    let during = kit.add("during", TOP.in_conversation(below)).await;
    kit.comes(during, "terminal aborted").await;
    assert_eq!(kit.state(failing).await, "completing failed");
    gate.notify_one();
    kit.comes(failing, "terminal failed").await;
    assert_eq!(kit.state(child).await, "terminal aborted");
    let aborting = kit.add("aborting", TOP).await;
    let other = kit.owned(aborting).await;
    aborted(&kit, aborting).await;
    for (name, conversation) in [("after failed", below), ("after aborted", other)] {
        let task = kit.add(name, TOP.in_conversation(conversation)).await;
        owner.tell(name, Act::end(Outcome::Completed(1)));
        assert_eq!(kit.harness().wait_for_task(task).await.unwrap(), Outcome::Completed(1));
        assert!(!kit.task(task.erase()).await.abort_requested);
    }
    assert!(!owner.log().contains(&"during:0".to_owned()));
});

scenario!(s087_an_abort_of_a_conversation_crosses_background_work_only_where_it_is_asked_to, async |kit| {
    let owner = kit.owner().await;
    let front = kit.add("front", TOP).await;
    let back = kit.add("back", TOP.background()).await;
    let child = kit.add("child", TaskOptions::owned_by(back)).await;
    let owned = kit.owned(back).await;
    let below = kit.add("below", TOP.in_conversation(owned)).await;
    kit.ran(&owner, &["front:0", "back:0", "child:0", "below:0"]).await;
    let root = kit.root().await;
    root.abort(false).await.unwrap();
    assert_eq!(kit.state(front).await, "terminal aborted");
    untouched(&kit, &[back, child, below]).await;
    root.abort(true).await.unwrap();
    for task in [back, child, below] {
        assert_eq!(kit.state(task).await, "terminal aborted");
    }
    // The anchor is over; what is below it is reached all the same.
    let later = kit.add("later", TOP.in_conversation(owned)).await;
    kit.ran(&owner, &["later:0"]).await;
    root.abort(false).await.unwrap();
    untouched(&kit, &[later]).await;
    root.abort(true).await.unwrap();
    assert_eq!(kit.state(later).await, "terminal aborted");
});

/// A conversation that a task owns, busy with a request that nobody answers, with a queued input and a queued write.
async fn busy(kit: &Kit, by: TaskId<u32>) -> (Conversation, [picofleet_session::SubmissionId; 3]) {
    let config = ConfigPatch { model: Some(Some(Stage::model_ref())), ..ConfigPatch::default() };
    let options = ConversationOptions::owned_by(by.erase()).config(config);
    let conversation = kit.harness().create_conversation(options).await.unwrap();
    kit.stage.give(Reply::text("x").held());
    let mut submissions = Vec::new();
    for draft in [SubmissionDraft::input("run"), SubmissionDraft::input("queued"), SubmissionDraft::write(EntryDraft::new("note"))] {
        submissions.push(conversation.submit(draft).await.unwrap().id());
    }
    (conversation, submissions.try_into().unwrap())
}

async fn statuses(kit: &Kit, submissions: &[picofleet_session::SubmissionId]) -> Vec<(SubmissionStatus, String)> {
    let mut all = Vec::new();
    for id in submissions {
        let record = kit.harness().submission(*id).await.unwrap().unwrap().status().await.unwrap();
        all.push((record.status(), reason(&record).to_owned()));
    }
    all
}

scenario!(s088_an_abort_withdraws_inputs_and_keeps_writes, async |kit| {
    let _owner = kit.owner().await;
    let (front, back) = (kit.add("front", TOP).await, kit.add("back", TOP.background()).await);
    let (owned, reached) = busy(&kit, front).await;
    let (_, shielded) = busy(&kit, back).await;
    let run = kit.busy("run").await;
    let queued = [kit.say("f").await.id(), kit.steer("s").await.id()];
    let write = kit.root().await.submit(SubmissionDraft::write(EntryDraft::new("note"))).await.unwrap().id();
    let root = kit.root().await;
    root.abort(false).await.unwrap();
    // It resolves when all of it is over.
    assert!(kit.run().await.is_none() && owned.live().await.unwrap().run.is_none());
    let unanswered = (SubmissionStatus::Unanswered, "aborted".to_owned());
    let waits = (SubmissionStatus::Queued, String::new());
    let inputs = [run.id(), queued[0], queued[1]];
    assert_eq!(statuses(&kit, &inputs).await, [unanswered.clone(), unanswered.clone(), unanswered.clone()]);
    assert_eq!((statuses(&kit, &[write]).await, kit.inbox().await), (vec![waits.clone()], vec![(write, "write")]));
    assert_eq!(statuses(&kit, &reached).await, [unanswered.clone(), unanswered.clone(), waits.clone()]);
    let placed = (SubmissionStatus::Placed, String::new());
    assert_eq!(statuses(&kit, &shielded).await, [placed, waits.clone(), waits.clone()]);
    root.abort(true).await.unwrap();
    assert_eq!(statuses(&kit, &shielded).await, [unanswered.clone(), unanswered, waits]);
});

scenario!(s091_an_abort_handler_that_waits_faults_its_task, async |kit| {
    let owner = kit.owner().await;
    let task = kit.add("t", TOP).await;
    kit.ran(&owner, &["t:0"]).await;
    owner.tell("t:abort", Act::wait(&[], JoinPolicy::AllSettled));
    assert_eq!(kit.harness().abort_task(task.erase()).await.unwrap(), AbortTask::Marked);
    let outcome = kit.harness().wait_for_task(task).await.unwrap();
    assert!(matches!(&outcome, Outcome::Faulted(error) if error.message.contains("cannot wait")), "{outcome:?}");
});

/// What an abort handler tries to create, and what it may.
fn compensates(owner: &Owner) -> Act {
    let owner = owner.clone();
    Act::new(move |task, runtime| async move {
        let child = runtime.commit(async |tx, current| {
            tx.create_task(&owner, "child".to_owned(), TaskOptions::owned_by(current.id)).await?;
            Ok::<_, Fault>(Next::Stay)
        });
        owner.note(format!("child: {}", child.await.unwrap_err()));
        let conversation = runtime.commit(async |tx, current| {
            tx.create_conversation(ConversationOwnership::Task { task_id: current.id.erase() }).await?;
            Ok::<_, Fault>(Next::Stay)
        });
        owner.note(format!("conversation: {}", conversation.await.unwrap_err()));
        let mut helper = None;
        runtime
            .commit(async |tx, _| {
                helper = Some(tx.create_task(&owner, "helper".to_owned(), TOP.background()).await?);
                Ok::<_, Fault>(Next::Checkpoint(task.checkpoint.next()))
            })
            .await?;
        let outcome = runtime.wait_for_task(helper.unwrap()).await?;
        let result = if let Outcome::Completed(n) = outcome { Some(n) } else { None };
        runtime.commit(async |_, _| Ok::<_, Fault>(Next::End(Outcome::Aborted { reason: None, result }))).await
    })
}

scenario!(s091_an_abort_handler_owns_nothing_new_and_awaits_background_tasks, async |kit| {
    let owner = kit.owner().await;
    let task = kit.add("t", TOP).await;
    kit.ran(&owner, &["t:0"]).await;
    owner.tell("t:abort", compensates(&owner));
    assert_eq!(kit.harness().abort_task(task.erase()).await.unwrap(), AbortTask::Marked);
    kit.ran(&owner, &["helper:0"]).await;
    assert_eq!(kit.state(task).await, "running");
    owner.tell("helper", Act::end(Outcome::Completed(7)));
    let outcome = kit.harness().wait_for_task(task).await.unwrap();
    assert_eq!(outcome, Outcome::Aborted { reason: None, result: Some(7) });
    let notes: Vec<String> = owner.log().into_iter().filter(|line| line.contains(": ")).collect();
    assert_eq!(notes.len(), 2);
    assert!(notes.iter().all(|note| note.contains("is abort-marked")), "{notes:?}");
});

scenario!(one_thread x040_a_mark_behind_a_reservation_in_storage_starts_no_phase, async |kit| {
    let owner = kit.owner().await;
    let reserves = |commit: &Commit| tasks(commit).any(|record| matches!(record.state, TaskState::Running { .. }));
    let held = kit.tap.hold(reserves);
    let task = kit.add("t", TOP).await;
    held.arrived().await;
    let harness = kit.harness();
    let mut abort = Box::pin(harness.abort_task(task.erase()));
    queued(&mut abort).await;
    held.release();
    assert_eq!(abort.await.unwrap(), AbortTask::Marked);
    assert_eq!(harness.wait_for_task(task).await.unwrap(), ABORTED);
    assert_eq!(owner.log(), ["t:abort"]);
    // The reservation was refused: nothing was begun that had to be ended.
    let seen = kit.faults.seen();
    let first = seen.iter().find_map(|request| if let Request::Reserve { invocation, .. } = request { Some(*invocation) } else { None });
    let ended = |request: &Request| matches!(request, Request::Ended { invocation, .. } if Some(*invocation) == first);
    assert!(first.is_some() && !seen.iter().any(ended));
});

scenario!(x041_the_mark_wins_over_a_fault, async |kit| {
    let owner = kit.owner().await;
    let task = kit.add("t", TOP).await;
    let reached = owner.clone();
    let throws = Act::new(move |_, runtime| async move {
        reached.note("waits");
        runtime.cancelled().cancelled().await;
        Err(Fault::Failed(picofleet_session::TaskError { message: "boom".to_owned(), detail: None }))
    });
    owner.tell("t", throws);
    kit.ran(&owner, &["waits"]).await;
    let outcome = Outcome::Aborted { reason: Some("by its handler".to_owned()), result: None };
    owner.tell("t:abort", Act::end(outcome.clone()));
    assert_eq!(kit.harness().abort_task(task.erase()).await.unwrap(), AbortTask::Marked);
    assert_eq!(kit.harness().wait_for_task(task).await.unwrap(), outcome);
    assert_eq!(owner.log(), ["t:0", "waits", "t:abort"]);
});

/// No definition but the built-in ones.
pub(crate) fn built_in() -> LineTasks {
    LineTasks::of(&Registry::new())
}

scenario!(x043_a_run_whose_definition_is_gone_is_orphaned_behind_its_end, async |kit| {
    let owner = kit.owner().await;
    let gate = Arc::new(Notify::new());
    let task = kit.add("t", TOP).await;
    let (reached, waits) = (owner.clone(), Arc::clone(&gate));
    let ignores = Act::new(move |_, _| async move {
        reached.note("ignores");
        waits.notified().await;
        Ok(())
    });
    owner.tell("t", ignores);
    kit.ran(&owner, &["ignores"]).await;
    kit.set_tasks(built_in()).await;
    let harness = kit.harness();
    let abort = tokio::spawn(async move { harness.abort_task(task.erase()).await });
    kit.until("the mark", async || kit.task(task.erase()).await.abort_requested).await;
    // The scheduler has looked at it since: this is a pass of its own.
    let other = kit.add("other", TOP).await;
    assert_eq!(kit.harness().abort_task(other.erase()).await.unwrap(), AbortTask::Marked);
    assert_eq!((kit.state(other).await.as_str(), kit.state(task).await.as_str()), ("terminal orphaned", "running"));
    gate.notify_one();
    assert_eq!(abort.await.unwrap().unwrap(), AbortTask::Marked);
    assert_eq!(kit.harness().wait_for_task(task).await.unwrap(), Outcome::Orphaned("missing_task".to_owned()));
    assert_eq!(owner.log(), ["t:0", "ignores"]);
});

scenario!(x044_a_marked_task_without_a_definition_is_orphaned_once_scheduling_resumes, async |kit| {
    let owner = kit.owner().await;
    kit.resume = false;
    kit.restart().await;
    let task = kit.add("t", TOP).await;
    kit.tap.crash_behind(marks(task));
    let harness = kit.harness();
    let abort = tokio::spawn(async move { harness.abort_task(task.erase()).await });
    kit.crash().await;
    abort.abort();
    kit.tasks = built_in();
    kit.restart().await;
    let record = kit.task(task.erase()).await;
    assert!(record.abort_requested && matches!(record.state, TaskState::Pending { .. }), "{record:?}");
    kit.harness().resume().await.unwrap();
    kit.comes(task, "terminal orphaned").await;
    assert!(owner.log().is_empty());
});

scenario!(one_thread x046_nothing_starts_below_a_cancelled_owner_before_the_cascade, async |kit| {
    kit.worker.slots = 1;
    let owner = kit.owner().await;
    let a = kit.add("a", TOP).await;
    kit.ran(&owner, &["a:0"]).await;
    // The one slot is taken: it stays ready.
    let x = kit.add("x", TOP.in_conversation(kit.owned(a).await)).await;
    let held = kit.tap.hold(marks(a));
    let harness = kit.harness();
    let mut abort = Box::pin(harness.abort_task(a.erase()));
    queued(&mut abort).await;
    held.arrived().await;
    // In the queue for the line it is behind the mark and before the cascade.
    let invocation = InvocationId::random();
    let reserve = Request::Reserve { task: x.erase(), invocation, worker: WorkerId(invocation), definition: None };
    let mut reserve = Box::pin(kit.call(reserve));
    queued(&mut reserve).await;
    held.release();
    assert_eq!(reserve.await, Answer::Refused(Refusal::NotReady));
    assert_eq!(abort.await.unwrap(), AbortTask::Marked);
    kit.comes(a, "terminal aborted").await;
    assert_eq!(owner.log(), ["a:0", "x:abort", "a:abort"]);
    let reserved = kit.tap.first(|record| record.id == x.erase() && matches!(record.state, TaskState::Running { .. }));
    assert!(reserved > kit.tap.first(|record| record.id == x.erase() && record.abort_requested), "reserved for its abort only");
});
