//! Outages between worker and coordinator, and lost answers of reservations.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use picofleet_harness::effects::BEAT;
use picofleet_harness::kinds::{COMPACTION, GENERATION, TOOL};
use picofleet_harness::tools::ToolResult;
use picofleet_harness::wire::Request;
use picofleet_harness_tests::{Backing, Closure, Kit, Reply, Wire, last_code, scenario};
use picofleet_session::{SubmissionStatus, TaskStatus};
use tokio::time::Instant;

use super::compaction_kit::{history, keep, result, summarizing};
use super::tools::{add, message, results};

/// What `protocol.md` 4 says.
const LEASE: Duration = Duration::from_secs(20);
const OUTAGE: Duration = LEASE.saturating_mul(2);

scenario!(a_lost_answer_of_a_reservation_burns_nothing, async |kit| {
    // Of the generation, and of a tool.
    for kind in [GENERATION, TOOL] {
        let tasks = kit.tasks(kind).await.len();
        let before = kit.faults.granted().len();
        let harness = kit.harness();
        let seen = Arc::new(Mutex::new(None));
        let kept = Arc::clone(&seen);
        let wanted = kind == TOOL;
        // The tool's is the second one of the turn.
        let skipped = AtomicBool::new(!wanted);
        kit.faults.lose_answer(move |request| {
            let Request::Reserve { task, .. } = request else { return false };
            let lost = skipped.swap(true, Ordering::SeqCst);
            *kept.lock().unwrap() = lost.then_some(*task);
            lost
        });
        kit.stage.give(Reply::call("c1", "gate", "{}"));
        kit.stage.give(Reply::text("x"));
        let asked = kit.stage.asked().len();
        let a = kit.say("a").await;
        kit.gate.begun().await;
        kit.gate.open();
        assert_eq!(kit.settled(&a).await.status(), SubmissionStatus::Done);
        let task = seen.lock().unwrap().unwrap();
        let granted: Vec<_> = kit.faults.granted()[before..].iter().filter(|(other, _)| *other == task).map(|granted| granted.1).collect();
        assert!(granted.len() == 2 && granted[0] == granted[1], "the same invocation asks again and gets the same: {granted:?}");
        let record = harness.get_task(task).await.unwrap().unwrap();
        assert_eq!((record.kind.as_str(), record.restarts), (kind, 0));
        assert!(kit.tasks(kind).await[tasks..].iter().all(|task| task.restarts == 0));
        let results = kit.entries(&kit.root().await).await;
        let codes: Vec<_> = results.iter().filter(|entry| entry.kind == "pi.tool-result").map(last_code).collect();
        assert!(codes.iter().all(String::is_empty), "nothing was interrupted: {codes:?}");
        assert_eq!(kit.stage.asked().len(), asked + 2);
    }
});

