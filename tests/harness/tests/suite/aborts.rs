//! Aborts of tasks (section 5.4): marks, abort handlers, orphans, and kills in between.

use picofleet_harness::host::AbortTask;
use picofleet_harness::inspection::Scheduling;
use picofleet_harness::kind::{Next, Outcome, TaskOptions, TxTasks as _};
use picofleet_harness_tests::script::{Log, Other, Script, Versioned, aborted, at, end, fault, go, hang};
use picofleet_harness_tests::{Gate, Kit, child, scenario, task_write};
use picofleet_session::storage::{DocumentQuery, TaskQuery, Write};
use picofleet_session::{
    DocDefinition, DocToken, DocumentScope, InTask, JoinPolicy, Json, Point, TaskId, TaskOutcome, TaskState, TaskStatus, every,
};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A task that runs its first phase, where it waits at the gate, whatever it is told.
async fn begun(kit: &mut Kit, script: Script, gate: &Gate) -> TaskId<Json> {
    let id = kit.begin(script, String::new()).await;
    gate.begun().await;
    id
}

/// Asks a task to stop while it is busy, and lets it go once it is marked.
async fn marked(kit: &Kit, id: TaskId<Json>, gate: &Gate) {
    let harness = kit.harness();
    let abort = tokio::spawn(async move { harness.abort_task(id.erase()).await });
    kit.until("the mark", async || kit.task(id.erase()).await.abort_requested).await;
    gate.open();
    assert_eq!(abort.await.unwrap().unwrap(), AbortTask::Marked);
}

scenario!(s079_progress_beside_the_mark_starts_no_further_phase, async |kit| {
    let (log, gate) = (Log::default(), Gate::new());
    let in_one = gate.clone();
    let script = Script::new(&log, move |_, runtime| {
        let gate = in_one.clone();
        async move {
            go(&runtime, "two").await?;
            gate.pass().await;
            Ok(())
        }
    });
    let script = script.first(at("one"));
    let id = begun(&mut kit, script, &gate).await;
    marked(&kit, id, &gate).await;
    assert!(matches!(kit.outcome(id).await, Outcome::Aborted { .. }));
    assert_eq!(log.words(), ["one", "abort"]);
    let aborts = kit.disk.records(id.erase()).into_iter().find(|record| record.abort_requested && record.status() == TaskStatus::Running);
    assert_eq!(aborts.unwrap().state, TaskState::Running { checkpoint: at("two") }, "its progress is kept");
});

scenario!(s080_an_abort_handler_without_an_outcome_faults, async |kit| {
    for (throws, text) in [(false, "without an outcome"), (true, "boom")] {
        let log = Log::default();
        let script = Script::new(&log, |_, runtime| async move { hang(&runtime).await });
        let script = script.aborts(move |_, _| async move { if throws { Err(fault("boom")) } else { Ok(()) } });
        let id = kit.begin(script, String::new()).await;
        kit.until("the phase", async || log.count("a") == 1).await;
        assert_eq!(kit.harness().abort_task(id.erase()).await.unwrap(), AbortTask::Marked);
        let outcome = kit.outcome(id).await;
        assert!(matches!(&outcome, Outcome::Faulted(error) if error.message.contains(text)), "{outcome:?}");
        assert_eq!(log.words(), ["a", "abort"]);
    }
});

/// Where the processes of the matrix are killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kill {
    /// The commit of the mark is in storage.
    MarkNotStored,
    /// The mark is stored and the run has not ended.
    RunNotJoined,
    /// The abort handler runs.
    InTheHandler,
    /// The handler's outcome is in storage.
    OutcomeNotStored,
    /// The outcome is stored.
    OutcomeStored,
}

/// Waits in its phase at one gate, whatever it is told, and in its abort handler at another.
fn stubborn(log: &Log, run: &Gate, abort: &Gate) -> Script {
    let (run, abort) = (run.clone(), abort.clone());
    Script::new(log, move |_, runtime| {
        let run = run.clone();
        async move {
            run.pass().await;
            end(&runtime, 1).await
        }
    })
    .aborts(move |_, runtime| {
        let abort = abort.clone();
        async move {
            abort.pass().await;
            aborted(&runtime).await
        }
    })
}

