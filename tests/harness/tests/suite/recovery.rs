//! What a killed process and a failing storage leave behind (sections 5.1 and 5.4, `design.md` 6). A child is killed with SIGKILL where
//! the death of a process is the case.

use picofleet_harness::inspection::TaskView;
use picofleet_harness::kind::Outcome;
use picofleet_harness::line::{LineReport, RESTART_LIMIT};
use picofleet_harness_tests::script::{Log, Script, at, end, fault, go, hang, phase};
use picofleet_harness_tests::{Gate, Kit, child, scenario, task_write};
use picofleet_session::{Json, TaskId, TaskOutcome, TaskState, TaskStatus};
use tempfile::TempDir;

/// The name of a child's task.
const FIRST: &str = "first";

/// The task that a child made, in a kit that starts with its code.
async fn of_child(kit: &mut Kit, script: Script) -> TaskId<Json> {
    kit.replace(script).await;
    kit.start();
    let tasks = kit.harness().inspect().await.unwrap().tasks;
    let tasks: Vec<_> = tasks.into_iter().filter(|task| task.record.kind == "script").collect();
    assert_eq!(tasks.len(), 1);
    tasks[0].record.id.assume()
}

/// Runs the child until it waits, kills it, and gives a kit over its store that will not go on by itself.
async fn killed(entry: &str) -> Kit {
    let directory = TempDir::new().unwrap();
    let mut child = child::Process::spawn(entry, directory.path());
    child.expect("waits");
    child.kill();
    let path = directory.path().to_owned();
    let mut kit = Kit::at_rest(&path, Some(directory)).await;
    kit.resume = false;
    kit
}