/// A request is answered in the middle of an outage: nothing is asked or reserved again, and the answer is kept.
async fn answered_during_an_outage(wire: Wire) {
    let mut kit = Kit::new(Backing::Memory, wire).await;
    let a = kit.asking("a", Reply::text("x")).await;
    kit.faults.cut();
    tokio::time::sleep(OUTAGE / 2).await;
    kit.stage.release();
    tokio::time::sleep(OUTAGE / 2).await;
    kit.faults.mend();
    let mended = Instant::now();
    assert_eq!(kit.settled(&a).await.status(), SubmissionStatus::Done);
    assert!(mended.elapsed() < LEASE, "it waited for no lease: {:?}", mended.elapsed());
    assert_eq!(kit.said().await, ["pi.user:a", "pi.assistant:x"]);
    assert_eq!((kit.stage.asked().len(), kit.faults.reserved()), (1, 1));
    assert!(kit.tasks(GENERATION).await.iter().all(|task| task.restarts == 0));
    kit.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_two_leases_repeats_no_request_plain() {
    answered_during_an_outage(Wire::Plain).await;
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_two_leases_repeats_no_request_encoded() {
    answered_during_an_outage(Wire::Encoded).await;
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_two_leases_repeats_no_request_for_a_summary() {
    for wire in [Wire::Plain, Wire::Encoded] {
        let mut kit = Kit::new(Backing::Memory, wire).await;
        history(&kit, 3).await;
        keep(&kit, 150).await;
        let asked = kit.stage.asked().len();
        let task = summarizing(&kit, Reply::text("SUMMARY")).await;
        kit.faults.cut();
        tokio::time::sleep(OUTAGE / 2).await;
        kit.stage.release();
        tokio::time::sleep(OUTAGE / 2).await;
        kit.faults.mend();
        assert!(result(&kit, task).await.submission_id.is_some());
        assert_eq!(kit.stage.asked().len(), asked + 1);
        assert!(kit.tasks(COMPACTION).await.iter().all(|task| task.restarts == 0));
        kit.stop().await;
    }
}

/// An outage that is over before a tool would have to stop: what the tool made in it is kept.
#[tokio::test(start_paused = true)]
async fn a_short_outage_costs_a_tool_nothing() {
    for wire in [Wire::Plain, Wire::Encoded] {
        let mut kit = Kit::new(Backing::Memory, wire).await;
        let a = kit.busy("a").await;
        kit.stage.give(Reply::text("x"));
        kit.faults.cut();
        tokio::time::sleep(LEASE / 4).await;
        kit.gate.open();
        tokio::time::sleep(LEASE / 4).await;
        kit.faults.mend();
        assert_eq!(kit.settled(&a).await.status(), SubmissionStatus::Done);
        let tools = kit.tasks(TOOL).await;
        let results = kit.entries(&kit.root().await).await;
        let codes: Vec<_> = results.iter().filter(|entry| entry.kind == "pi.tool-result").map(last_code).collect();
        assert_eq!((codes, kit.stage.asked().len()), (vec![String::new()], 2));
        assert_eq!((tools.len(), tools[0].restarts), (1, 0));
        kit.stop().await;
    }
}

/// What a tool made in the beginning of an outage is said until somebody hears it, however long that takes: its lease may be alive.
async fn settled_during_an_outage(wire: Wire, shows: bool) {
    let mut kit = Kit::new(Backing::Memory, wire).await;
    let gate = kit.gate.clone();
    let tool = Closure::new("shows", move |_, api| {
        let gate = gate.clone();
        async move {
            gate.pass().await;
            if shows {
                // Its commit gets no answer either.
                api.output(b"shown")?;
                tokio::time::sleep(LEASE / 8).await;
            }
            Ok(ToolResult::text("made"))
        }
    });
    add(&kit, tool).await;
    kit.stage.give(Reply::call("c1", "shows", "{}"));
    kit.stage.give(Reply::text("x"));
    let a = kit.say("a").await;
    kit.gate.begun().await;
    kit.faults.cut();
    kit.gate.open();
    tokio::time::sleep(OUTAGE).await;
    assert_eq!(kit.tasks(TOOL).await[0].state.status(), TaskStatus::Running);
    kit.faults.mend();
    assert_eq!(kit.settled(&a).await.status(), SubmissionStatus::Done);
    let results = results(&kit).await;
    assert_eq!(results.len(), 1);
    assert!(message(&results[0]).to_string().contains("made") && last_code(&results[0]).is_empty(), "{results:?}");
    assert_eq!((kit.stage.asked().len(), kit.tasks(TOOL).await[0].restarts), (2, 0));
    kit.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_two_leases_loses_no_result_of_a_tool_that_is_done() {
    for wire in [Wire::Plain, Wire::Encoded] {
        for shows in [false, true] {
            settled_during_an_outage(wire, shows).await;
        }
    }
}

/// How a tool fared that ran when an outage began.
#[derive(Debug, PartialEq)]
struct Fared {
    codes: Vec<String>,
    /// Requests to the model.
    asked: usize,
    /// Restarts of the tool's task and of the others.
    restarts: (u32, u32),
    /// Reservations of the tool's task.
    reserved: usize,
}

/// A tool runs when the outage begins: it is stopped; once its lease is over it is interrupted, or runs again where that is safe.
async fn tool_in_an_outage(wire: Wire, tool: &str) -> Fared {
    let mut kit = Kit::new(Backing::Memory, wire).await;
    kit.stage.give(Reply::call("c1", tool, "{}"));
    kit.stage.give(Reply::text("x"));
    let a = kit.say("a").await;
    kit.gate.begun().await;
    kit.faults.cut();
    tokio::time::sleep(OUTAGE).await;
    // Nobody was heard, so that nothing expires.
    let task = kit.tasks(TOOL).await.remove(0);
    assert_eq!((task.state.status(), task.restarts), (TaskStatus::Running, 0));
    kit.faults.mend();
    let mended = Instant::now();
    kit.gate.open();
    assert_eq!(kit.settled(&a).await.status(), SubmissionStatus::Done);
    // The next beat does not name it, and its lease is long over.
    assert!(mended.elapsed() <= 2 * BEAT, "{:?}", mended.elapsed());
    let task = kit.task(task.id).await;
    let generations = kit.tasks(GENERATION).await;
    let entries = kit.entries(&kit.root().await).await;
    let reserved = kit.faults.seen().iter().filter(|seen| matches!(seen, Request::Reserve { task: of, .. } if *of == task.id)).count();
    let fared = Fared {
        codes: entries.iter().filter(|entry| entry.kind == "pi.tool-result").map(last_code).collect(),
        asked: kit.stage.asked().len(),
        restarts: (task.restarts, generations.iter().map(|task| task.restarts).sum()),
        reserved,
    };
    kit.stop().await;
    fared
}

#[tokio::test(start_paused = true)]
async fn an_unsafe_tool_in_an_outage_is_interrupted() {
    for wire in [Wire::Plain, Wire::Encoded] {
        let fared = tool_in_an_outage(wire, "gate").await;
        assert_eq!(fared, Fared { codes: vec!["interrupted".to_owned()], asked: 2, restarts: (1, 0), reserved: 2 });
    }
}

#[tokio::test(start_paused = true)]
async fn a_safe_tool_in_an_outage_runs_again() {
    for wire in [Wire::Plain, Wire::Encoded] {
        let fared = tool_in_an_outage(wire, "safe_gate").await;
        assert_eq!(fared, Fared { codes: vec![String::new()], asked: 2, restarts: (1, 0), reserved: 2 });
    }
}