/// The life of a process up to the place where it is killed.
async fn until_killed(kill: Kill) {
    let Some(directory) = child::directory() else { return };
    let mut kit = Kit::in_directory(&directory, None).await;
    let (log, run, abort) = (Log::default(), Gate::new(), Gate::new());
    let id = begun(&mut kit, stubborn(&log, &run, &abort), &run).await;
    let harness = kit.harness();
    let aborts = async move {
        // It ends with the process.
        let _ = harness.abort_task(id.erase()).await;
    };
    let marks = (kill == Kill::MarkNotStored).then(|| kit.disk.hold_write(task_write(|task| task.abort_requested)));
    let ends = (kill == Kill::OutcomeNotStored).then(|| kit.disk.hold_write(task_write(|task| task.terminal())));
    tokio::spawn(aborts);
    if let Some(marks) = marks {
        marks.arrived().await;
        child::say("waits");
        std::future::pending::<()>().await;
    }
    kit.until("the mark", async || kit.task(id.erase()).await.abort_requested).await;
    if kill != Kill::RunNotJoined {
        run.open();
        abort.begun().await;
    }
    if matches!(kill, Kill::OutcomeNotStored | Kill::OutcomeStored) {
        abort.open();
        // Held to the end of the process.
        match &ends {
            Some(ends) => ends.arrived().await,
            None => kit.until("the end", async || kit.task(id.erase()).await.terminal()).await,
        }
    }
    child::say("waits");
    std::future::pending::<()>().await;
}

/// What runs after the process was killed, with the task's status before that and its end.
async fn after(entry: &str) -> (Vec<String>, TaskStatus, bool, Outcome<Json>) {
    let directory = TempDir::new().unwrap();
    let mut process = child::Process::spawn(&format!("aborts::{entry}"), directory.path());
    process.expect("waits");
    process.kill();
    let path = directory.path().to_owned();
    let mut kit = Kit::at_rest(&path, Some(directory)).await;
    kit.resume = false;
    let (log, gate) = (Log::default(), Gate::new());
    gate.open();
    kit.replace(stubborn(&log, &gate, &gate)).await;
    kit.start();
    let scripts = kit.reader().await.scan_tasks(TaskQuery::default(), 10, None).await.unwrap().items;
    let record = kit.task(scripts.into_iter().find(|task| task.kind == "script").unwrap().id).await;
    assert!(log.words().is_empty());
    let outcome = kit.outcome(record.id.assume()).await;
    kit.harness().wait_for_idle().await.unwrap();
    let seen = (log.words(), record.status(), record.abort_requested, outcome);
    kit.stop().await;
    seen
}

/// A child for each place.
macro_rules! children {
    ($($name:ident => $kill:ident;)*) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            until_killed(Kill::$kill).await;
        })*
    };
}

children! {
    child_with_a_mark_in_storage => MarkNotStored;
    child_with_a_marked_run => RunNotJoined;
    child_in_its_abort_handler => InTheHandler;
    child_with_an_outcome_in_storage => OutcomeNotStored;
    child_with_a_stored_outcome => OutcomeStored;
}

const ABORTED: Outcome<Json> = Outcome::Aborted { reason: None, result: None };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s081_a_kill_before_the_mark_is_stored_resumes_the_run() {
    let (words, status, marked, outcome) = after("child_with_a_mark_in_storage").await;
    assert_eq!((words, status, marked), (vec!["a".to_owned()], TaskStatus::Pending, false));
    assert_eq!(outcome, Outcome::Completed(1.into()));
}

