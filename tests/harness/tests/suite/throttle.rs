//! The adaptive pause between two commits of running output (section 7.3), on a paused clock.

use std::time::Duration;

use picofleet_harness::tools::ToolResult;
use picofleet_harness_tests::{Backing, Closure, Kit, Reply, Wire};
use picofleet_session::storage::{Commit, Write};
use picofleet_session::{DocumentContent, Json, SubmissionStatus};
use tokio::time::Instant;

use super::tools::{add, results, shown};

/// How many lines the tool puts out at once, one a millisecond.
const LINES: usize = 40;

/// A line of one kibibyte.
fn line(number: usize) -> String {
    format!("{number:01023}\n")
}

fn burst() -> String {
    (0..LINES).map(line).collect()
}

/// Whether a commit shows running output and nothing else. A model's usage has an `output`, too.
fn shows_output(commit: &Commit) -> bool {
    let changes = |write: &Write| match write {
        Write::DocumentChange { content: DocumentContent::Delta { ops, .. }, .. } => ops.iter().any(|op| {
            let op = format!("{op:?}");
            op.contains("tools") && op.contains("output")
        }),
        _ => false,
    };
    commit.writes.len() == 1 && changes(&commit.writes[0])
}

/// What is shown of the only call.
async fn output(kit: &Kit) -> String {
    let slots = kit.document("pi.live").await.get("tools").cloned();
    let slot = slots.as_ref().and_then(Json::as_array).and_then(|slots| slots.iter().next().cloned());
    slot.and_then(|slot| Some(slot.get("output")?.as_str()?.into_owned())).unwrap_or_default()
}

async fn a_burst_makes_few_commits(wire: Wire) {
    let mut kit = Kit::new(Backing::Memory, wire).await;
    let gate = kit.gate.clone();
    let noisy = Closure::new("noisy", move |_, api| {
        let gate = gate.clone();
        async move {
            for number in 0..LINES {
                api.output(line(number).as_bytes())?;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            gate.pass().await;
            api.output(b"more\n")?;
            gate.pass().await;
            api.output(b"last\n")?;
            Ok(ToolResult::default())
        }
    });
    add(&kit, noisy).await;
    kit.stage.give(Reply::call("c1", "noisy", "{}"));
    kit.stage.give(Reply::text("done"));
    drop(kit.disk.written());
    let go = kit.say("go").await;
    kit.gate.begun().await;

    // The first line is shown at once, the others together a tenth of a second later.
    kit.until("the whole burst", async || output(&kit).await == burst()).await;
    let seen = Instant::now();
    let commits = kit.disk.written().iter().filter(|commit| shows_output(commit)).count();
    assert_eq!(commits, 2, "{LINES} outputs");

    // Nearly 40 KiB at 100 KiB a second: the next output waits for longer than the shortest pause, and comes then.
    kit.gate.open();
    kit.gate.begun().await;
    kit.until("the newest output", async || output(&kit).await == burst() + "more\n").await;
    let waited = seen.elapsed();
    assert!((Duration::from_millis(370)..Duration::from_millis(420)).contains(&waited), "the newest output is shown after {waited:?}");

    // What is put out right before the end needs no commit of its own.
    kit.gate.open();
    assert_eq!(kit.settled(&go).await.status(), SubmissionStatus::Done);
    assert_eq!(shown(&results(&kit).await[0]), burst() + "more\nlast\n");
    let commits = kit.disk.written().iter().filter(|commit| shows_output(commit)).count();
    assert_eq!(commits, 1, "two outputs, the last of them in the result");
    kit.stop().await;
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn a_burst_of_output_makes_few_commits_and_the_newest_is_shown_plain() {
    a_burst_makes_few_commits(Wire::Plain).await;
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn a_burst_of_output_makes_few_commits_and_the_newest_is_shown_encoded() {
    a_burst_makes_few_commits(Wire::Encoded).await;
}
