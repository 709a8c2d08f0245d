//! Every example as somebody runs it: its output, and the same output behind a kill in its middle.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test panics where it can not go on")]

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

/// The longest that a program may take. It only ends a test that can't succeed.
const PATIENCE: Duration = Duration::from_secs(120);

fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stderr(Stdio::inherit()).kill_on_drop(true);
    command
}

/// What a program prints, to its orderly end.
async fn output(program: &str, arguments: &[&str]) -> String {
    let ended = tokio::time::timeout(PATIENCE, command(program, arguments).output()).await.expect("the program ends").unwrap();
    let text = String::from_utf8(ended.stdout).unwrap();
    assert!(ended.status.success(), "{:?}: {text}", ended.status);
    text
}

/// Starts a program, and kills it with SIGKILL once it holds at a point.
async fn kill(program: &str, folder: &Path, point: &str) {
    let mut child = command(program, &[folder.to_str().unwrap(), "--hold", point]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let held = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            if line == format!("holding at: {point}") {
                return;
            }
        }
        panic!("the program ended before it was killed");
    };
    tokio::time::timeout(PATIENCE, held).await.expect("the program gets there");
    child.kill().await.unwrap();
}

/// What a program prints on the folder of one that was killed at a point.
async fn behind_a_kill(program: &str, point: &str) -> (String, TempDir) {
    let folder = TempDir::new().unwrap();
    kill(program, folder.path(), point).await;
    (output(program, &[folder.path().to_str().unwrap()]).await, folder)
}

/// Otherwise it would run to its end, and whoever waits for the point would wait in vain.
#[tokio::test]
async fn a_point_that_an_example_does_not_have_is_refused() {
    for (program, known) in [(env!("CARGO_BIN_EXE_custom_tool"), "rate"), (env!("CARGO_BIN_EXE_embedding"), "no point")] {
        let mut command = command(program, &["--hold", "rat"]);
        let ended = tokio::time::timeout(PATIENCE, command.stderr(Stdio::piped()).output()).await.expect("the program ends").unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        assert!(!ended.status.success() && ended.stdout.is_empty(), "{said}");
        assert!(said.contains(&format!("there is no point \"rat\"; this example holds at: {known}")), "{said}");
    }
}

#[tokio::test]
async fn embedding() {
    let text = "\
A new session in a SQLite file:
  user:   Where shall we meet?
  model:  Oslo is a fine place for it.
  repeated: the same submission: true
The engine is closed. Another one opens the file, and the conversation goes on:
  the file has 1 session, and it is ours: true
  user:   Where shall we meet?
  model:  Oslo is a fine place for it.
  user:   Where, again?
  model:  As I said: Oslo.
";
    assert_eq!(output(env!("CARGO_BIN_EXE_embedding"), &[]).await, text);
}

/// The transcript of the tool example, whose first rate is this, with what the tool remarks.
fn converted(rate: u32, remark: &str) -> String {
    format!(
        "  user:   What are 1,000 euros in NOK?
  model:  I convert. [calls convert]
  convert: asking for the rate of NOK 1000 EUR are {} NOK at {rate}{remark}
  model:  [calls convert]
  convert: asking for the rate of XXX <harness> [error] no rate for XXX </harness>
  model:  [calls convert]
  convert: <harness> [error] Validation failed for tool \"convert\"
",
        rate * 1000
    )
}

#[tokio::test]
async fn custom_tool() {
    let program = env!("CARGO_BIN_EXE_custom_tool");
    let text = output(program, &[]).await;
    assert!(text.starts_with(converted(11, "").trim_end()), "{text}");
    // The rerun of the call asks for a rate, gets another one, and uses the one that it kept.
    let (text, _folder) = behind_a_kill(program, "rate").await;
    assert!(text.starts_with(converted(11, " <harness> [info] the rate is an earlier one </harness>").trim_end()), "{text}");
}

const CHECKOUT: &str = "\
An order that four cards pay:
  paid [completed, completed, completed, completed]
