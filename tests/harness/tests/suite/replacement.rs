//! Definitions that are missing, older, newer or replaced (section 5.4).

use picofleet_harness::inspection::TaskView;
use picofleet_harness::kind::Outcome;
use picofleet_harness::line::LineReport;
use picofleet_harness::wire::{Answer, HostCall, Request};
use picofleet_harness_tests::script::{Log, Script, Versioned, at, end, go, phase};
use picofleet_harness_tests::{Gate, Kit, scenario};
use picofleet_session::storage::Write;
use picofleet_session::{Json, MigrateError, TaskState, TaskStatus};

/// Goes from `a` on to `d` and ends; waits at the gate in each phase, and writes its end down.
fn walks<const V: u32>(name: &'static str, log: &Log, gate: &Gate) -> Versioned<V> {
    let (words, gate) = (log.clone(), gate.clone());
    Versioned::new(log, move |task, runtime| {
        let (log, gate) = (words.clone(), gate.clone());
        async move {
            let at = phase(&task.checkpoint);
            log.push(format!("{name} begins {at}"));
            gate.pass().await;
            let next = match at.as_str() {
                "a" => "b",
                "b" => "c",
                "c" => "d",
                "d" => "e",
                "e" => "f",
                "f" => "g",
                _ => return end(&runtime, name).await,
            };
            runtime.memo("began with", &name.to_owned()).await?;
            go(&runtime, next).await?;
            log.push(format!("{name} ends {at}"));
            Ok(())
        }
    })
}

/// Ends at once.
fn ends<const V: u32>(log: &Log) -> Versioned<V> {
    Versioned::new(log, |_, runtime| async move { end(&runtime, i64::from(V)).await })
}

fn blocked(reason: &str) -> TaskView {
    TaskView::Blocked { reason: reason.to_owned(), error: None }
}

/// Whether nothing counts as unfinished, asked without patience.
async fn idle(kit: &Kit) -> Answer {
    kit.call(Request::Host(Box::new(HostCall::WaitIdle { conversation: None, timeout_ms: 1 }))).await
}

scenario!(s070_a_task_without_a_definition_waits_for_one, async |kit| {
    let log = Log::default();
    let id = kit.create(&ends::<1>(&log), String::new()).await;
    kit.reopen().await;
    kit.harness().resume().await.unwrap();
    let before = kit.task(id.erase()).await;
    assert_eq!(before.state, TaskState::Pending { checkpoint: at("a") });
    assert_eq!(kit.view(id.erase()).await, blocked("missing_task"));
    assert_eq!(idle(&kit).await, Answer::Value(false.into()));
    assert_eq!(kit.task(id.erase()).await, before, "the record stays as it is");
    assert!(log.words().is_empty());
    kit.replace(ends::<1>(&log)).await;
    kit.harness().wait_for_idle().await.unwrap();
    assert_eq!(kit.outcome(id).await, Outcome::Completed(1.into()));
    assert_eq!(log.words(), ["a"]);
});

scenario!(x029_a_task_of_a_newer_version_waits_for_a_fitting_definition, async |kit| {
    let log = Log::default();
    let id = kit.create(&ends::<2>(&log), String::new()).await;
    kit.replace(ends::<1>(&log)).await;
    assert_eq!(kit.view(id.erase()).await, blocked("task_too_old"));
    assert_eq!(idle(&kit).await, Answer::Value(false.into()));
    kit.reopen().await;
    assert_eq!(kit.view(id.erase()).await, blocked("task_too_old"));
    assert!(log.words().is_empty());
    kit.replace(ends::<2>(&log)).await;
    assert_eq!(kit.outcome(id).await, Outcome::Completed(2.into()));
});

