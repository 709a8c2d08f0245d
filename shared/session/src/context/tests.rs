use super::*;
use crate::message::{SystemMessage, ToolCall, Usage, UserMessage};
use crate::{ContextEdit, ROOT_CONVERSATION_ID};

fn id(number: i64) -> EntryId {
    EntryId::new(number).unwrap()
}

fn entry(number: i64, messages: Vec<Message>) -> EntryRecord {
    EntryRecord {
        id: id(number),
        conversation_id: ROOT_CONVERSATION_ID,
        kind: "t".to_owned(),
        model: (!messages.is_empty()).then_some(messages),
        data: None,
        head: None,
        edits: None,
        by_task_id: None,
    }
}

fn head(number: i64, from: i64, messages: Vec<Message>) -> EntryRecord {
    EntryRecord { head: Some(id(from)), ..entry(number, messages) }
}

fn edit(number: i64, edits: Vec<(i64, EditAction)>) -> EntryRecord {
    let edits = edits.into_iter().map(|(target, action)| ContextEdit { target: id(target), action }).collect();
    EntryRecord { edits: Some(edits), ..entry(number, Vec::new()) }
}

fn replace(messages: Vec<Message>) -> EditAction {
    EditAction::Replace { messages }
}

fn user(text: &str) -> Message {
    Message::from(UserMessage { content: text.into(), timestamp: Millis(1) })
}

fn system(text: &str) -> Message {
    Message::from(SystemMessage { content: text.into(), sections: None, tools_added: None, tools_removed: None, timestamp: Millis(1) })
}

fn stopped(text: &str, calls: &[&str], stop_reason: StopReason) -> Message {
    let calls = calls.iter().map(|call| {
        AssistantBlock::ToolCall(ToolCall {
            id: (*call).to_owned(),
            name: format!("tool-{call}"),
            arguments: Json::object::<&str, Json>([]),
            thought_signature: None,
            namespace: None,
            arguments_error: None,
        })
    });
    Message::from(AssistantMessage {
        content: std::iter::once(AssistantBlock::Text(TextContent::new(text))).chain(calls).collect(),
        api: String::new(),
        provider: String::new(),
        model: String::new(),
        response_model: None,
        response_id: None,
        provider_thinking_level: None,
        thinking_level: None,
        diagnostics: None,
        usage: Usage::default(),
        stop_reason,
        deferred: None,
        error_message: None,
        raw_stop_reason: None,
        end_turn: None,
        timestamp: Millis(7),
        duration_ms: None,
    })
}

fn assistant(text: &str, calls: &[&str]) -> Message {
    stopped(text, calls, if calls.is_empty() { StopReason::Stop } else { StopReason::ToolUse })
}

fn result(call: &str, text: &str) -> Message {
    let content = vec![UserBlock::Text(TextContent::new(text))];
    Message::from(ToolResultMessage { content, is_error: false, details: None, ..missing_result(call, "tool", Millis(3)) })
}

/// Messages in short: `u:` user, `s:` system, `a:` assistant, `r:` a result, `missing:` a synthesized one.
fn short(messages: &[Message]) -> Vec<String> {
    let text = |block: Option<&UserBlock>| match block {
        Some(UserBlock::Text(text)) => text.text.clone(),
        other => panic!("{other:?}"),
    };
    let each = messages.iter().map(|message| match message {
        Message::User(user) => match &user.content {
            crate::message::TextOrBlocks::Text(text) => format!("u:{text}"),
            crate::message::TextOrBlocks::Blocks(_) => panic!("no text"),
        },
        Message::System(system) => match &system.content {
            crate::message::TextOrBlocks::Text(text) => format!("s:{text}"),
            crate::message::TextOrBlocks::Blocks(_) => panic!("no text"),
        },
        Message::Assistant(assistant) => match &assistant.content[0] {
            AssistantBlock::Text(text) => format!("a:{}", text.text),
            other => panic!("{other:?}"),
        },
        Message::ToolResult(result) if result.details.is_some() => format!("missing:{}", result.tool_call_id),
        Message::ToolResult(result) => format!("r:{}:{}", result.tool_call_id, text(result.content.first())),
    });
    each.collect()
}