/// Only the abort handler runs.
async fn only_aborts(entry: &str) {
    let (words, status, marked, outcome) = after(entry).await;
    assert_eq!((words, status, marked, outcome), (vec!["abort".to_owned()], TaskStatus::Pending, true, ABORTED));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s081_a_kill_before_the_run_is_joined_runs_only_the_abort_handler() {
    only_aborts("child_with_a_marked_run").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s081_a_kill_in_the_abort_handler_runs_it_again() {
    only_aborts("child_in_its_abort_handler").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s081_a_kill_while_the_outcome_is_in_storage_runs_the_abort_handler_again() {
    only_aborts("child_with_an_outcome_in_storage").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s081_a_kill_behind_the_outcome_runs_nothing() {
    let (words, status, marked, outcome) = after("child_with_a_stored_outcome").await;
    assert_eq!((words, status, marked, outcome), (Vec::new(), TaskStatus::Terminal, true, ABORTED));
}

/// A document of a task.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
struct Note {
    text: String,
}

static NOTE: DocToken<Note, InTask> =
    DocToken::new("test.note", 1, || DocDefinition { initial: Note::default, migrate: None, checkpoint_when: every::<50> });

/// The live documents of a task.
async fn documents(kit: &Kit, task: TaskId<Json>) -> usize {
    let query = DocumentQuery { scope: DocumentScope::Task { id: task.erase() }, at: Point::Current, kind: None };
    kit.reader().await.scan_documents(query, 10, None).await.unwrap().items.len()
}

/// A paused kit, so that nothing but the calls of the test writes.
async fn pause(kit: &mut Kit) {
    kit.stop().await;
    kit.resume = false;
    kit.start();
}

scenario!(s082_a_blocked_task_is_orphaned_in_the_marking_commit, async |kit| {
    let log = Log::default();
    let never = |log: &Log| Versioned::<2>::new(log, |_, runtime| async move { end(&runtime, 0).await });
    pause(&mut kit).await;
    for reason in ["missing_task", "task_too_old", "migration_failed"] {
        let id = match reason {
            "migration_failed" => kit.create(&Script::new(&log, |_, runtime| async move { end(&runtime, 0).await }), String::new()).await,
            _ => kit.create(&never(&log), String::new()).await,
        };
        match reason {
            "missing_task" => {}
            "task_too_old" => kit.replace(Script::new(&log, |_, runtime| async move { end(&runtime, 0).await })).await,
            _ => kit.replace(never(&log)).await,
        }
        let written: Result<(), BoxError> = kit
            .root()
            .await
            .commit(async |tx| {
                tx.doc(&NOTE, id.erase()).await?.edit(|note| note.text = "kept".to_owned())?;
                Ok(())
            })
            .await;
        written.unwrap();
        assert_eq!(documents(&kit, id).await, 1);
        let before = kit.reader().await.head().await.unwrap().seq;
        assert_eq!(kit.harness().abort_task(id.erase()).await.unwrap(), AbortTask::Marked);
        assert_eq!(kit.reader().await.head().await.unwrap().seq.0, before.0 + 1, "one commit");
        let record = kit.task(id.erase()).await;
        let orphaned = TaskState::Terminal { outcome: TaskOutcome::Orphaned { reason: reason.to_owned() } };
        assert_eq!((record.state, record.abort_requested), (orphaned, true));
        assert_eq!(documents(&kit, id).await, 0, "its documents are retired");
        assert_eq!(kit.harness().abort_task(id.erase()).await.unwrap(), AbortTask::Terminal);
        assert_eq!(kit.harness().inspect().await.unwrap().scheduling, Scheduling::Paused);
    }
    assert!(log.words().is_empty());
});

/// Makes a child of the other kind and waits for it.
fn owner(log: &Log) -> Script {
    let words = log.clone();
    Script::new(log, move |_, runtime| {
        let log = words.clone();
        async move {
            runtime
                .commit(async |tx, task| {
                    let child = tx.create_task(&hanging(&log), "child".to_owned(), TaskOptions::owned_by(task.id)).await?;
                    let on = vec![child.erase()];
                    Ok::<_, picofleet_harness::effects::Fault>(Next::Wait { checkpoint: at("b"), on, policy: JoinPolicy::AllSettled })
                })
                .await
        }
    })
}

fn hanging(log: &Log) -> Other {
    Other::new(log, |_, runtime| async move { hang(&runtime).await })
}

scenario!(s082_a_blocked_task_with_live_owned_work_is_orphaned_once_that_has_drained, async |kit| {
    let log = Log::default();
    kit.replace(hanging(&log)).await;
    kit.replace(owner(&log)).await;
    let id = kit.create(&owner(&log), "owner".to_owned()).await;
    kit.until("the child", async || log.count("child:a") == 1).await;
    kit.remove::<Script>().await;
    assert_eq!(kit.harness().abort_task(id.erase()).await.unwrap(), AbortTask::Marked);
    assert_eq!(kit.outcome(id).await, Outcome::Orphaned("missing_task".to_owned()));
    assert_eq!(log.words(), ["owner:a", "child:a", "child:abort"]);
    let ended = |write| match write {
        Write::Task(record) if record.terminal() => Some((record.kind.clone(), record.state.clone())),
        _ => None,
    };
    let ends: Vec<_> = kit.disk.writes().into_iter().filter_map(ended).collect();
    assert_eq!(ends[0], ("other".to_owned(), TaskState::Terminal { outcome: TaskOutcome::Aborted { reason: None, result: None } }));
    assert_eq!(ends[1].0, "script");
    let marks = kit.disk.records(id.erase()).into_iter().find(|record| record.abort_requested).unwrap();
    assert_eq!(marks.status(), TaskStatus::Waiting, "it was only marked");
});
