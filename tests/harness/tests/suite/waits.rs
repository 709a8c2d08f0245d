//! Waits and sleeps of tasks (section 5.5).

use picofleet_harness::effects::Fault;
use picofleet_harness::inspection::TaskView;
use picofleet_harness::kind::{Next, Outcome, Running, TaskOptions, TxTasks as _};
use picofleet_harness::runtime::TaskRuntime;
use picofleet_harness_tests::script::{Log, Other, Script, Versioned, aborted, at, end, go, hang, phase, put};
use picofleet_harness_tests::{Kit, scenario};
use picofleet_session::{ConversationOwnership, JoinPolicy, Json, Millis, TaskId, TaskState, TaskStatus};

const POLICIES: [JoinPolicy; 2] = [JoinPolicy::AllSettled, JoinPolicy::FailFast];

fn ids(value: &Json) -> Vec<TaskId> {
    let ids = value.as_array().into_iter().flat_map(|ids| ids.iter().filter_map(|id| id.as_i64()).collect::<Vec<_>>());
    ids.map(|id| TaskId::new(id).unwrap()).collect()
}

fn wait<const OTHER: bool>(on: Vec<TaskId>, policy: JoinPolicy, phase: &str) -> Next<Versioned<1, OTHER>> {
    Next::Wait { checkpoint: at(phase), on, policy }
}

fn other(log: &Log) -> Other {
    Other::new(log, |_, runtime| async move { end(&runtime, 1).await })
}

async fn faulted(kit: &Kit, id: TaskId<Json>) -> String {
    match kit.outcome(id).await {
        Outcome::Faulted(error) => error.message,
        outcome => panic!("{outcome:?}"),
    }
}

scenario!(s075_a_wait_for_nothing_resumes, async |kit| {
    for policy in POLICIES {
        let log = Log::default();
        let script = Script::new(&log, move |task, runtime| async move {
            if phase(&task.checkpoint) == "a" {
                return put(&runtime, wait(Vec::new(), policy, "resumed")).await;
            }
            end(&runtime, 1).await
        });
        let id = kit.begin(script, String::new()).await;
        assert_eq!(kit.outcome(id).await, Outcome::Completed(1.into()));
        assert_eq!(log.words(), ["a", "resumed"]);
        let waited = kit.disk.records(id.erase()).into_iter().filter(|record| record.status() == TaskStatus::Waiting);
        assert_eq!(waited.count(), 1);
    }
});

/// Makes three children in one phase, runs another, and waits for subsets of them one after another.
async fn parent(log: Log, task: Running<Script>, runtime: TaskRuntime<Script>) -> Result<(), Fault> {
    let at = |phase: &str, children: Json| Json::object([("phase", Json::from(phase)), ("children", children)]);
    let children = task.checkpoint.get("children").cloned().unwrap_or(Json::null());
    let made = ids(&children);
    match phase(&task.checkpoint).as_str() {
        "a" => {
            runtime
                .commit(async |tx, task| {
                    let mut made = Vec::new();
                    for name in ["x", "y", "z"] {
                        let child = tx.create_task(&other(&log), name.to_owned(), TaskOptions::owned_by(task.id)).await?;
                        made.push(Json::from(child.get()));
                    }
                    Ok::<_, Fault>(Next::Checkpoint(at("b", Json::array(made))))
                })
                .await
        }
        "b" => put(&runtime, Next::Checkpoint(at("c", children))).await,
        "c" => {
            let on = vec![made[2]];
            put(&runtime, Next::Wait { checkpoint: at("d", children), on, policy: JoinPolicy::FailFast }).await
        }
        "d" => {
            assert_eq!(runtime.outcomes::<Json>(&[made[2].assume()]).await?, [Outcome::Completed(1.into())]);
            let on = made[..2].to_vec();
            put(&runtime, Next::Wait { checkpoint: at("e", children), on, policy: JoinPolicy::AllSettled }).await
        }
        _ => {
            let typed: Vec<TaskId<Json>> = made.iter().map(|id| id.assume()).collect();
            let outcomes = runtime.outcomes(&typed).await?;
            end(&runtime, i64::try_from(outcomes.len()).unwrap()).await
        }
    }
}

scenario!(s075_a_task_runs_on_beside_its_children_and_waits_for_subsets, async |kit| {
    let log = Log::default();
    let words = log.clone();
    let script = Script::new(&log, move |task, runtime| parent(words.clone(), task, runtime));
    let id = kit.create(&script, "p".to_owned()).await;
    kit.replace(other(&log)).await;
    kit.replace(script).await;
    assert_eq!(kit.outcome(id).await, Outcome::Completed(3.into()));
    let words = log.words();
    let own: Vec<_> = words.iter().filter(|word| word.starts_with("p:")).cloned().collect();
    assert_eq!(own, ["p:a", "p:b", "p:c", "p:d", "p:e"]);
    for child in ["x:a", "y:a", "z:a"] {
        assert_eq!(log.count(child), 1);
    }
    let records = kit.disk.records(id.erase());
    let waits: Vec<usize> =
        records.iter().filter_map(|record| if let TaskState::Waiting { on, .. } = &record.state { Some(on.len()) } else { None }).collect();
    assert_eq!(waits, [1, 2]);
});