fn messages(range: Vec<EntryRecord>) -> Vec<String> {
    short(&derive_context(None, range).messages)
}

fn numbers(view: &ContextView) -> Vec<i64> {
    view.entries.iter().map(|entry| entry.id.get()).collect()
}

/// What storage finds for a cutoff: the newest head at or before it, and the range from that head's target on (rules 1 to 3).
fn at(entries: &[EntryRecord], cutoff: i64) -> ContextView {
    let visible: Vec<_> = entries.iter().filter(|entry| entry.id <= id(cutoff)).cloned().collect();
    let marker = visible.iter().rfind(|entry| entry.head.is_some()).cloned();
    let from = marker.as_ref().and_then(|marker| marker.head);
    derive_context(marker, visible.into_iter().filter(|entry| from.is_none_or(|from| entry.id >= from)))
}

#[test]
fn without_a_head_the_context_is_the_range() {
    let view = derive_context(None, vec![entry(2, vec![user("a")]), entry(3, vec![]), entry(4, vec![assistant("b", &[])])]);
    assert_eq!((numbers(&view), &view.head), (vec![2, 3, 4], &None));
    assert_eq!(short(&view.messages), ["u:a", "a:b"]);
    assert_eq!(view.contributions.iter().map(<[Message]>::len).collect::<Vec<_>>(), [1, 0, 1]);
    assert_eq!(derive_context::<EntryRecord>(None, []), ContextView::default());
}

#[test]
fn a_head_comes_first_and_older_heads_go() {
    let entries = [
        entry(2, vec![user("a")]),
        head(3, 2, vec![user("old head")]),
        entry(4, vec![user("b")]),
        entry(5, vec![user("c")]),
        head(6, 4, vec![user("head")]),
        entry(7, vec![user("d")]),
    ];
    let view = at(&entries, 7);
    assert_eq!((numbers(&view), view.head.as_ref().map(|head| head.id)), (vec![6, 4, 5, 7], Some(id(6))));
    assert_eq!(short(&view.messages), ["u:head", "u:b", "u:c", "u:d"]);
    // The cutoff decides which head is the newest.
    assert_eq!(numbers(&at(&entries, 5)), [3, 2, 4, 5]);
    assert_eq!(numbers(&at(&entries, 3)), [3, 2]);
    assert_eq!(numbers(&at(&entries, 2)), [2]);
    assert_eq!(numbers(&at(&entries, 6)), [6, 4, 5]);
}

#[test]
fn an_older_head_inside_the_range_is_left_out() {
    let entries = [entry(2, vec![user("a")]), head(3, 2, vec![user("older")]), head(4, 2, vec![user("newest")])];
    assert_eq!(numbers(&at(&entries, 4)), [4, 2]);
}

#[test]
fn a_head_on_itself_forgets_what_was_before() {
    let entries = [entry(2, vec![user("a")]), head(3, 3, vec![user("reset")]), entry(4, vec![user("b")])];
    let view = at(&entries, 4);
    assert_eq!((numbers(&view), short(&view.messages)), (vec![3, 4], vec!["u:reset".to_owned(), "u:b".to_owned()]));
}

