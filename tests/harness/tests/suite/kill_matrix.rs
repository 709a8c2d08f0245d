//! A kill at every storage write of a recorded run with two tools, a steer, a retry, a deferred poll and a subagent, beside conversations
//! that compact after an overflow and in the background and that hand off, and one with a background subagent: after reopening the run
//! ends as the uninterrupted one allows. The library of `tests/faultfs` kills the child; its effects are written down before they happen.
//!
//! `PICOFLEET_KILL_RUNS` says how many of the writes are chosen, evenly; all of them with a number above their count. Another test kills
//! with SIGKILL after times that have nothing to do with writes, on SQLite and PostgreSQL; `PICOFLEET_KILL_ROUNDS` says how often.

mod compacting;
mod kept;
mod program;
mod telling;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use picofleet_harness::usage::{USAGE, UsageState, add};
use picofleet_session::message::Message;
use picofleet_session::storage::{ConversationQuery, EntryQuery, SessionQuery, SubmissionQuery, TaskQuery};
use picofleet_session::{
    DocumentAddress, DocumentScope, EntryRecord, Point, ROOT_CONVERSATION_ID, SubmissionStatus, TaskOutcome, TaskRecord, TaskState,
};
use picofleet_storage::conformance::Database;
use tempfile::TempDir;

use kept::Kept;

/// How many writes of SQLite and of JSONL are chosen where nothing else is asked for.
const RUNS: usize = 24;
const JSONL_RUNS: usize = 12;

/// How many times are chosen where nothing else is asked for.
const ROUNDS: u32 = 20;
const POSTGRES_ROUNDS: u32 = 10;

