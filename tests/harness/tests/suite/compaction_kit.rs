//! What the scenarios of compaction share: histories of known sizes, and short words for what comes of them.

use picofleet_harness::compaction::CompactionResult;
use picofleet_harness::config::CompactionPolicy;
use picofleet_harness::host::Conversation;
use picofleet_harness::kind::Outcome;
use picofleet_harness::live::CompactionStatus;
use picofleet_harness_tests::{Kit, Reply, text};
use picofleet_session::message::Message;
use picofleet_session::{EntryRecord, Json, SubmissionId, SubmissionState, TaskId, WriteState};

/// A text of 100 tokens that begins with a name.
pub(super) fn words(name: &str) -> String {
    format!("{name} {}", "w".repeat(349 - name.len()))
}

/// Turns of 200 tokens: `u1`, `a1`, `u2` ...
pub(super) async fn history(kit: &Kit, turns: usize) {
    for turn in 1..=turns {
        kit.turn(&words(&format!("u{turn}")), Reply::text(&words(&format!("a{turn}")))).await;
    }
}

pub(super) async fn policy(kit: &Kit, change: impl FnOnce(&mut CompactionPolicy)) {
    let root = kit.root().await;
    let mut policy = root.compaction().await.unwrap();
    change(&mut policy);
    root.set_compaction(Some(policy)).await.unwrap();
}

pub(super) async fn keep(kit: &Kit, tokens: i64) {
    policy(kit, |policy| policy.keep_recent_tokens = tokens).await;
}

/// The result of a compaction that completes.
pub(super) async fn result(kit: &Kit, task: TaskId<CompactionResult>) -> CompactionResult {
    match kit.outcome(task).await {
        Outcome::Completed(result) => result,
        other => panic!("not completed: {other:?}"),
    }
}

/// A whole manual compaction: the write of its summary.
pub(super) async fn compacted(kit: &Kit) -> SubmissionId {
    let task = kit.root().await.compact(None).await.unwrap();
    let CompactionResult { entry_id: None, submission_id: Some(submission) } = result(kit, task).await else { panic!("nothing") };
    submission
}

/// Begins a manual compaction whose summary is held, and waits until it is asked for.
pub(super) async fn summarizing(kit: &Kit, reply: Reply) -> TaskId<CompactionResult> {
    let before = kit.stage.asked().len();
    kit.stage.give(reply.held());
    let task = kit.root().await.compact(None).await.unwrap();
    kit.until("the request for a summary", async || kit.stage.asked().len() > before).await;
    task
}

/// The state of a write: `queued`, `done`, or why it is unanswered.
pub(super) async fn write_state(kit: &Kit, id: SubmissionId) -> String {
    let submission = kit.harness().submission(id).await.unwrap().expect("it is there");
    let SubmissionState::Write(state) = submission.status().await.unwrap().state else { panic!("no write") };
    match state {
        WriteState::Queued => "queued".to_owned(),
        WriteState::Done { .. } => "done".to_owned(),
        WriteState::Unanswered { reason, .. } => reason,
    }
}

/// The newest summary.
pub(super) async fn newest_summary(kit: &Kit) -> EntryRecord {
    let entries = kit.entries(&kit.root().await).await;
    entries.into_iter().rev().find(|entry| entry.kind == "pi.compaction").expect("a summary")
}

/// The first entry whose text begins with a name.
pub(super) async fn entry(kit: &Kit, name: &str) -> EntryRecord {
    let entries = kit.entries(&kit.root().await).await;
    entries.into_iter().find(|entry| text(entry).starts_with(name)).expect("the entry is there")
}

/// What a model sees, in short: the first word of each message, `<s>` for the summary s, and `system` and `result`.
pub(super) fn shown(messages: &[Message]) -> Vec<String> {
    messages.iter().map(word).collect()
}

fn word(message: &Message) -> String {
    let first = |text: String| match text.split_once("<summary>\n") {
        Some((_, summary)) => format!("<{}>", summary.trim_end_matches("\n</summary>")),
        None => text.split(' ').next().unwrap_or_default().to_owned(),
    };
    match message {
        Message::System(_) => "system".to_owned(),
        Message::ToolResult(_) => "result".to_owned(),
        Message::User(_) | Message::Assistant(_) => first(text_of(message)),
    }
}

fn text_of(message: &Message) -> String {
    let record = Json::object([("id", Json::from(2)), ("conversationId", Json::from(1)), ("kind", Json::from("t"))]);
    let record: EntryRecord = record.to().unwrap();
    text(&EntryRecord { model: Some(vec![message.clone()]), ..record })
}

pub(super) async fn context(kit: &Kit) -> Vec<String> {
    shown(&kit.root().await.context().await.unwrap().messages)
}

pub(super) async fn statuses(root: &Conversation) -> Vec<CompactionStatus> {
    root.live().await.unwrap().compactions.unwrap_or_default()
}

/// Tokens that were counted for the model.
pub(super) async fn spent(kit: &Kit) -> u64 {
    kit.root().await.usage().await.unwrap().models.get("p/m").map_or(0, |usage| usage.total_tokens)
}