#[test]
fn the_newest_edit_of_a_target_wins() {
    let base = || vec![entry(2, vec![user("a")]), entry(3, vec![user("b")])];
    let with = |edits: Vec<EntryRecord>| messages(base().into_iter().chain(edits).collect());
    assert_eq!(with(vec![edit(4, vec![(2, EditAction::Omit)])]), ["u:b"]);
    assert_eq!(with(vec![edit(4, vec![(2, replace(vec![user("x"), user("y")]))])]), ["u:x", "u:y", "u:b"]);
    assert_eq!(with(vec![edit(4, vec![(2, EditAction::Omit)]), edit(5, vec![(2, replace(vec![user("x")]))])]), ["u:x", "u:b"]);
    assert_eq!(with(vec![edit(4, vec![(2, replace(vec![user("x")]))]), edit(5, vec![(2, EditAction::Omit)])]), ["u:b"]);
    // Two of one entry: the later one.
    assert_eq!(with(vec![edit(4, vec![(2, EditAction::Omit), (2, replace(vec![user("x")]))])]), ["u:x", "u:b"]);
    assert_eq!(with(vec![edit(4, vec![(2, EditAction::Omit), (3, EditAction::Omit)])]), [""; 0]);
    // A target outside of the range, or without messages.
    assert_eq!(with(vec![edit(4, vec![(99, replace(vec![user("x")]))])]), ["u:a", "u:b"]);
    let replaced = messages(vec![entry(2, vec![]), edit(3, vec![(2, replace(vec![user("x")]))])]);
    assert_eq!(replaced, ["u:x"]);
}

#[test]
fn edits_change_contributions_and_not_entries() {
    let edited = EntryRecord { model: Some(vec![user("own")]), ..edit(3, vec![(2, EditAction::Omit)]) };
    let view = derive_context(None, vec![entry(2, vec![user("a")]), edited]);
    assert_eq!(numbers(&view), [2, 3]);
    assert_eq!(view.entries[0].model, Some(vec![user("a")]));
    assert_eq!(view.contributions, [vec![], vec![user("own")]].into_iter().collect());
}

#[test]
fn edits_count_in_the_range_and_before_the_cutoff() {
    let entries = [
        entry(2, vec![user("a")]),
        edit(3, vec![(4, EditAction::Omit), (2, EditAction::Omit)]),
        entry(4, vec![user("b")]),
        head(5, 4, vec![user("head")]),
        edit(6, vec![(5, replace(vec![user("edited head")]))]),
    ];
    assert_eq!(short(&at(&entries, 5).messages), ["u:head", "u:b"], "an edit before the range counted");
    assert_eq!(short(&at(&entries, 6).messages), ["u:edited head", "u:b"]);
    assert_eq!(short(&at(&entries, 4).messages), [""; 0]);
    // An older head is no part of the context, and its edits are part of the range.
    let older = EntryRecord { edits: edit(3, vec![(2, EditAction::Omit)]).edits, ..head(3, 2, vec![user("older")]) };
    let entries = [entry(2, vec![user("a")]), older, head(4, 2, vec![user("newest")])];
    assert_eq!(short(&at(&entries, 4).messages), ["u:newest"]);
}

#[test]
fn system_messages_stay_where_they_are() {
    let range = vec![
        entry(2, vec![system("one")]),
        entry(3, vec![user("a")]),
        entry(4, vec![system("two"), user("b"), system("three")]),
        entry(5, vec![assistant("c", &[])]),
        entry(6, vec![system("four")]),
    ];
    assert_eq!(messages(range), ["s:one", "u:a", "s:two", "u:b", "s:three", "a:c", "s:four"]);
}

#[test]
fn results_follow_their_assistant_in_the_order_of_its_calls() {
    let range = vec![
        entry(2, vec![assistant("a", &["1", "2", "3"])]),
        entry(3, vec![result("3", "x")]),
        entry(4, vec![user("steer")]),
        entry(5, vec![result("1", "y"), system("s")]),
        entry(6, vec![result("2", "z")]),
        entry(7, vec![assistant("b", &["4"])]),
        entry(8, vec![result("4", "w")]),
        entry(9, vec![user("end")]),
    ];
    assert_eq!(messages(range), ["a:a", "r:1:y", "r:2:z", "r:3:x", "u:steer", "s:s", "a:b", "r:4:w", "u:end"]);
}

