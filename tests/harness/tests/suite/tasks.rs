//! Tasks of applications (section 5), through worker and transport: children, scheduling, and the abort of a conversation. Phases, waits,
//! replacement, recovery and aborts have files of their own.

use picofleet_harness::effects::Fault;
use picofleet_harness::inspection::{Scheduling, TaskView};
use picofleet_harness::kind::{Next, Outcome, TaskOptions, TxTasks as _};
use picofleet_harness_tests::script::{Log, Other, Script, at, end, go, hang, phase};
use picofleet_harness_tests::{Kit, scenario};
use picofleet_session::{ConversationOwnership, EntryDraft, JoinPolicy, Json, TaskId, TaskStatus};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Goes on from `a` to `c` and ends.
fn steps(log: &Log) -> Script {
    Script::new(log, |task, runtime| async move {
        match phase(&task.checkpoint).as_str() {
            "a" => go(&runtime, "b").await,
            "b" => go(&runtime, "c").await,
            _ => end(&runtime, 3).await,
        }
    })
}

/// Makes two children, waits for them, and adds up what comes out.
fn joins(log: &Log) -> Other {
    let words = log.clone();
    Other::new(log, move |task, runtime| {
        let log = words.clone();
        async move {
            if let Some(children) = task.checkpoint.get("children") {
                let children: Vec<TaskId<Json>> =
                    children.to().map_err(|error| picofleet_harness_tests::script::fault(&error.to_string()))?;
                let outcomes = runtime.outcomes(&children).await?;
                let sum =
                    outcomes.iter().map(|outcome| if let Outcome::Completed(n) = outcome { n.as_i64().unwrap() } else { 0 }).sum::<i64>();
                return end(&runtime, sum).await;
            }
            runtime
                .commit(async |tx, running| {
                    tx.append_entry(running.conversation, EntryDraft::new("note")).await?;
                    let mut on = Vec::new();
                    for _ in 0..2 {
                        on.push(tx.create_task(&steps(&log), "child".to_owned(), TaskOptions::owned_by(running.id)).await?.erase());
                    }
                    let children = Json::array(on.iter().map(|id| id.get()));
                    let checkpoint = Json::object([("phase", Json::from("join")), ("children", children)]);
                    Ok::<_, Fault>(Next::Wait { checkpoint, on, policy: JoinPolicy::AllSettled })
                })
                .await
        }
    })
}

/// A kit with the code of both that plans nothing yet.
async fn paused(kit: &mut Kit, log: &Log) {
    kit.stop().await;
    kit.resume = false;
    kit.replace(steps(log)).await;
    kit.replace(joins(log)).await;
    kit.start();
}

scenario!(s065_s092_entries_name_their_task_and_children_are_in_its_conversation, async |kit| {
    let log = Log::default();
    kit.replace(steps(&log)).await;
    kit.replace(joins(&log)).await;
    let created: Result<_, BoxError> = kit
        .root()
        .await
        .commit(async |tx| {
            let conversation = tx.create_conversation(ConversationOwnership::Ownerless).await?.id;
            let options = TaskOptions::top_level().in_conversation(conversation);
            Ok((conversation, tx.create_task(&joins(&log), "parent".to_owned(), options).await?))
        })
        .await;
    let (conversation, id) = created.unwrap();
    assert_eq!(kit.outcome(id).await, Outcome::Completed(6.into()));
    let entries = kit.entries(&kit.conversation(conversation).await).await;
    let notes: Vec<_> = entries.iter().filter(|entry| entry.kind == "note").map(|entry| entry.by_task_id).collect();
    assert_eq!(notes, [Some(id.erase())]);
    let children: Vec<TaskId> = kit
        .disk
        .records(id.erase())
        .iter()
        .find_map(|record| match &record.state {
            picofleet_session::TaskState::Waiting { on, .. } => Some(on.clone()),
            _ => None,
        })
        .unwrap();
    assert_eq!(children.len(), 2);
    for child in children {
        let child = kit.task(child).await;
        assert_eq!((child.owner, child.conversation_id), (Some(id.erase()), conversation));
    }
    assert_eq!((log.count("parent:a"), log.count("parent:join"), log.count("child:c")), (1, 1, 2));
});

scenario!(s077_s196_an_inspection_starts_nothing_and_a_wait_does, async |kit| {
    let log = Log::default();
    paused(&mut kit, &log).await;
    let id = kit.create(&steps(&log), String::new()).await;
    let harness = kit.harness();
    for _ in 0..2 {
        let inspection = harness.inspect().await.unwrap();
        assert_eq!(inspection.scheduling, Scheduling::Paused);
        let views: Vec<_> = inspection.tasks.into_iter().map(|task| (task.record.id, task.state)).collect();
        assert_eq!(views, [(id.erase(), TaskView::Ready { migrates: false })]);
    }
    assert_eq!(kit.task(id.erase()).await.status(), TaskStatus::Pending);
    assert!(log.words().is_empty());
    assert_eq!(harness.wait_for_task(id).await.unwrap(), Outcome::Completed(3.into()));
    assert_eq!(harness.inspect().await.unwrap().scheduling, Scheduling::Running);
    assert!(!harness.retry_task(id.erase()).await.unwrap());
});

scenario!(s196_resume_is_idempotent, async |kit| {
    let log = Log::default();
    paused(&mut kit, &log).await;
    let id = kit.create(&joins(&log), String::new()).await;
    kit.harness().resume().await.unwrap();
    kit.harness().resume().await.unwrap();
    kit.root().await.wait_for_idle().await.unwrap();
    assert!(kit.task(id.erase()).await.terminal());
    assert!(kit.harness().inspect().await.unwrap().tasks.is_empty());
});

scenario!(s088_an_abort_of_the_conversation_ends_its_task, async |kit| {
    let log = Log::default();
    let script = Script::new(&log, |_, runtime| async move { hang(&runtime).await }).first(at("only"));
    let id = kit.begin(script, String::new()).await;
    kit.until("the phase", async || log.count("only") == 1).await;
    kit.root().await.abort(false).await.unwrap();
    assert_eq!(kit.outcome(id).await, Outcome::Aborted { reason: None, result: None });
    assert_eq!(log.words(), ["only", "abort"]);
});