/// Waits for the tasks that its input names, with the policy that it names; `self` is the task itself, and `+1` the one behind it.
fn waits<const OTHER: bool>(log: &Log) -> Versioned<1, OTHER> {
    Versioned::new(log, |task, runtime| async move {
        if phase(&task.checkpoint) != "a" {
            return end(&runtime, 1).await;
        }
        let (policy, on) = task.input.split_once(' ').unwrap();
        let policy = if policy == "failFast" { JoinPolicy::FailFast } else { JoinPolicy::AllSettled };
        let id = |name: &str| {
            let base = if name.starts_with(['+', '-', 's']) { task.id.get() } else { 0 };
            TaskId::new(base + name.parse().unwrap_or(0)).unwrap()
        };
        put(&runtime, wait(on.split(',').map(id).collect(), policy, "b")).await
    })
}

scenario!(s076_waits_that_could_never_end_are_refused, async |kit| {
    let log = Log::default();
    let hangs = Other::new(&log, |_, runtime| async move { hang(&runtime).await });
    let stranger = kit.create(&hangs, String::new()).await;
    let owner = kit.begin(hangs, String::new()).await;
    // A child of the owner, and a task of a conversation that the child owns.
    let (child, below) = kit
        .root()
        .await
        .commit(async |tx| {
            let child = tx.create_task(&waits::<false>(&log), format!("allSettled {owner}"), TaskOptions::owned_by(owner)).await?;
            let owned = tx.create_conversation(ConversationOwnership::Task { task_id: owner.erase() }).await?.id;
            let options = TaskOptions::top_level().in_conversation(owned);
            let below = tx.create_task(&waits::<false>(&log), format!("allSettled {owner}"), options).await?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>((child, below))
        })
        .await
        .unwrap();
    let unknown = kit.create(&waits::<false>(&log), "allSettled 9999".to_owned()).await;
    let itself = kit.create(&waits::<false>(&log), "allSettled self".to_owned()).await;
    let foreign = kit.create(&waits::<false>(&log), format!("failFast {stranger}")).await;
    kit.replace(waits::<false>(&log)).await;
    let cases = [
        (unknown, "does not exist"),
        (itself, "cannot wait for itself"),
        (child, "on its owner chain"),
        (below, "on its owner chain"),
        (foreign, "does not own"),
    ];
    for (task, text) in cases {
        let why = faulted(&kit, task).await;
        assert!(why.contains(text), "{why}");
        assert!(kit.disk.records(task.erase()).iter().all(|record| record.status() != TaskStatus::Waiting), "nothing of it was stored");
    }
    assert_eq!(log.count(&format!("failFast {stranger}:b")), 0);
    kit.root().await.abort(false).await.unwrap();
});

scenario!(x034_a_wait_that_closes_a_cycle_is_refused_and_a_diamond_is_not, async |kit| {
    let log = Log::default();
    // The first waits for two, which wait for the last one; that is to close the cycle, and its code comes last.
    let created = kit
        .root()
        .await
        .commit(async |tx| {
            let mut created = Vec::new();
            for on in ["+1,+2", "+2", "+1"] {
                created.push(tx.create_task(&waits::<false>(&log), format!("allSettled {on}"), TaskOptions::top_level()).await?);
            }
            created.push(tx.create_task(&waits::<true>(&log), "allSettled -3".to_owned(), TaskOptions::top_level()).await?);
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(created)
        })
        .await
        .unwrap();
    kit.replace(waits::<false>(&log)).await;
    for task in &created[..3] {
        kit.until("the wait", async || kit.task(task.erase()).await.status() == TaskStatus::Waiting).await;
    }
    kit.replace(waits::<true>(&log)).await;
    let (first, last) = (created[0], created[3]);
    let why = faulted(&kit, last).await;
    assert!(why.contains("wait cycle") && why.contains(&format!("{last} -> {first}")), "{why}");
    // The diamond ends: the two resume, and then the first.
    for task in &created[..3] {
        assert_eq!(kit.outcome(*task).await, Outcome::Completed(1.into()));
    }
});

scenario!(x034_a_background_task_may_wait_for_the_owner_of_its_conversation, async |kit| {
    let log = Log::default();
    let gate = kit.gate.clone();
    let owner = Other::new(&log, move |_, runtime| {
        let gate = gate.clone();
        async move {
            gate.pass().await;
            end(&runtime, 1).await
        }
    });
    let task = kit.begin(owner, String::new()).await;
    kit.replace(waits::<false>(&log)).await;
    kit.gate.begun().await;
    let background = kit
        .root()
        .await
        .commit(async |tx| {
            let owned = tx.create_conversation(ConversationOwnership::Task { task_id: task.erase() }).await?.id;
            let options = TaskOptions::top_level().in_conversation(owned).background();
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(
                tx.create_task(&waits::<false>(&log), format!("allSettled {task}"), options).await?,
            )
        })
        .await
        .unwrap();
    kit.until("the wait", async || kit.view(background.erase()).await == TaskView::Waiting { on: vec![task.erase()] }).await;
    kit.gate.open();
    assert_eq!(kit.outcome(background).await, Outcome::Completed(1.into()));
    assert!(kit.task(task.erase()).await.terminal());
});

