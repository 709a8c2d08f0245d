//! What a round costs that has many calls.

use picofleet_harness::tools::ToolResult;
use picofleet_harness_tests::{Backing, Closure, Kit, Reply, Wire};
use picofleet_session::SubmissionStatus;

use super::tools::add;

/// A turn whose answer has so many calls of a tool that does nothing; how often its entries were read from storage.
async fn reads(count: usize) -> usize {
    let mut kit = Kit::new(Backing::Memory, Wire::Plain).await;
    add(&kit, Closure::new("nothing", |_, _| async { Ok(ToolResult::text("done")) })).await;
    let reply = (0..count).fold(Reply::text("calls"), |reply, number| reply.and_call(&format!("c{number}"), "nothing", "{}"));
    kit.stage.give(reply);
    kit.stage.give(Reply::text("x"));
    let said = kit.say("a").await;
    assert_eq!(kit.settled(&said).await.status(), SubmissionStatus::Done);
    let read = kit.disk.reads("EntryRecord");
    kit.stop().await;
    read
}

/// An answer with many calls is long: it is read for its round, and not again for each of its calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_round_reads_its_answer_once() {
    let few = reads(2).await;
    assert_eq!(reads(60).await, few);
}
