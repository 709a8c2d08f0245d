//! What an inspection shows (section 2.2), and that it changes nothing.

use picofleet_harness::effects::Fault;
use picofleet_harness::host::HostError;
use picofleet_harness::inspection::{Scheduling, TaskView};
use picofleet_harness::kind::{Next, Outcome, TaskOptions, TxTasks as _};
use picofleet_harness_tests::script::{Log, Other, Script, Versioned, at, end, phase, put};
use picofleet_harness_tests::{Gate, Kit, scenario};
use picofleet_session::{JoinPolicy, Json, Millis, SubmissionStatus, TaskId, TaskStatus};

const FAR: Millis = Millis(i64::MAX >> 11);

/// Sleeps for ever, or ends at once where its input says so.
fn part(log: &Log) -> Other {
    Other::new(log, |task, runtime| async move {
        match task.input.as_str() {
            "ends" => end(&runtime, 1).await,
            _ => put(&runtime, Next::Sleep { checkpoint: at("b"), until: FAR }).await,
        }
    })
}

/// Makes two parts, one of which ends; then it waits for them, ends beside them, or sleeps, as its input says.
fn whole(log: &Log) -> Script {
    let words = log.clone();
    Script::new(log, move |task, runtime| {
        let log = words.clone();
        async move {
            let how = (*task.input).clone();
            if phase(&task.checkpoint) == "b" {
                return end(&runtime, 1).await;
            }
            runtime
                .commit(async |tx, task| {
                    let mut on = Vec::new();
                    for name in ["ends", "sleeps"] {
                        on.push(tx.create_task(&part(&log), name.to_owned(), TaskOptions::owned_by(task.id)).await?.erase());
                    }
                    Ok::<_, Fault>(match how.as_str() {
                        "waits" => Next::Wait { checkpoint: at("b"), on, policy: JoinPolicy::AllSettled },
                        "ends" => Next::Checkpoint(at("b")),
                        _ => Next::Sleep { checkpoint: at("b"), until: FAR },
                    })
                })
                .await
        }
    })
}

/// A task of each way, with its part that sleeps, once everything is where it stays.
async fn made(kit: &mut Kit, log: &Log) -> [(TaskId<Json>, TaskId); 3] {
    kit.replace(part(log)).await;
    kit.replace(whole(log)).await;
    let mut all = Vec::new();
    for (how, status) in [("waits", TaskStatus::Waiting), ("ends", TaskStatus::Completing), ("sleeps", TaskStatus::Sleeping)] {
        let task = kit.create(&whole(log), how.to_owned()).await;
        kit.until("its state", async || {
            let record = kit.task(task.erase()).await;
            assert!(!record.terminal(), "{record:?}");
            record.status() == status
        })
        .await;
        // Its parts have the ids behind it.
        let (ends, sleeps) = (TaskId::new(task.get() + 1).unwrap(), TaskId::new(task.get() + 2).unwrap());
        kit.until("its parts", async || kit.task(ends).await.terminal() && kit.task(sleeps).await.status() == TaskStatus::Sleeping).await;
        all.push((task, sleeps));
    }
    all.try_into().unwrap()
}

/// The tasks of applications with what an inspection says about them.
async fn shown(kit: &Kit) -> (Scheduling, Vec<(TaskId, TaskView)>) {
    let inspection = kit.harness().inspect().await.unwrap();
    let custom = inspection.tasks.into_iter().filter(|task| matches!(task.record.kind.as_str(), "script" | "other"));
    (inspection.scheduling, custom.map(|task| (task.record.id, task.state)).collect())
}

scenario!(s077_an_inspection_shows_every_live_task_and_changes_nothing, async |kit| {
    let log = Log::default();
    let [waits, ends, sleeps] = made(&mut kit, &log).await;
    let placed = kit.busy("placed").await;
    let queued = kit.say("queued").await;
    kit.stop().await;
    kit.resume = false;
    kit.remove::<Script>().await;
    kit.start();
    let missing = kit.create(&whole(&log), String::new()).await;
    let abort = kit.harness().abort_task(sleeps.0.erase()).await.unwrap();
    assert_eq!(abort, picofleet_harness::host::AbortTask::Marked);
    let fresh = kit.create(&part(&log), String::new()).await;

    let (before, ran) = (kit.reader().await.head().await.unwrap(), log.words());
    let sleeping = |task: TaskId| (task, TaskView::Sleeping { until: FAR });
    let blocked = TaskView::Blocked { reason: "missing_task".to_owned(), error: None };
    let expected = |of_missing: TaskView| {
        let tasks = vec![
            (waits.0.erase(), TaskView::Waiting { on: vec![waits.1] }),
            sleeping(waits.1),
            (ends.0.erase(), TaskView::Completing),
            sleeping(ends.1),
            (sleeps.0.erase(), TaskView::Waiting { on: vec![sleeps.1] }),
            sleeping(sleeps.1),
            (missing.erase(), of_missing),
            (fresh.erase(), TaskView::Ready { migrates: false }),
        ];
        (Scheduling::Paused, tasks)
    };
    for _ in 0..2 {
        assert_eq!(shown(&kit).await, expected(blocked.clone()));
    }
    let newer = Versioned::<2>::new(&log, |_, _| async { Ok(()) }).migrates(|script, _, _, _| {
        script.log.push("migrates");
        Ok((String::new(), at("b")))
    });
    kit.replace(newer).await;
    // Until its worker tells of it with the next beat, nobody takes the new version.
    let ready = expected(TaskView::Ready { migrates: true });
    kit.until("the definition's worker", async || shown(&kit).await == ready).await;
    let open: Vec<_> = kit.harness().inspect().await.unwrap().submissions.into_iter().map(|open| (open.id, open.status())).collect();
    assert_eq!(open, [(placed.id(), SubmissionStatus::Placed), (queued.id(), SubmissionStatus::Queued)]);
    assert_eq!(kit.reader().await.head().await.unwrap(), before, "nothing is written");
    assert_eq!(log.words(), ran, "no code runs");
});

scenario!(s077_scheduling_is_shown_as_running_and_closing, async |kit| {
    let (log, gate) = (Log::default(), Gate::new());
    let at_the_gate = gate.clone();
    let stubborn = Script::new(&log, move |_, runtime| {
        let gate = at_the_gate.clone();
        async move {
            gate.pass().await;
            end(&runtime, 1).await
        }
    });
    let id = kit.begin(stubborn, String::new()).await;
    gate.begun().await;
    assert_eq!(shown(&kit).await, (Scheduling::Running, vec![(id.erase(), TaskView::Running)]));
    let harness = kit.harness();
    let closing = kit.closing();
    kit.until("the close", async || harness.inspect().await.unwrap().scheduling == Scheduling::Closing).await;
    assert_eq!(shown(&kit).await, (Scheduling::Closing, vec![(id.erase(), TaskView::Running)]));
    gate.open();
    closing.await.unwrap();
    assert!(matches!(harness.inspect().await, Err(HostError::Unavailable(_))));
    kit.reopen().await;
    gate.open();
    assert_eq!(kit.outcome(id).await, Outcome::Completed(1.into()), "the close wrote no outcome");
});
