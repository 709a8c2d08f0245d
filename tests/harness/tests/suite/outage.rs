//! Outages between worker and coordinator, and lost answers of reservations.

use std::time::Duration;

use picofleet_harness::wire::Request;
use picofleet_harness_tests::{Backing, Kit, Reply, Wire, last_code, scenario};
use picofleet_session::SubmissionStatus;

/// Two leases.
const OUTAGE: Duration = Duration::from_secs(40);

scenario!(a_lost_answer_of_a_reservation_burns_nothing, async |kit| {
    kit.faults.lose_answer(|request| matches!(request, Request::Reserve { .. }));
    let a = kit.turn("a", Reply::text("x")).await;
    assert_eq!(a.status(), SubmissionStatus::Done);
    let reserved: Vec<_> = kit
        .faults
        .seen()
        .into_iter()
        .filter_map(|request| if let Request::Reserve { task, invocation, .. } = request { Some((task, invocation)) } else { None })
        .collect();
    assert_eq!(reserved.len(), 2, "{reserved:?}");
    assert_eq!(reserved[0], reserved[1], "the same invocation asks again");
    assert_eq!(kit.task(reserved[0].0).await.restarts, 0);
    assert_eq!(kit.stage.asked().len(), 1);
});

/// A request is answered in the middle of an outage: nothing is asked again, and the answer is kept.
async fn answered_during_an_outage(wire: Wire) {
    let mut kit = Kit::new(Backing::Memory, wire).await;
    let a = kit.asking("a", Reply::text("x")).await;
    kit.faults.cut();
    tokio::time::sleep(OUTAGE / 2).await;
    kit.stage.release();
    tokio::time::sleep(OUTAGE / 2).await;
    kit.faults.mend();
    assert_eq!(kit.settled(&a).await.status(), SubmissionStatus::Done);
    assert_eq!(kit.said().await, ["pi.user:a", "pi.assistant:x"]);
    assert_eq!(kit.stage.asked().len(), 1);
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

/// A tool runs when the outage begins: it is stopped; once its lease is over it is interrupted, or runs again where that is safe.
async fn tool_in_an_outage(wire: Wire, tool: &str) -> (Vec<String>, usize) {
    let mut kit = Kit::new(Backing::Memory, wire).await;
    kit.stage.give(Reply::call("c1", tool, "{}"));
    kit.stage.give(Reply::text("x"));
    let a = kit.say("a").await;
    kit.gate.begun().await;
    kit.faults.cut();
    tokio::time::sleep(OUTAGE).await;
    kit.faults.mend();
    kit.gate.open();
    assert_eq!(kit.settled(&a).await.status(), SubmissionStatus::Done);
    let entries = kit.entries(&kit.root().await).await;
    let codes = entries.iter().filter(|entry| entry.kind == "pi.tool-result").map(last_code).collect();
    let asked = kit.stage.asked().len();
    kit.stop().await;
    (codes, asked)
}

#[tokio::test(start_paused = true)]
async fn an_unsafe_tool_in_an_outage_is_interrupted() {
    for wire in [Wire::Plain, Wire::Encoded] {
        assert_eq!(tool_in_an_outage(wire, "gate").await, (vec!["interrupted".to_owned()], 2));
    }
}

#[tokio::test(start_paused = true)]
async fn a_safe_tool_in_an_outage_runs_again() {
    for wire in [Wire::Plain, Wire::Encoded] {
        assert_eq!(tool_in_an_outage(wire, "safe_gate").await, (vec![String::new()], 2));
    }
}
