//! Section K: where a context is cut. The entries are written as they are to be, so that nothing else is among them.

use picofleet_harness::compaction::CompactionResult;
use picofleet_harness::host::Conversation;
use picofleet_harness_tests::{Kit, Reply, scenario};
use picofleet_models::provider::empty_answer;
use picofleet_session::message::{
    AssistantBlock, AssistantMessage, Message, StopReason, SystemMessage, TextContent, ToolCall, ToolResultMessage, UserBlock, UserMessage,
};
use picofleet_session::{EntryDraft, EntryId, Json, Millis};

use super::compaction_kit::{context, keep, newest_summary, result, words};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

fn user(name: &str) -> EntryDraft {
    EntryDraft::new("pi.user").model(vec![Message::from(UserMessage { content: words(name).into(), timestamp: Millis(1) })])
}

fn assistant(name: &str, calls: &[&str]) -> EntryDraft {
    stopped(name, calls, if calls.is_empty() { StopReason::Stop } else { StopReason::ToolUse })
}

fn stopped(name: &str, calls: &[&str], stop_reason: StopReason) -> EntryDraft {
    let call = |id: &&str| {
        AssistantBlock::ToolCall(ToolCall {
            id: (*id).to_owned(),
            name: "t".to_owned(),
            arguments: Json::object::<&str, Json>([]),
            thought_signature: None,
            namespace: None,
            arguments_error: None,
        })
    };
    let content = std::iter::once(AssistantBlock::Text(TextContent::new(words(name)))).chain(calls.iter().map(call)).collect();
    let empty = empty_answer(&picofleet_harness_tests::Stage::model(), Millis(1));
    EntryDraft::new("pi.assistant").model(vec![Message::from(AssistantMessage { content, stop_reason, ..empty })])
}

/// A result of so many tokens.
fn tool_result(call: &str, tokens: usize) -> EntryDraft {
    EntryDraft::new("pi.tool-result").model(vec![Message::from(ToolResultMessage {
        tool_call_id: call.to_owned(),
        tool_name: "t".to_owned(),
        content: vec![UserBlock::Text(TextContent::new("r".repeat(tokens * 7 / 2)))],
        details: None,
        usage: None,
        nested_calls: None,
        is_error: false,
        timestamp: Millis(1),
        duration_ms: None,
    })])
}

fn system() -> EntryDraft {
    let (sections, timestamp) = (Some(Json::object([("s", words("section"))])), Millis(1));
    let message = SystemMessage { content: "".into(), sections, tools_added: None, tools_removed: None, timestamp };
    EntryDraft::new("pi.system").model(vec![Message::from(message)])
}

async fn write(root: &Conversation, drafts: Vec<EntryDraft>) -> Vec<EntryId> {
    let id = root.id();
    let written: Result<Vec<EntryId>, BoxError> = root
        .commit(async |tx| {
            let mut ids = Vec::new();
            for draft in drafts {
                ids.push(tx.append_entry(id, draft).await?.id);
            }
            Ok(ids)
        })
        .await;
    written.unwrap()
}

/// Writes the entries into a new conversation, and compacts it: the number of the first entry that stays, from 1; `None` for nothing.
async fn cut(kit: &Kit, keep_recent: i64, drafts: Vec<EntryDraft>) -> Option<usize> {
    keep(kit, keep_recent).await;
    let root = kit.root().await;
    root.reset(None).await.unwrap();
    let ids = write(&root, drafts).await;
    kit.stage.give(Reply::text("SUMMARY"));
    let asked = kit.stage.asked().len();
    let task = root.compact(None).await.unwrap();
    if result(kit, task).await == CompactionResult::default() {
        assert_eq!(kit.stage.asked().len(), asked);
        return None;
    }
    let head = newest_summary(kit).await.head.unwrap();
    ids.iter().position(|id| *id == head).map(|index| index + 1)
}

scenario!(s159_a_long_result_goes_with_its_call, async |kit| {
    let example =
        || vec![user("u1"), assistant("a2", &["c"]), tool_result("c", 3_000), assistant("a4", &[]), user("u5"), assistant("a6", &[])];
    assert_eq!(cut(&kit, 2_000, example()).await, Some(4));
    assert_eq!(context(&kit).await, ["<SUMMARY>", "a4", "u5", "a6"]);
});

scenario!(x076_no_cut_at_what_can_not_begin_a_context, async |kit| {
    // Each of them is where the walk stops with 250 tokens; the next candidate is taken.
    let result_first = vec![user("u1"), assistant("a2", &["c"]), tool_result("c", 100), assistant("a4", &[]), user("u5")];
    assert_eq!(cut(&kit, 250, result_first).await, Some(4));
    let system_first = vec![user("u1"), system(), user("u3"), assistant("a4", &[])];
    assert_eq!(cut(&kit, 250, system_first).await, Some(3));
    // The sum is reached at the entry behind one that contributes nothing.
    let failed = |reason| vec![user("u1"), tool_result("x", 100), stopped("a2", &[], reason), user("u3"), assistant("a4", &[])];
    for reason in [StopReason::Error, StopReason::Aborted] {
        assert_eq!(cut(&kit, 250, failed(reason)).await, Some(4), "{reason:?}");
    }
    let display = vec![user("u1"), tool_result("x", 100), EntryDraft::new("note"), user("u4"), assistant("a5", &[])];
    assert_eq!(cut(&kit, 250, display).await, Some(4));
    // A candidate where the sum is reached is taken itself.
    let plain = vec![user("u1"), user("u2"), user("u3"), assistant("a4", &[])];
    assert_eq!(cut(&kit, 250, plain).await, Some(2));
    // A huge last result is kept with its call, since no candidate follows.
    let last = vec![user("u1"), assistant("a2", &["c"]), tool_result("c", 3_000)];
    assert_eq!(cut(&kit, 250, last).await, Some(2));
    assert_eq!(context(&kit).await, ["<SUMMARY>", "a2", "result"]);
});

scenario!(x077_no_cut_between_a_call_and_its_result, async |kit| {
    let steered =
        |call: &str| vec![user("u1"), assistant("a2", &["c"]), user("u3"), tool_result(call, 100), assistant("a5", &[]), user("u6")];
    assert_eq!(cut(&kit, 350, steered("c")).await, Some(5));
    assert_eq!(context(&kit).await, ["<SUMMARY>", "a5", "u6"]);
    // A result of no call of that assistant does not bind it.
    assert_eq!(cut(&kit, 350, steered("other")).await, Some(3));
    // Nor does one behind the next assistant.
    let late = vec![user("u1"), assistant("a2", &["c"]), user("u3"), assistant("a4", &[]), tool_result("c", 100)];
    assert_eq!(cut(&kit, 250, late).await, Some(3));
});

scenario!(nothing_before_the_cut_is_nothing_to_compact, async |kit| {
    let display = vec![EntryDraft::new("note"), user("u2"), assistant("a3", &[])];
    assert_eq!(cut(&kit, 150, display).await, None);
});
