//! Ctrl-C and SIGKILL while a tool works.

use rustix::process::Signal;

use crate::place::{Ended, Place, RUNS, Running, alive};

/// A command that says its number, writes down that it ran, ends with the signal that asks it to as `trap` says, and otherwise never.
fn works(trap: &str) -> String {
    format!(
        r#"
[[turns]]
when = {{ turn = 0 }}
[[turns.blocks]]
type = "toolCall"
name = "bash"
arguments = {{ command = "{trap} echo once >> count; echo process:$$:; echo a-line-of-output; while :; do sleep 1000 & wait $!; done" }}
[[turns]]
blocks = [{{ type = "text", chunks = ["the end"] }}]
[[turns]]
when = {{}}
blocks = [{{ type = "text", chunks = ["the end"] }}]
"#
    )
}

/// A run whose tool works, and the number of its process.
async fn working(place: &Place) -> (Running, i32) {
    let mut run = place.start(&["run", "go"]);
    let shown = run.until("\na-line-of-output").await;
    let pid = shown.split("\nprocess:").nth(1).unwrap().split(':').next().unwrap().parse().unwrap();
    assert!(alive(pid));
    (run, pid)
}

#[tokio::test]
async fn ctrl_c_aborts_for_good() {
    let _alone = RUNS.write().await;
    let place = Place::scripted(&works(""));
    let (run, pid) = working(&place).await;
    run.send(Signal::INT);
    let ended = run.end().await;
    assert!(ended.err.contains("aborted by Ctrl-C"), "{ended:?}");
    assert_eq!(ended.out.matches("\na-line-of-output").count(), 1, "{ended:?}");
    assert!(ended.err.contains("[aborting]\n"), "{ended:?}");
    ended.with(130);
    assert!(!alive(pid));
    // Nothing is left to do.
    let next = place.run(&["run", "--continue"]).await.with(0);
    assert!(!next.contains("a-line-of-output"), "{next}");
    assert_eq!(place.read("workspace/count"), "once\n");
}

/// Twice Ctrl-C while a tool works that takes no notice of being asked to end. Gives whether the tool was there still when the run had ended.
async fn leave(place: &Place) -> (Ended, i32, bool) {
    let (mut run, pid) = working(place).await;
    run.send(Signal::INT);
    run.until_remark("[the abort is stored; Ctrl-C again leaves at once]").await;
    run.send(Signal::INT);
    let ended = run.end().await;
    (ended, pid, alive(pid))
}

#[tokio::test]
async fn a_second_ctrl_c_leaves_at_once_and_the_next_start_cleans_up() {
    let _alone = RUNS.write().await;
    let (mut place, mut tries) = (Place::scripted(&works("trap '' TERM;")), 0);
    let (mut ended, mut pid, mut first) = leave(&place).await;
    // A process that waits for the tool ends behind it, every time. One that does not may be too slow on a busy machine, where the tool is
    // killed before the second Ctrl-C arrives.
    while !first && tries < 3 {
        tries += 1;
        place = Place::scripted(&works("trap '' TERM;"));
        (ended, pid, first) = leave(&place).await;
    }
    assert!(first, "it ended behind the tool");
    let text = ended.with(130);
    let command = text.split_once("left; the abort is completed with: picofleet ").unwrap().1.trim();
    let arguments: Vec<&str> = command.split(' ').collect();
    assert_eq!((arguments.len(), &arguments[..2]), (3, &["run", "--session"][..]), "{text}");
    // The abort was stored before; what is left of it is done now.
    let next = place.run(&arguments).await;
    assert!(!alive(pid), "{next:?}");
    assert_eq!(place.read("workspace/count"), "once\n");
    assert!(!next.out.contains("the end"), "{next:?}");
}

#[tokio::test]
async fn a_command_of_a_killed_process_is_ended_at_the_next_start() {
    let _alone = RUNS.write().await;
    let place = Place::scripted(&works(""));
    let (run, pid) = working(&place).await;
    run.kill().await;
    assert!(alive(pid), "nobody but the next start ends it");
    let next = place.run(&["run", "--continue"]).await.with(0);
    assert!(!alive(pid), "{next}");
    // A command is not run again by itself: the model is told, and goes on.
    assert_eq!(place.read("workspace/count"), "once\n");
    assert!(next.contains("the end") && next.contains("goes on with its unfinished work"), "{next}");
}

/// Work that goes on without a prompt has no submission that could tell how it ended.
#[tokio::test]
async fn ctrl_c_aborts_unfinished_work_that_goes_on() {
    let _runs = RUNS.read().await;
    let place = Place::scripted(
        "[[turns]]\nblocks = [{ type = \"text\", chunks = [\"it begins\"] }, { type = \"delay\", ms = 3600000 }, { type = \"text\", chunks = [\"it ends\"] }]\n",
    );
    let mut run = place.start(&["run", "go"]);
    run.until("it begins").await;
    run.kill().await;
    let mut run = place.start(&["run", "--continue"]);
    run.until("it begins").await;
    run.send(Signal::INT);
    run.until_remark("goes on with its unfinished work: the answer was cut off behind \"it begins\", and comes again").await;
    let text = run.end().await.with(130);
    assert!(text.contains("aborted by Ctrl-C") && !text.contains("it ends"), "{text}");
    // It does not come back.
    let next = place.run(&["run", "--continue"]).await.with(0);
    assert!(next.contains("nothing was left to do"), "{next}");
    assert!(!next.contains("it begins"), "{next}");
}

#[tokio::test]
async fn commands_of_a_process_that_runs_are_left_alone() {
    let _alone = RUNS.write().await;
    let place = Place::scripted(&works(""));
    let (run, pid) = working(&place).await;
    let other = Place::scripted("[[turns]]\nblocks = [{ type = \"text\", chunks = [\"hello\"] }]\n");
    other.run(&["run", "hi"]).await.with(0);
    assert!(alive(pid));
    run.send(Signal::INT);
    run.end().await.with(130);
}