An order with an expired card among four:
  failed: expired was declined: it has expired [aborted, failed, aborted, aborted]
An order that the bank never confirms, until the shop aborts it:
  aborted [aborted, aborted]
What the bank did:
  books: 4 charged, 0 refunded
  late: 3 charged, 3 refunded
  slow: 2 charged, 2 refunded
";

#[tokio::test]
async fn checkout() {
    assert_eq!(output(env!("CARGO_BIN_EXE_checkout"), &[]).await, CHECKOUT);
}

#[tokio::test]
async fn a_checkout_that_is_killed_charges_and_refunds_no_card_twice() {
    for point in ["charge late/visa", "refund late/visa"] {
        let (text, folder) = behind_a_kill(env!("CARGO_BIN_EXE_checkout"), point).await;
        assert_eq!(text, CHECKOUT, "killed at {point}");
        let log = std::fs::read_to_string(folder.path().join("bank.log")).unwrap();
        let mut lines: Vec<&str> = log.lines().collect();
        let all = lines.len();
        lines.sort_unstable();
        lines.dedup();
        assert_eq!(lines.len(), all, "killed at {point}: {log}");
    }
}

const SUBAGENTS: &str = "\
The conversation:
  user:   Ask a colleague what six times seven is.
  model:  [calls ask]
  ask:    42
  model:  A colleague says: 42.
  user:   Let the scout find a room, please.
  model:  [calls tell]
  tell:   scout was told; the answer comes later
  model:  The scout is on its way.
  user:   scout: there is one at the Polar
  model:  The scout has found a room at the Polar.
  user:   The scout may take it.
  model:  [calls tell]
  tell:   scout was told; the answer comes later
  model:  The scout takes it.
  user:   scout: it is ours
  model:  The room is ours.
Its subagent in the background:
  user:   find a room
  model:  there is one at the Polar
  user:   reserve it
  model:  it is ours
Every conversation counts what it spent itself; the session has the sum.
";

#[tokio::test]
async fn subagents() {
    assert_eq!(output(env!("CARGO_BIN_EXE_subagents"), &[]).await, SUBAGENTS);
}

#[tokio::test]
async fn a_background_subagent_behind_a_kill_gets_its_message_once_and_answers_once() {
    for point in ["asked", "answered"] {
        let (text, _folder) = behind_a_kill(env!("CARGO_BIN_EXE_subagents"), point).await;
        assert_eq!(text, SUBAGENTS, "killed at {point}");
    }
}

#[tokio::test]
async fn guard_hooks() {
    let text = "\
What the model is asked:
  a request with 2 messages, 0 of them cut
  a request with 4 messages, 0 of them cut
  a request with 6 messages, 1 of them cut
  a request with 8 messages, 2 of them cut
What the transcript has:
  user:   Clean up, deploy, and show the configuration.
  model:  [calls shell]
  shell:  <harness> [error] Tool call blocked: commands that delete are not allowed here </harness>
  model:  [calls shell]
  shell:  ran: deploy --dry-run
  model:  [calls shell]
  shell:  host = example.com, password = ***
  model:  Nothing was deleted, and nothing deployed yet.
";
    assert_eq!(output(env!("CARGO_BIN_EXE_guard_hooks"), &[]).await, text);
}

#[tokio::test]
async fn workspace() {
    let text = output(env!("CARGO_BIN_EXE_workspace"), &[]).await;
    let notes: Vec<&str> = text.lines().filter(|line| line.contains("note.txt has")).collect();
    assert_eq!(notes, ["  its note.txt has: red", "  its note.txt has: blue"], "{text}");
    let folders: Vec<&str> = text.lines().filter(|line| line.starts_with("Conversation")).collect();
    assert!(folders.len() == 2 && folders[0] != folders[1], "{text}");
    for color in ["red", "blue"] {
        assert!(text.contains(&format!("  read:   {color}\n")), "{text}");
    }
}
