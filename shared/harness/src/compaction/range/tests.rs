use std::sync::Arc;

use picofleet_session::message::{StopReason, TextContent, ToolCall, ToolResultMessage, Usage, UserBlock, UserMessage};
use picofleet_session::{ContextEdit, EditAction, Json, Millis, ROOT_CONVERSATION_ID, derive_context};
use proptest::prelude::*;

use super::*;

fn id(number: usize) -> EntryId {
    EntryId::new(i64::try_from(number).unwrap() + 2).unwrap()
}

/// So many tokens of text.
fn words(tokens: usize) -> String {
    "w".repeat(tokens * 7 / 2)
}

fn user(tokens: usize) -> Message {
    Message::from(UserMessage { content: words(tokens).into(), timestamp: Millis(1) })
}

fn system(tokens: usize) -> SystemMessage {
    SystemMessage { content: words(tokens).into(), sections: None, tools_added: None, tools_removed: None, timestamp: Millis(1) }
}

fn answer(tokens: usize, calls: &[u8], usage: u64) -> Message {
    let call = |id: &u8| {
        AssistantBlock::ToolCall(ToolCall {
            id: id.to_string(),
            name: "t".to_owned(),
            arguments: Json::object::<&str, Json>([]),
            thought_signature: None,
            namespace: None,
            arguments_error: None,
        })
    };
    Message::from(AssistantMessage {
        content: std::iter::once(AssistantBlock::Text(TextContent::new(words(tokens)))).chain(calls.iter().map(call)).collect(),
        api: String::new(),
        provider: String::new(),
        model: String::new(),
        response_model: None,
        response_id: None,
        provider_thinking_level: None,
        thinking_level: None,
        diagnostics: None,
        usage: Usage { total_tokens: usage, ..Usage::default() },
        stop_reason: StopReason::Stop,
        deferred: None,
        error_message: None,
        raw_stop_reason: None,
        end_turn: None,
        timestamp: Millis(1),
        duration_ms: None,
    })
}

fn result(call: u8, tokens: usize) -> Message {
    Message::from(ToolResultMessage {
        tool_call_id: call.to_string(),
        tool_name: "t".to_owned(),
        content: vec![UserBlock::Text(TextContent::new(words(tokens)))],
        details: None,
        usage: None,
        nested_calls: None,
        is_error: false,
        timestamp: Millis(1),
        duration_ms: None,
    })
}

/// Entries with these messages; the marker, if there is one, is behind them and begins the context at its entry.
fn view(entries: Vec<Vec<Message>>, marker: Option<usize>) -> ContextView {
    let record = |(number, model): (usize, Vec<Message>)| EntryRecord {
        id: id(number),
        conversation_id: ROOT_CONVERSATION_ID,
        kind: "t".to_owned(),
        model: (!model.is_empty()).then_some(model),
        data: None,
        head: None,
        edits: None,
        by_task_id: None,
    };
    let records: Vec<EntryRecord> = entries.into_iter().enumerate().map(record).collect();
    match marker {
        None => derive_context(None, records),
        Some(from) => {
            let head = EntryRecord { head: Some(id(from)), ..record((records.len(), vec![user(10)])) };
            let range = records.into_iter().filter(|record| record.id >= id(from)).chain([head.clone()]);
            derive_context(Some(head), range)
        }
    }
}

fn cut(entries: Vec<Vec<Message>>, keep: i64) -> Option<usize> {
    let view = view(entries, None);
    Cut::select(&view, keep).map(|cut| cut.index)
}

#[test]
fn the_example_of_the_specification() {
    let entries = vec![
        vec![user(100)],
        vec![answer(100, &[1], 0)],
        vec![result(1, 3_000)],
        vec![answer(100, &[], 0)],
        vec![user(100)],
        vec![answer(100, &[], 0)],
    ];
    assert_eq!(cut(entries.clone(), 2_000), Some(3));
    assert_eq!(cut(entries.clone(), 300), Some(3));
    assert_eq!(cut(entries.clone(), 301), Some(3));
    assert_eq!(cut(entries.clone(), 200), Some(4));
    assert_eq!(cut(entries.clone(), 0), Some(5), "at least the newest entry is looked at");
    assert_eq!(cut(entries.clone(), -1), Some(5));
    assert_eq!(cut(entries, 100_000), None);
}

#[test]
fn the_head_marker_is_summarized_and_is_no_candidate() {
    let entries = || vec![vec![user(100)], vec![user(100)], vec![answer(100, &[], 0)], vec![user(100)], vec![answer(100, &[], 0)]];
    let of = view(entries(), Some(1));
    let cut = Cut::select(&of, 150).unwrap();
    assert_eq!(cut.first_kept(&of), Some(id(3)));
    assert_eq!(cut.entries(&of).iter().map(|entry| entry.id).collect::<Vec<_>>(), [id(5), id(1), id(2)]);
    assert_eq!(cut.messages(&of), [user(10), user(100), answer(100, &[], 0)]);
    assert_eq!(Cut::before(&of, id(3)), Some(cut));
    assert_eq!(Cut::before(&of, id(5)), None, "the marker");
    // Only the marker before the cut: nothing.
    assert_eq!(Cut::select(&view(entries(), Some(3)), 150), None);
    // Its own tokens do not count.
    assert_eq!(Cut::select(&view(entries(), Some(3)), 201), None);
    assert_eq!(Cut::select(&ContextView::default(), 0), None);
}

