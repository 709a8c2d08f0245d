//! Section O: the order of agent events around tools, retries and held outcomes.

use picofleet_harness::events::AgentEvent;
use picofleet_harness::kind::{Outcome, TaskOptions};
use picofleet_harness_tests::script::{Log, Script, fault};
use picofleet_harness_tests::{Act, Reply, scenario};
use picofleet_session::SubmissionStatus;

use super::events::{next, note, types, until};

scenario!(s100_a_turn_ends_at_its_hold_before_its_successor_starts, async |kit| {
    let owner = kit.owner().await;
    let first = kit.asking("a", Reply::text("one")).await;
    let (generation, _) = kit.run().await.unwrap();
    kit.add("child", TaskOptions::owned_by(generation)).await;
    let second = kit.say("b").await;
    let mut events = kit.root().await.events().await.unwrap();
    kit.stage.give(Reply::text("two"));
    kit.stage.release();
    let held = until(&mut events, "turn_end").await.pop().unwrap();
    let held = types(&held);
    assert_eq!(held.last().map(String::as_str), Some("turn_start"), "{held:?}");
    assert_eq!(held.iter().filter(|name| *name == "turn_end").count(), 1);
    kit.settled(&first).await;
    kit.settled(&second).await;
    until(&mut events, "turn_end").await;
    owner.tell("child", Act::end(Outcome::Completed(1)));
    kit.root().await.wait_for_idle().await.unwrap();
    note(&kit.root().await).await;
    let rest = until(&mut events, "entry_appended").await;
    assert!(rest.iter().all(|batch| !types(batch).contains(&"turn_end".to_owned())), "it was told at the hold: {rest:?}");
});

scenario!(x091_calls_that_never_run_only_end, async |kit| {
    let mut events = kit.root().await.events().await.unwrap();
    kit.stage.give(Reply::call("c1", "unknown", "{}").and_call("c2", "echo", "{}").and_call("c3", "echo", r#"{"text":"hi"}"#));
    kit.stage.give(Reply::text("x"));
    let a = kit.say("a").await;
    kit.settled(&a).await;
    let batches = until(&mut events, "run_end").await;
    let of = |call: &str| -> Vec<String> {
        let about = |event: &&AgentEvent| match event {
            AgentEvent::ToolExecutionStart { tool_call_id, .. }
            | AgentEvent::ToolExecutionUpdate { tool_call_id, .. }
            | AgentEvent::ToolExecutionEnd { tool_call_id, .. } => tool_call_id == call,
            _ => false,
        };
        types(&batches.iter().flatten().filter(about).cloned().collect::<Vec<_>>())
    };
    assert_eq!(of("c1"), ["tool_execution_end"], "it was not offered");
    assert_eq!(of("c2"), ["tool_execution_end"], "its arguments are invalid");
    assert_eq!(of("c3"), ["tool_execution_start", "tool_execution_end"]);
    let start = batches.iter().flatten().find_map(|event| match event {
        AgentEvent::ToolExecutionStart { args, .. } => Some(args.to_string()),
        _ => None,
    });
    assert_eq!(start.as_deref(), Some(r#"{"text":"hi"}"#));
    let round = batches.iter().map(|batch| types(batch)).find(|batch| batch.contains(&"tool_execution_end".to_owned())).unwrap();
    let end = round.iter().position(|name| name == "tool_execution_end").unwrap();
    assert_eq!(round[end - 1..end + 3], ["message_end", "tool_execution_end", "message_start", "message_end"], "right behind the answer");
});

scenario!(x092_submissions_and_retries_are_told, async |kit| {
    let root = kit.root().await;
    let mut events = root.events().await.unwrap();
    let a = kit.asking("a", Reply::text("x")).await;
    let f = kit.say("f").await;
    kit.stage.give(Reply::error("503 overloaded"));
    kit.stage.give(Reply::text("y"));
    kit.stage.release();
    let mut all: Vec<AgentEvent> = until(&mut events, "auto_retry_start").await.into_iter().flatten().collect();
    let at = picofleet_session::Millis(kit.clock.now().0 + 2_000);
    let start = AgentEvent::AutoRetryStart { attempt: 1, at, error_message: "503 overloaded".into() };
    assert_eq!(all.iter().filter(|event| **event == start).count(), 1, "{:?}", all.last());
    kit.advance(2_000);
    kit.settled(&f).await;
    all.extend(until(&mut events, "run_end").await.into_iter().flatten());
    assert_eq!(all.iter().filter(|event| **event == AgentEvent::AutoRetryEnd { attempt: 1 }).count(), 1);
    let statuses: Vec<_> = all
        .iter()
        .filter_map(|event| if let AgentEvent::Submission { record } = event { Some((record.id, record.status())) } else { None })
        .collect();
    let (placed, queued, done) = (SubmissionStatus::Placed, SubmissionStatus::Queued, SubmissionStatus::Done);
    assert_eq!(statuses, [(a.id(), placed), (f.id(), queued), (a.id(), done), (f.id(), placed), (f.id(), done)]);
});

scenario!(a_task_that_faults_is_told, async |kit| {
    let log = Log::default();
    let mut events = kit.root().await.events().await.unwrap();
    let task = kit.begin(Script::new(&log, |_, _| async { Err(fault("boom")) }), String::new()).await;
    let failed = AgentEvent::TaskFailed { task_id: task.erase(), kind: "script".into(), message: "boom".into() };
    assert_eq!(next(&mut events).await, [failed]);
});
