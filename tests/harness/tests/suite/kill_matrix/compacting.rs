//! The part of the recorded run that compacts: a conversation whose request does not fit and that hands off afterwards, and one that
//! compacts beside its run.

use std::time::Duration;

use futures::future::BoxFuture;
use picofleet_harness::config::{CompactionPolicy, ConfigPatch};
use picofleet_harness::host::{Conversation, ConversationOptions, Harness};
use picofleet_harness::registry::Registry;
use picofleet_harness::submission::SubmissionDraft;
use picofleet_harness::tool::{Control, Replay};
use picofleet_harness::tools::{Tool, ToolApi, ToolError, ToolResult, ToolSpec};
use picofleet_models::estimate::estimate_message_tokens;
use picofleet_models::model::Model;
use picofleet_models::provider::empty_answer;
use picofleet_session::message::{AssistantBlock, AssistantMessage, Message, StopReason, TextContent, TextOrBlocks, ToolCall, Usage};
use picofleet_session::{EntryRecord, Json, Millis};

use super::program::{Log, config};

/// What each request for a summary spends.
pub(super) const SUMMARY_TOKENS: u64 = 7;

/// The inputs of the conversation whose third request does not fit.
const FULL: [&str; 5] = ["full: 1", "full: 2", "full: 3", "full: hand over", "full: 5"];

/// The inputs of the conversation that compacts beside its run.
const FILLING: [&str; 4] = ["filling: 1", "filling: 2", "filling: 3", "filling: 4"];

/// A text of 100 tokens.
fn words(name: &str) -> String {
    format!("{name} {}", "w".repeat(349 - name.len()))
}

/// Both conversations to their ends.
pub(super) async fn run(harness: &Harness) {
    let keep = CompactionPolicy { enabled: true, reserve_tokens: 0, keep_recent_tokens: 150, background_tokens: 0 };
    // With the model's window of 100,000 it compacts above 300 tokens, and would wait for it above 1,000.
    let beside = CompactionPolicy { reserve_tokens: 99_000, background_tokens: 700, ..keep };
    let (full, filling) = (conversation(harness, "full", keep).await, conversation(harness, "filling", beside).await);
    tokio::join!(say(&full, &FULL), say(&filling, &FILLING));
}

async fn conversation(harness: &Harness, key: &str, policy: CompactionPolicy) -> Conversation {
    let patch = ConfigPatch { active_tools: Some(vec!["hand".into()]), compaction: Some(Some(policy)), ..config() };
    harness.create_conversation(ConversationOptions::ownerless().key(key).config(patch)).await.unwrap()
}

async fn say(conversation: &Conversation, inputs: &[&str]) {
    for input in inputs {
        // The short one is answered with a call.
        let text = if input.ends_with("over") { (*input).to_owned() } else { words(input) };
        let draft = SubmissionDraft::input(text).request_id(*input);
        conversation.submit(draft).await.unwrap().wait().await.unwrap();
        while conversation.live().await.unwrap().compactions.is_some() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// How many inputs a conversation has that begins with this one; `None` where it is none of these.
pub(super) fn inputs(first: &str) -> Option<usize> {
    [FULL.as_slice(), FILLING.as_slice()].into_iter().find(|inputs| first.starts_with(inputs[0])).map(<[&str]>::len)
}

/// The tool that ends a run with a handoff.
struct Hand(ToolSpec);

impl Tool for Hand {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn execute<'a>(&'a self, _: Json, _: ToolApi) -> BoxFuture<'a, Result<ToolResult, ToolError>> {
        let control = Control { handoff: Some("full: go on".to_owned()), ..Control::default() };
        Box::pin(async move { Ok(ToolResult { control: Some(control), ..ToolResult::text("over") }) })
    }
}

pub(super) fn register(registry: &Registry) {
    let spec = ToolSpec::new("hand", "a tool", Json::object([("type", "object")]));
    registry.tool(Hand(ToolSpec { replay: Replay::Safe, ..spec })).unwrap();
}

/// What the model says to one of these conversations, or for a summary of one; `None` for any other.
pub(super) fn answer(log: &Log, model: &Model, messages: &[Message]) -> Option<AssistantMessage> {
    let last = messages.iter().rev().find_map(|message| match message {
        Message::User(user) => Some(text_of(&user.content)),
        _ => None,
    })?;
    let empty = empty_answer(model, Millis(0));
    let said = |text: String, total_tokens: u64| AssistantMessage {
        content: vec![AssistantBlock::Text(TextContent::new(text))],
        stop_reason: StopReason::Stop,
        usage: Usage { input: total_tokens, total_tokens, ..Usage::default() },
        ..empty.clone()
    };
    let tokens: u64 = messages.iter().map(estimate_message_tokens).sum();
    if last.starts_with("<conversation>") {
        log.write("summarized");
        return Some(said("SUMMARY".to_owned(), SUMMARY_TOKENS));
    }
    if last.starts_with("filling: ") {
        return Some(said(words("filled"), tokens + 100));
    }
    if !last.starts_with("full: ") {
        return None;
    }
    if tokens > 450 {
        log.write("overflowed");
        let error_message = Some(format!("prompt is too long: {tokens} tokens > 450 maximum"));
        return Some(AssistantMessage { stop_reason: StopReason::Error, error_message, ..empty });
    }
    if last.ends_with("over") && !matches!(messages.last(), Some(Message::ToolResult(_))) {
        let (arguments, id, name) = (Json::object::<&str, Json>([]), "h".to_owned(), "hand".to_owned());
        let call = ToolCall { id, name, arguments, thought_signature: None, namespace: None, arguments_error: None };
        return Some(AssistantMessage { content: vec![AssistantBlock::ToolCall(call)], stop_reason: StopReason::ToolUse, ..empty });
    }
    Some(said(words("answered"), 7))
}

fn text_of(content: &TextOrBlocks<picofleet_session::message::UserBlock>) -> String {
    match content {
        TextOrBlocks::Text(text) => text.clone(),
        TextOrBlocks::Blocks(blocks) => format!("{blocks:?}"),
    }
}

/// The conversations of a run that nobody killed had all of it.
pub(super) fn check_uninterrupted(log: &Log, full: &[EntryRecord], filling: &[EntryRecord]) {
    let summaries = |entries: &[EntryRecord], reason: &str| {
        let data = Some(Json::object([("reason", reason)]));
        entries.iter().filter(|entry| entry.kind == "pi.compaction" && entry.data == data).count()
    };
    assert!(log.times("overflowed") >= 1 && summaries(full, "overflow") >= 1, "an overflow: {full:#?}");
    assert_eq!(full.iter().filter(|entry| entry.kind == "pi.reset").count(), 1, "a handoff: {full:#?}");
    assert!(summaries(filling, "threshold") >= 1, "a background compaction: {filling:#?}");
}