#[test]
fn a_summary_again_gains_only_what_came_since_the_last_one() {
    let behind = |summary: usize, since: usize| {
        let mut of = view(vec![vec![user(since)], vec![user(100)], vec![answer(100, &[], 0)]], Some(0));
        let others = of.contributions.iter().skip(1).map(<[Message]>::to_vec).collect::<Vec<_>>();
        of.contributions = std::iter::once(vec![user(summary)]).chain(others).collect();
        let kind = COMPACTED.kind;
        Arc::make_mut(of.head.as_mut().unwrap()).kind = kind.to_owned();
        Cut::select(&of, 150).unwrap().gains(&of)
    };
    assert!(behind(100, 101));
    assert!(!behind(100, 100) && !behind(1_000, 300));
    // Another head is nobody's summary.
    let of = view(vec![vec![user(10)], vec![user(100)], vec![answer(100, &[], 0)]], Some(0));
    assert!(Cut::select(&of, 150).unwrap().gains(&of));
}

#[test]
fn edits_count_as_they_are() {
    let mut records = view(vec![vec![user(100)], vec![user(3_000)], vec![answer(100, &[], 0)], vec![user(100)]], None).entries;
    let action = EditAction::Replace { messages: vec![user(10)] };
    Arc::make_mut(&mut records[3]).edits = Some(vec![ContextEdit { target: id(1), action }]);
    let of = derive_context(None, records);
    assert_eq!(Cut::select(&of, 205).and_then(|cut| cut.first_kept(&of)), Some(id(1)));
    assert_eq!(Cut::select(&of, 205).unwrap().messages(&of), [user(100)]);
}

#[test]
fn the_estimate_begins_at_the_newest_answer_behind_the_marker_that_reports_usage() {
    let entries = || vec![vec![user(10)], vec![answer(10, &[1], 500)], vec![user(20)], vec![result(1, 30)], vec![answer(5, &[], 0)]];
    let planned = system(7);
    // The result stands right behind its call, and the user behind that; both follow the answer.
    assert_eq!(context_tokens(&view(entries(), None), [&planned]), 500 + 30 + 20 + 5 + 7);
    assert_eq!(context_tokens(&view(entries(), None), []), 500 + 30 + 20 + 5);
    // Everything is older than the marker, so that all of it is estimated: the marker has 10 tokens, and the result lost its call.
    assert_eq!(context_tokens(&view(entries(), Some(2)), [&planned]), 10 + 20 + 5 + 7);
    let none = vec![vec![user(10)], vec![answer(10, &[], 0)]];
    assert_eq!(context_tokens(&view(none, None), []), 20);
}

fn message() -> impl Strategy<Value = Message> {
    let tokens = 0..40_usize;
    prop_oneof![
        tokens.clone().prop_map(user),
        tokens.clone().prop_map(|tokens| Message::from(system(tokens))),
        (tokens.clone(), prop::collection::vec(0..4_u8, 0..3)).prop_map(|(tokens, calls)| answer(tokens, &calls, 0)),
        (0..4_u8, tokens).prop_map(|(call, tokens)| result(call, tokens)),
    ]
}

fn contexts() -> impl Strategy<Value = ContextView> {
    let entries = prop::collection::vec(prop::collection::vec(message(), 0..3), 0..14);
    (entries, any::<prop::sample::Index>(), any::<bool>()).prop_map(|(entries, from, marked)| {
        let marker = (marked && !entries.is_empty()).then(|| from.index(entries.len()));
        view(entries, marker)
    })
}

proptest! {
    /// A cut parts the context and changes neither part: no result is lost and none is made up.
    #[test]
    fn both_parts_are_what_they_were(view in contexts(), keep in 0..200_i64) {
        let Some(cut) = Cut::select(&view, keep) else { return Ok(()) };
        let kept = order_messages(view.contributions.of(cut.index..view.contributions.len()));
        let together: Vec<Message> = cut.messages(&view).into_iter().chain(kept).collect();
        prop_assert_eq!(together, view.messages);
    }

    /// The cut is the one that the rules name, written down as they are in the specification.
    #[test]
    fn the_cut_is_the_one_of_the_rules(view in contexts(), keep in 0..200_i64) {
        let begin = usize::from(view.head.is_some());
        let count = view.contributions.len();
        let candidates: Vec<usize> = (begin..count)
            .filter(|index| matches!(view.contributions.of(*index..*index + 1).first(), Some(Message::User(_) | Message::Assistant(_))))
            .filter(|index| is_candidate(&view, *index))
            .collect();
        let sums = |from: usize| view.contributions.iter().skip(from).flatten().map(estimate_message_tokens).sum::<u64>();
        let reached = (begin..count).rev().find(|from| sums(*from) >= keep.unsigned_abs());
        let expected = reached.and_then(|reached| {
            let cut = candidates.iter().find(|index| **index >= reached).or_else(|| candidates.last())?;
            (!view.contributions.of(begin..*cut).is_empty()).then_some(*cut)
        });
        prop_assert_eq!(Cut::select(&view, keep).map(|cut| cut.index), expected);
        if let Some(cut) = Cut::select(&view, keep) {
            prop_assert_eq!(Cut::before(&view, cut.first_kept(&view).unwrap()), Some(cut));
        }
    }
}