/// The child: the program, from wherever an earlier one left it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_that_runs_the_program() {
    if let Some(directory) = picofleet_harness_tests::child::directory() {
        program::run(&directory).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_survives_a_kill_at_its_writes() {
    kill_at_writes(&Kept::Sqlite, RUNS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_survives_a_kill_at_its_writes_of_lines() {
    kill_at_writes(&Kept::Jsonl, JSONL_RUNS).await;
}

async fn kill_at_writes(kept: &Kept, runs: usize) {
    let runs = std::env::var("PICOFLEET_KILL_RUNS").map_or(runs, |runs| runs.parse().expect("PICOFLEET_KILL_RUNS is a number"));
    let whole = folder();
    let count = whole.path().join("count");
    assert!(child(kept, whole.path(), |command| command.env("FAULTFS_COUNT", &count)), "the program does not end");
    check(kept, whole.path(), "without a kill").await;
    check_uninterrupted(kept, whole.path()).await;
    let writes = std::fs::read_to_string(&count).unwrap().lines().count();
    assert!(writes > 50, "{writes} writes are too few for this run");
    let runs = runs.min(writes);
    let mut killed = 0;
    for run in 0..runs {
        let at = 1 + run * writes / runs;
        let how = ["kill-before", "kill-after", "kill-half"][run % 3];
        let (directory, name) = (folder(), format!("{how} at write {at} of {writes}, {kept:?}"));
        // A run has a few writes more or fewer than another, so that the last ones may not come.
        killed += usize::from(!child(kept, directory.path(), |command| command.env("FAULTFS_AT", at.to_string()).env("FAULTFS_DO", how)));
        assert!(child(kept, directory.path(), |command| command), "{name}: the program does not end after reopening");
        check(kept, directory.path(), &name).await;
    }
    assert!(killed > 0, "none of {runs} runs was killed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_survives_a_kill_at_any_time() {
    kill_at_any_time(ROUNDS, async || (Kept::Sqlite, None)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_survives_a_kill_at_any_time_on_postgresql() {
    kill_at_any_time(POSTGRES_ROUNDS, async || {
        let database = Database::new().await;
        (Kept::Postgres(database.url().to_owned()), Some(database))
    })
    .await;
}

/// `kept` makes a store for a run; what it answers beside goes with it.
async fn kill_at_any_time(rounds: u32, kept: impl AsyncFn() -> (Kept, Option<Database>)) {
    let rounds = std::env::var("PICOFLEET_KILL_ROUNDS").map_or(rounds, |rounds| rounds.parse().expect("PICOFLEET_KILL_ROUNDS is a number"));
    let (whole, (first, database)) = (folder(), kept().await);
    let begun = tokio::time::Instant::now();
    assert!(child(&first, whole.path(), |command| command), "the program does not end");
    check(&first, whole.path(), "without a kill").await;
    drop(database);
    let whole = begun.elapsed();
    let mut killed = 0;
    for round in 0..rounds {
        let (directory, (kept, _database)) = (folder(), kept().await);
        // Fractions of the golden ratio are spread evenly and never meet a beat of the program.
        let after = whole.mul_f64((f64::from(round) * 0.618_033_988_75).fract());
        let mut first = command(&kept, directory.path()).spawn().unwrap();
        tokio::time::sleep(after).await;
        first.kill().unwrap();
        killed += u32::from(first.wait().unwrap().code().is_none());
        let name = format!("SIGKILL after {after:?}, {kept:?}");
        assert!(child(&kept, directory.path(), |command| command), "{name}: the program does not end after reopening");
        check(&kept, directory.path(), &name).await;
    }
    assert!(killed > 0 || rounds == 0, "no round was killed before it ended: {whole:?} is no measure");
}

fn folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Runs the child; whether it ended by itself and in order.
fn child(kept: &Kept, directory: &Path, change: impl FnOnce(&mut Command) -> &mut Command) -> bool {
    change(&mut command(kept, directory)).status().unwrap().success()
}

/// The child on a store in a directory, with the library that counts writes.
fn command(kept: &Kept, directory: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "kill_matrix::child_that_runs_the_program", "--test-threads=1"]);
    command.env("PICOFLEET_TEST_DIRECTORY", directory).env("LD_PRELOAD", library());
    kept.choose(&mut command);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// The library beside this test, or one above.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let places = test.ancestors().skip(1).take(2).map(|folder| folder.join("libpicofleet_faultfs.so"));
    places.into_iter().find(|path| path.exists()).expect("the library of tests/faultfs is built with this test")
}

async fn check(kept: &Kept, directory: &Path, name: &str) {
    let log = std::fs::read_to_string(directory.join("log")).unwrap();
    let times = |word: &str| log.lines().filter(|line| *line == word).count();
    assert!(times("unsafe") <= 1, "{name}: the unsafe tool was executed {} times", times("unsafe"));
    assert!(!log.contains("BROKEN"), "{name}: {log}");
    let store = kept.open(directory).await;
    let session = store.sessions(SessionQuery::default(), 1, None).await.unwrap().items.pop().unwrap().id;
    let reader = store.reader(session).await.unwrap();
    let submissions = reader.scan_submissions(SubmissionQuery::default(), 100, None).await.unwrap().items;
    assert!(submissions.len() >= 2, "{name}: {submissions:?}");
    for record in &submissions {
        assert_eq!(record.status(), SubmissionStatus::Done, "{name}: {record:?}");
    }
    let conversations = reader.scan_conversations(ConversationQuery::default(), 100, None).await.unwrap().items;
    let mut telling = Vec::new();
    for conversation in conversations {
        let entries = reader.scan_entries(EntryQuery::all(conversation.id), 1_000, None).await.unwrap().items;
        let own: Vec<&EntryRecord> = entries.iter().filter(|entry| entry.conversation_id == conversation.id).collect();
        let users: Vec<String> =
            own.iter().rev().filter(|entry| entry.kind == "pi.user").map(|entry| picofleet_harness_tests::text(entry)).collect();
        if users[0] == telling::GO {
            telling.push(conversation.id);
        }
        let inputs = compacting::inputs(&users[0]).unwrap_or_else(|| if conversation.owner.is_some() { 1 } else { 2 });
        assert_eq!(users.len(), inputs, "{name}: inputs of conversation {}", conversation.id);
        let tasks = TaskQuery { conversation_id: Some(conversation.id), kind: Some("pi.compaction".into()), ..TaskQuery::default() };
        let tasks = reader.scan_tasks(tasks, 100, None).await.unwrap().items;
        let summaries = tasks.iter().filter(|task| gave_summary(task)).count();
        assert_eq!(summaries, tasks.len(), "{name}: compactions of conversation {}: {tasks:?}", conversation.id);
        let address =
            DocumentAddress { kind: USAGE.kind.to_owned(), scope: DocumentScope::Conversation { id: conversation.id }, key: None };
        let document = reader.find_document(address, Point::Current).await.unwrap().unwrap();
        let stored: UsageState = reader.document(document.create.id, Point::Current).await.unwrap().unwrap().value.to().unwrap();
        let mut spent = sum(&own);
        // The request for a summary has no entry. The answered one of each compaction counts once.
        let summaries = u64::try_from(summaries).unwrap() * compacting::SUMMARY_TOKENS;
        spent.models.entry("p/m".to_owned()).or_default().total_tokens += summaries;
        assert_eq!(tokens(&stored), tokens(&spent), "{name}: usage of conversation {}", conversation.id);
    }
    let [parent] = telling[..] else { panic!("{name}: one conversation that tells a subagent: {telling:?}") };
    telling::check(&*reader, parent, name).await;
    store.close().await.unwrap();
}

/// The run that nobody killed has had all that the matrix is about.
async fn check_uninterrupted(kept: &Kept, directory: &Path) {
    let log = std::fs::read_to_string(directory.join("log")).unwrap();
    let times = |word: &str| log.lines().filter(|line| *line == word).count();
    assert_eq!((times("safe"), times("unsafe")), (1, 1), "both tools, once each: {log}");
    assert_eq!(times("failed"), 1, "an error that is retried: {log}");
    assert!(times("deferred") >= 1 && times("fetched") >= 2, "an answer that is deferred, and again at its first poll: {log}");
    let store = kept.open(directory).await;
    let session = store.sessions(SessionQuery::default(), 1, None).await.unwrap().items.pop().unwrap().id;
    let reader = store.reader(session).await.unwrap();
    let (mut root, mut subagents, mut compacting) = (Vec::new(), Vec::new(), Vec::new());
    for conversation in reader.scan_conversations(ConversationQuery::default(), 100, None).await.unwrap().items {
        let entries = reader.scan_entries(EntryQuery::all(conversation.id), 1_000, None).await.unwrap().items;
        let mine: Vec<EntryRecord> = entries.into_iter().filter(|entry| entry.conversation_id == conversation.id).collect();
        let first = mine.iter().rfind(|entry| entry.kind == "pi.user").map(picofleet_harness_tests::text);
        if first.as_deref() == Some(telling::GO) {
            telling::check_uninterrupted(&mine);
            continue;
        }
        if first.as_deref() == Some(telling::WORK) {
            continue;
        }
        if conversation.owner.is_none() && conversation.id != ROOT_CONVERSATION_ID {
            compacting.push(mine);
            continue;
        }
        let mine = mine.into_iter();
        let mut mine: Vec<_> = mine.map(|entry| (entry.id, format!("{:?}", entry.model))).collect();
        mine.sort_by_key(|(id, _)| *id);
        let texts: Vec<String> = mine.into_iter().map(|(_, text)| text).collect();
        if conversation.owner.is_some() { subagents.push(texts) } else { root = texts }
    }
    let place = |text: &str| root.iter().position(|shown| shown.contains(text)).unwrap_or_else(|| panic!("no {text:?} in {root:#?}"));
    assert!(
        place("\"go\"") < place("steer: and be short") && place("steer: and be short") < root.len() - 1,
        "the steer is answered: {root:#?}"
    );
    assert!(place("the answer") > place("ToolResult"), "the deferred answer: {root:#?}");
    for call in ["\"a\"", "\"b\"", "\"c\""] {
        let results = root.iter().filter(|shown| shown.contains("ToolResult") && shown.contains(&format!("tool_call_id: {call}"))).count();
        assert_eq!(results, 1, "results of {call}: {root:#?}");
    }
    let [subagent] = subagents.as_slice() else { panic!("one subagent: {subagents:#?}") };
    assert!(subagent[0].contains("the question") && subagent.last().is_some_and(|last| last.contains("42")), "{subagent:#?}");
    let [full, filling] = compacting.as_slice() else { panic!("two conversations that compact: {compacting:#?}") };
    compacting::check_uninterrupted(&program::Log(directory.join("log")), full, filling);
    store.close().await.unwrap();
}

/// Whether a compaction ended with a summary.
fn gave_summary(task: &TaskRecord) -> bool {
    let TaskState::Terminal { outcome: TaskOutcome::Completed { result } } = &task.state else { return false };
    result.get("entryId").is_some() || result.get("submissionId").is_some()
}

fn sum(entries: &[&EntryRecord]) -> UsageState {
    let mut sum = UsageState::default();
    for message in entries.iter().flat_map(|entry| entry.model.iter().flatten()) {
        if let Message::Assistant(message) = message {
            add(sum.models.entry(format!("{}/{}", message.provider, message.model)).or_default(), &message.usage);
        }
    }
    sum
}

fn tokens(usage: &UsageState) -> Vec<(String, u64)> {
    usage.models.iter().map(|(name, usage)| (name.clone(), usage.total_tokens)).collect()
}