/// Sleeps until the time that its input names.
fn sleeps(log: &Log) -> Script {
    Script::new(log, |task, runtime| async move {
        if phase(&task.checkpoint) == "a" {
            let until = Millis(task.input.parse().unwrap());
            return put(&runtime, Next::Sleep { checkpoint: at("due"), until }).await;
        }
        end(&runtime, 1).await
    })
}

/// Runs another task to its end: whatever could have been planned before, was.
async fn passes(kit: &Kit, log: &Log) {
    let id = kit.create(&other(log), String::new()).await;
    kit.outcome(id).await;
}

scenario!(x037_a_sleeper_resumes_at_its_time_also_after_a_reopen, async |kit| {
    let (log, others) = (Log::default(), Log::default());
    let until = kit.clock.now().0 + 5_000;
    kit.replace(other(&others)).await;
    kit.replace(sleeps(&log)).await;
    let id = kit.create(&sleeps(&log), until.to_string()).await;
    kit.until("the sleep", async || kit.view(id.erase()).await == TaskView::Sleeping { until: Millis(until) }).await;
    let due = format!("{until}:due");
    for reopened in [false, true] {
        if reopened {
            kit.reopen().await;
        }
        kit.advance(2_499);
        kit.harness().resume().await.unwrap();
        passes(&kit, &others).await;
        assert_eq!(kit.view(id.erase()).await, TaskView::Sleeping { until: Millis(until) });
        assert_eq!(log.count(&due), 0);
        assert_eq!(kit.task(id.erase()).await.state, TaskState::Sleeping { checkpoint: at("due"), until: Millis(until) });
    }
    kit.clock.set(Millis(until));
    assert_eq!(kit.outcome(id).await, Outcome::Completed(1.into()));
    assert_eq!(log.words(), [format!("{until}:a"), due]);
});

scenario!(x037_an_abort_wakes_a_sleeper_for_its_abort_handler, async |kit| {
    let log = Log::default();
    kit.replace(sleeps(&log)).await;
    let until = kit.clock.now().0 + 5_000;
    let id = kit.create(&sleeps(&log), until.to_string()).await;
    kit.until("the sleep", async || kit.task(id.erase()).await.status() == TaskStatus::Sleeping).await;
    kit.harness().abort_task(id.erase()).await.unwrap();
    assert!(matches!(kit.outcome(id).await, Outcome::Aborted { .. }));
    assert_eq!(log.words(), [format!("{until}:a"), format!("{until}:abort")]);
});

scenario!(x037_a_time_that_is_none_and_a_sleep_of_an_abort_handler_are_refused, async |kit| {
    let log = Log::default();
    kit.replace(sleeps(&log)).await;
    let id = kit.create(&sleeps(&log), "-1".to_owned()).await;
    let why = faulted(&kit, id).await;
    assert!(why.contains("cannot sleep until -1"), "{why}");

    let sleeper = Other::new(&log, |_, runtime| async move { hang(&runtime).await })
        .aborts(|_, runtime| async move { put(&runtime, Next::Sleep { checkpoint: at("b"), until: Millis(1) }).await });
    let id = kit.begin(sleeper, "s".to_owned()).await;
    kit.until("the phase", async || log.count("s:a") == 1).await;
    kit.harness().abort_task(id.erase()).await.unwrap();
    let why = faulted(&kit, id).await;
    assert!(why.contains("cannot sleep"), "{why}");
});

// A wait that is refused ends nothing that was made before it.
scenario!(an_abort_ends_a_wait_early, async |kit| {
    let log = Log::default();
    let hangs = Other::new(&log, |_, runtime| async move { hang(&runtime).await });
    let awaited = kit.begin(hangs, "other".to_owned()).await;
    let script = Script::new(&log, move |task, runtime| async move {
        match phase(&task.checkpoint).as_str() {
            "a" => go(&runtime, "b").await,
            "b" => put(&runtime, wait(vec![awaited.erase()], JoinPolicy::AllSettled, "c")).await,
            _ => end(&runtime, 1).await,
        }
    })
    .aborts(|_, runtime| async move { aborted(&runtime).await });
    let id = kit.begin(script, String::new()).await;
    kit.until("the wait", async || kit.task(id.erase()).await.status() == TaskStatus::Waiting).await;
    kit.harness().abort_task(id.erase()).await.unwrap();
    assert!(matches!(kit.outcome(id).await, Outcome::Aborted { .. }));
    assert!(!kit.task(awaited.erase()).await.abort_requested, "it is somebody else's");
});