scenario!(s071_a_migration_lands_with_the_reservation, async |kit| {
    let log = Log::default();
    let id = kit.create(&ends::<1>(&log), "old".to_owned()).await;
    let newer = ends::<2>(&log).migrates(|script, from, input, checkpoint| {
        script.log.push(format!("from {from}: {input} {checkpoint}"));
        Ok(("new".to_owned(), at("z")))
    });
    kit.replace(newer).await;
    assert_eq!(kit.outcome(id).await, Outcome::Completed(2.into()));
    assert_eq!(log.words(), [r#"from 1: "old" {"phase":"a"}"#, "new:z"]);
    let records = kit.disk.records(id.erase());
    let states: Vec<_> = records.iter().map(|record| (record.version, record.input.clone(), record.state.clone())).collect();
    assert_eq!(states[0], (1, "old".into(), TaskState::Pending { checkpoint: at("a") }));
    assert_eq!(states[1], (2, "new".into(), TaskState::Running { checkpoint: at("z") }), "one commit");
});

scenario!(a_failed_migration_is_reported_once_and_tried_again_with_another_definition, async |kit| {
    let log = Log::default();
    let id = kit.create(&ends::<1>(&log), String::new()).await;
    let failing = |script: &Versioned<2>, _, _, _| {
        script.log.push("tried");
        Err(MigrateError("no way".to_owned()))
    };
    kit.replace(ends::<2>(&log).migrates(failing)).await;
    kit.until("the report", async || !kit.reported().is_empty()).await;
    let error = Some("no way".to_owned());
    assert_eq!(kit.view(id.erase()).await, TaskView::Blocked { reason: "migration_failed".to_owned(), error });
    kit.replace(ends::<2>(&log).migrates(|_, _, _, _| Ok((String::new(), at("z"))))).await;
    assert_eq!(kit.outcome(id).await, Outcome::Completed(2.into()));
    assert_eq!(log.words(), ["tried", "z"]);
    assert_eq!(kit.reported(), [format!("{:?}", LineReport::MigrationFailed { task: id.erase(), error: "no way".to_owned() })]);
});

scenario!(s073_a_replaced_definition_takes_the_task_over_at_the_next_boundary, async |kit| {
    let (log, gate) = (Log::default(), Gate::new());
    kit.replace(walks::<1>("old", &log, &gate)).await;
    let id = kit.create(&walks::<1>("old", &log, &gate), String::new()).await;
    gate.begun().await;
    kit.replace(walks::<1>("new", &log, &gate).build("2")).await;
    gate.open();
    for _ in 1..7 {
        gate.begun().await;
        gate.open();
    }
    assert_eq!(kit.outcome(id).await, Outcome::Completed("new".into()));
    assert_eq!(log.words()[..6], ["a", "old begins a", "old ends a", "b", "new begins b", "new ends b"]);
    assert_eq!(log.count("old begins a"), 1);

    let handed: Vec<_> = kit.disk.records(id.erase()).into_iter().filter(|record| record.status() == TaskStatus::Pending).collect();
    assert_eq!(handed.len(), 2, "created and handed over");
    assert_eq!(handed[1].state, TaskState::Pending { checkpoint: at("b") });
    assert_eq!(handed[1].memos, Some(Json::object([("began with", "old")])));
    assert_eq!((handed[1].restarts, handed[1].abort_requested), (0, false));
    assert_eq!(kit.task(id.erase()).await.restarts, 0);
    let writes = kit.disk.writes();
    let rows = writes.iter().filter_map(|write| if let Write::Invocation(row) = write { Some(row) } else { None });
    let reserved = rows.filter(|row| row.task_id == id.erase() && row.number == 0).count();
    assert_eq!(reserved, 2, "a fresh invocation");
    assert_eq!(kit.reported(), [""; 0]);
});

scenario!(s074_a_replacement_that_cannot_take_the_task_leaves_it_with_the_old_code, async |kit| {
    let (log, gate) = (Log::default(), Gate::new());
    kit.replace(walks::<2>("old", &log, &gate)).await;
    let id = kit.create(&walks::<2>("old", &log, &gate), String::new()).await;
    // Two boundaries under each that does not fit.
    gate.begun().await;
    for unfit in 0..3 {
        match unfit {
            0 => kit.replace(walks::<1>("older", &log, &gate)).await,
            1 => kit.replace(walks::<3>("newer", &log, &gate)).await,
            _ => kit.remove::<Versioned<3>>().await,
        }
        for _ in 0..2 {
            gate.open();
            gate.begun().await;
        }
    }
    let report = |current: Option<u32>| {
        let current = current.map(|version| (version, String::new()));
        format!("{:?}", LineReport::NotHandedOver { task: id.erase(), current })
    };
    assert_eq!(kit.reported(), [report(Some(1)), report(Some(3)), report(None)]);
    assert!(log.words().iter().all(|word| !word.contains("er begins")), "{:?}", log.words());
    assert_eq!(kit.task(id.erase()).await.state, TaskState::Running { checkpoint: at("g") });
    gate.open();
    assert_eq!(kit.outcome(id).await, Outcome::Completed("old".into()));
    assert_eq!(log.words().iter().filter(|word| word.starts_with("old begins")).count(), 7);
});

scenario!(s074_a_newer_definition_that_migrates_takes_the_task_over, async |kit| {
    let (log, gate) = (Log::default(), Gate::new());
    kit.replace(walks::<2>("old", &log, &gate)).await;
    let id = kit.create(&walks::<2>("old", &log, &gate), String::new()).await;
    gate.begun().await;
    kit.replace(ends::<3>(&log).migrates(|_, _, _, _| Ok((String::new(), at("z"))))).await;
    gate.open();
    assert_eq!(kit.outcome(id).await, Outcome::Completed(3.into()));
    assert_eq!(log.words(), ["a", "old begins a", "old ends a", "z"]);
    assert_eq!(kit.reported(), [""; 0]);
});

// An ordinary task is not in the way of a script that the other kind names.
scenario!(a_blocked_task_holds_nobody_up, async |kit| {
    let log = Log::default();
    let stuck = kit.create(&ends::<1>(&log), "stuck".to_owned()).await;
    let other = picofleet_harness_tests::script::Other::new(&log, |_, runtime| async move { end(&runtime, 1).await });
    let free = kit.begin(other, "free".to_owned()).await;
    assert_eq!(kit.outcome(free).await, Outcome::Completed(1.into()));
    assert_eq!(kit.view(stuck.erase()).await, blocked("missing_task"));
    kit.replace(Script::new(&log, |_, runtime| async move { end(&runtime, 2).await })).await;
    assert_eq!(kit.outcome(stuck).await, Outcome::Completed(2.into()));
});