/// Remembers something, goes on to its effect, and waits there.
fn effect(log: &Log, gate: &Gate) -> Script {
    let (words, gate) = (log.clone(), gate.clone());
    Script::new(log, move |task, runtime| {
        let (log, gate) = (words.clone(), gate.clone());
        async move {
            if phase(&task.checkpoint) == "a" {
                runtime.memo("made", &task.restarts).await?;
                return go(&runtime, "effect").await;
            }
            log.push(format!("made {:?}, restarts {}", runtime.memoized::<u32>("made").await?, task.restarts));
            gate.pass().await;
            end(&runtime, 7).await
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_inside_an_effect() {
    let Some(directory) = child::directory() else { return };
    let mut kit = Kit::in_directory(&directory, None).await;
    let (log, gate) = (Log::default(), Gate::new());
    kit.replace(effect(&log, &gate)).await;
    kit.create(&effect(&log, &gate), FIRST.to_owned()).await;
    gate.begun().await;
    child::say("waits");
    std::future::pending::<()>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s068_a_kill_in_an_effect_leaves_the_task_pending_and_runs_the_phase_again() {
    let mut kit = killed("recovery::child_inside_an_effect").await;
    let (log, gate) = (Log::default(), Gate::new());
    let id = of_child(&mut kit, effect(&log, &gate)).await;
    let record = kit.task(id.erase()).await;
    assert_eq!(record.state, TaskState::Pending { checkpoint: at("effect") });
    assert_eq!(record.memos, Some(Json::object([("made", 0)])));
    assert!(log.words().is_empty());
    gate.open();
    assert_eq!(kit.outcome(id).await, Outcome::Completed(7.into()));
    assert_eq!(log.words(), ["first:effect", "made Some(0), restarts 1"]);
    let receipt = kit.task(id.erase()).await;
    kit.reopen().await;
    kit.harness().wait_for_idle().await.unwrap();
    assert_eq!(kit.task(id.erase()).await, receipt);
    assert_eq!(log.words().len(), 2, "nothing runs again");
    kit.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_inside_a_reservation() {
    let Some(directory) = child::directory() else { return };
    let mut kit = Kit::in_directory(&directory, None).await;
    let log = Log::default();
    kit.replace(effect(&log, &Gate::new())).await;
    let hold = kit.disk.hold_write(task_write(|task| task.status() == TaskStatus::Running));
    kit.create(&effect(&log, &Gate::new()), FIRST.to_owned()).await;
    hold.arrived().await;
    assert!(log.words().is_empty());
    child::say("waits");
    std::future::pending::<()>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s069_a_kill_while_the_reservation_is_in_storage_leaves_the_task_pending() {
    let mut kit = killed("recovery::child_inside_a_reservation").await;
    let (log, gate) = (Log::default(), Gate::new());
    let id = of_child(&mut kit, effect(&log, &gate)).await;
    let record = kit.task(id.erase()).await;
    assert_eq!((record.state, record.memos, record.started_at), (TaskState::Pending { checkpoint: at("a") }, None, None));
    gate.open();
    assert_eq!(kit.outcome(id).await, Outcome::Completed(7.into()));
    assert_eq!(log.words(), ["first:a", "first:effect", "made Some(0), restarts 0"]);
    kit.stop().await;
}

/// Throws where nothing was thrown before.
fn throws_once(log: &Log) -> Script {
    let words = log.clone();
    Script::new(log, move |_, runtime| {
        let log = words.clone();
        async move { if log.count("a") == 1 { Err(fault("boom")) } else { end(&runtime, 1).await } }
    })
}

fn ended_by_the_scheduler(state: &TaskState) -> bool {
    matches!(state, TaskState::Terminal { outcome: TaskOutcome::Faulted { .. } | TaskOutcome::Orphaned { .. } })
}

scenario!(x035_a_fault_that_storage_refuses_is_not_written_and_the_phase_runs_again, async |kit| {
    let log = Log::default();
    kit.disk.refuse(task_write(|task| ended_by_the_scheduler(&task.state)));
    kit.replace(throws_once(&log)).await;
    let id = kit.create(&throws_once(&log), String::new()).await;
    assert_eq!(kit.outcome(id).await, Outcome::Completed(1.into()));
    assert_eq!(log.words(), ["a", "a"]);
    assert_eq!(kit.task(id.erase()).await.restarts, 0);
});

scenario!(x035_a_fault_whose_storage_fails_is_not_written_and_a_reopen_runs_the_task_once, async |kit| {
    let log = Log::default();
    kit.replace(throws_once(&log)).await;
    let hold = kit.disk.hold_write(task_write(|task| ended_by_the_scheduler(&task.state)));
    let id = kit.create(&throws_once(&log), String::new()).await;
    hold.arrived().await;
    kit.kill().await;
    hold.lose();
    kit.reopen().await;
    assert_eq!(kit.outcome(id).await, Outcome::Completed(1.into()));
    assert_eq!(log.words(), ["a", "a"]);
    let written = kit.disk.records(id.erase()).into_iter().filter(|record| ended_by_the_scheduler(&record.state)).count();
    assert_eq!(written, 1, "only the one that was lost");
});

scenario!(x035_an_orphaning_whose_storage_fails_leaves_the_task_as_it_was, async |kit| {
    let log = Log::default();
    let id = kit.create(&Script::new(&log, |_, runtime| async move { end(&runtime, 1).await }), String::new()).await;
    let hold = kit.disk.hold_write(task_write(|task| ended_by_the_scheduler(&task.state)));
    let harness = kit.harness();
    let abort = tokio::spawn(async move { harness.abort_task(id.erase()).await });
    hold.arrived().await;
    kit.kill().await;
    hold.lose();
    abort.abort();
    kit.reopen().await;
    let record = kit.task(id.erase()).await;
    assert_eq!((record.state, record.abort_requested), (TaskState::Pending { checkpoint: at("a") }, false));
    kit.replace(Script::new(&log, |_, runtime| async move { end(&runtime, 1).await })).await;
    assert_eq!(kit.outcome(id).await, Outcome::Completed(1.into()));
    assert_eq!(log.words(), ["a"], "it runs once");
});

/// Waits in `a` at the gate, goes on to `b`, and hangs there.
fn waits_and_hangs(log: &Log, gate: &Gate) -> Script {
    let gate = gate.clone();
    Script::new(log, move |task, runtime| {
        let gate = gate.clone();
        async move {
            if phase(&task.checkpoint) == "b" {
                return hang(&runtime).await;
            }
            tokio::select! {
                () = gate.pass() => go(&runtime, "b").await,
                () = runtime.cancelled().cancelled() => Ok(()),
            }
        }
    })
}

fn parked() -> TaskView {
    TaskView::Blocked { reason: "restart_limit".to_owned(), error: None }
}

async fn views(kit: &Kit) -> Vec<TaskView> {
    kit.harness().inspect().await.unwrap().tasks.into_iter().map(|task| task.state).collect()
}

scenario!(x038_five_cut_offs_park_a_task_until_it_is_retried_or_aborted, async |kit| {
    let (log, gate) = (Log::default(), Gate::new());
    kit.replace(waits_and_hangs(&log, &gate)).await;
    let script = waits_and_hangs(&log, &gate);
    let (retried, stopped) = (kit.create(&script, "r".to_owned()).await, kit.create(&script, "s".to_owned()).await);
    for _ in 0..RESTART_LIMIT {
        gate.begun().await;
        gate.begun().await;
        kit.kill().await;
        kit.reopen().await;
    }
    kit.until("both are parked", async || views(&kit).await == [parked(), parked()]).await;
    kit.until("both are reported", async || kit.reported().len() == 2).await;
    assert!(
        [retried, stopped].iter().all(|task| kit.reported().contains(&format!("{:?}", LineReport::RestartLimit { task: task.erase() })))
    );
    assert_eq!((log.count("r:a"), log.count("s:a")), (5, 5));
    // It stays so, also over a reopen, and is not reported again.
    kit.reopen().await;
    kit.harness().resume().await.unwrap();
    assert_eq!(views(&kit).await, [parked(), parked()]);
    assert_eq!(kit.reported().len(), 2);

    assert!(kit.harness().retry_task(retried.erase()).await.unwrap());
    gate.begun().await;
    assert_eq!((log.count("r:a"), kit.task(retried.erase()).await.restarts), (6, 0));
    assert!(!kit.harness().retry_task(retried.erase()).await.unwrap(), "it is not parked any more");
    kit.harness().abort_task(stopped.erase()).await.unwrap();
    assert!(matches!(kit.outcome(stopped).await, Outcome::Aborted { .. }));
    assert_eq!((log.count("s:a"), log.count("s:abort")), (5, 1));
});

scenario!(x038_progress_resets_the_count_and_an_orderly_close_counts_nothing, async |kit| {
    let (log, gate) = (Log::default(), Gate::new());
    kit.replace(waits_and_hangs(&log, &gate)).await;
    let id = kit.create(&waits_and_hangs(&log, &gate), String::new()).await;
    for restarts in 0..RESTART_LIMIT {
        gate.begun().await;
        assert_eq!(kit.task(id.erase()).await.restarts, restarts);
        if restarts < RESTART_LIMIT - 1 {
            kit.kill().await;
            kit.reopen().await;
        }
    }
    gate.open();
    kit.until("progress", async || log.count("b") == 1).await;
    assert_eq!(kit.task(id.erase()).await.restarts, 0);
    for closed in 0..RESTART_LIMIT + 1 {
        kit.reopen().await;
        kit.until("another run", async || log.count("b") == usize::try_from(closed).unwrap() + 2).await;
        assert_eq!(kit.task(id.erase()).await.restarts, 0);
    }
    kit.kill().await;
    kit.reopen().await;
    kit.until("another run", async || log.count("b") == usize::try_from(RESTART_LIMIT).unwrap() + 3).await;
    assert_eq!(kit.task(id.erase()).await.restarts, 1);
    assert_eq!(kit.reported(), [""; 0]);
});