#[test]
fn a_missing_result_is_made() {
    let range = vec![entry(2, vec![assistant("a", &["1", "2"])]), entry(3, vec![result("2", "x")]), entry(4, vec![user("u")])];
    let view = derive_context(None, range);
    assert_eq!(short(&view.messages), ["a:a", "missing:1", "r:2:x", "u:u"]);
    let Message::ToolResult(made) = &view.messages[1] else { panic!() };
    assert_eq!((&*made.tool_call_id, &*made.tool_name, made.is_error, made.timestamp), ("1", "tool-1", true, Millis(7)));
    assert_eq!(made.details, Some(Json::object([("reason", Json::from("missing_result"))])));
    assert_eq!(made.content.len(), 1);
    assert_eq!(view.contributions.iter().map(<[Message]>::len).collect::<Vec<_>>(), [1, 1, 1], "contributions are before rule 8");
    // At an interrupted tail.
    assert_eq!(messages(vec![entry(2, vec![assistant("a", &["1"])])]), ["a:a", "missing:1"]);
}

#[test]
fn a_result_counts_only_before_the_next_assistant() {
    let range = vec![
        entry(2, vec![assistant("a", &["1"])]),
        entry(3, vec![assistant("b", &["2"])]),
        entry(4, vec![result("1", "late"), result("2", "x")]),
    ];
    assert_eq!(messages(range), ["a:a", "missing:1", "a:b", "r:2:x"]);
}

#[test]
fn a_result_without_a_call_is_dropped() {
    assert_eq!(messages(vec![entry(2, vec![result("1", "x"), user("a")])]), ["u:a"]);
    assert_eq!(messages(vec![entry(2, vec![assistant("a", &[])]), entry(3, vec![result("1", "x")])]), ["a:a"]);
    let twice = vec![entry(2, vec![assistant("a", &["1"])]), entry(3, vec![result("1", "first"), result("1", "second")])];
    assert_eq!(messages(twice), ["a:a", "r:1:first"]);
    // Its call was cut off by a head, or edited away.
    let entries = [entry(2, vec![assistant("a", &["1"])]), entry(3, vec![result("1", "x")]), head(4, 3, vec![user("head")])];
    assert_eq!(short(&at(&entries, 4).messages), ["u:head"]);
    let edited =
        vec![entry(2, vec![assistant("a", &["1"])]), entry(3, vec![result("1", "x")]), edit(4, vec![(2, replace(vec![user("said")]))])];
    assert_eq!(messages(edited), ["u:said"]);
    let omitted = vec![entry(2, vec![assistant("a", &["1"])]), entry(3, vec![result("1", "x")]), edit(4, vec![(3, EditAction::Omit)])];
    assert_eq!(messages(omitted), ["a:a", "missing:1"]);
}

#[test]
fn messages_that_did_not_end_well_are_left_out_with_their_results() {
    for reason in [StopReason::Aborted, StopReason::Error, StopReason::Deferred] {
        let range = vec![
            entry(2, vec![assistant("a", &["1"])]),
            entry(3, vec![stopped("bad", &["2"], reason)]),
            entry(4, vec![result("2", "x"), result("1", "y"), user("u")]),
        ];
        let view = derive_context(None, range);
        assert_eq!(short(&view.messages), ["a:a", "r:1:y", "u:u"], "{reason:?}");
        assert_eq!(view.contributions.of(1..2), [], "{reason:?}");
        assert_eq!(numbers(&view), [2, 3, 4]);
    }
    for reason in [StopReason::Stop, StopReason::Length, StopReason::ToolUse] {
        assert_eq!(messages(vec![entry(2, vec![stopped("good", &[], reason)])]), ["a:good"], "{reason:?}");
    }
    // Also in a replacement.
    let replaced = vec![entry(2, vec![user("a")]), edit(3, vec![(2, replace(vec![stopped("bad", &[], StopReason::Error), user("x")]))])];
    assert_eq!(messages(replaced), ["u:x"]);
}

#[test]
fn a_head_with_an_assistant_and_the_results_behind_it() {
    let entries = [
        entry(2, vec![user("a")]),
        entry(3, vec![result("1", "x")]),
        head(4, 3, vec![user("summary"), assistant("kept", &["1"])]),
        entry(5, vec![user("b")]),
    ];
    // The head comes first, so that its call precedes the result.
    assert_eq!(short(&at(&entries, 5).messages), ["u:summary", "a:kept", "r:1:x", "u:b"]);
}
