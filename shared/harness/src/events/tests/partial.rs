//! The part of a response that comes in, as somebody has it who knows events only.

use picofleet_delta::Tracker;
use picofleet_session::message::{AssistantBlock, TextContent, ThinkingContent, ToolCall, Usage};
use picofleet_session::{Json, Op, Segment, apply, ops_to_json};
use proptest::prelude::*;

use super::{assistant, attempt, mount, tell};
use crate::events::{AgentEvent, MessageChange};
use crate::frame::DocumentFrame;
use crate::live::LIVE;
use crate::view::tests::{frame, point};

/// A change of a message that comes in.
#[derive(Clone, Debug)]
enum Edit {
    Push(u8),
    Text(usize, String),
    Argument(usize, String),
    Field(usize),
    Replace(usize, u8),
    Insert(usize, u8),
    Remove(usize),
    Usage(u64),
    Other(u64),
}

fn edits() -> impl Strategy<Value = Vec<Vec<Edit>>> {
    let edit = prop_oneof![
        4 => (0..3_u8).prop_map(Edit::Push),
        6 => (0..6_usize, "[ab]{1,3}").prop_map(|(at, text)| Edit::Text(at, text)),
        4 => (0..6_usize, "[ab]{1,3}").prop_map(|(at, text)| Edit::Argument(at, text)),
        1 => (0..6_usize).prop_map(Edit::Field),
        1 => (0..6_usize, 0..3_u8).prop_map(|(at, kind)| Edit::Replace(at, kind)),
        1 => (0..6_usize, 0..3_u8).prop_map(|(at, kind)| Edit::Insert(at, kind)),
        1 => (0..6_usize).prop_map(Edit::Remove),
        2 => (0..9_u64).prop_map(Edit::Usage),
        1 => (0..9_u64).prop_map(Edit::Other),
    ];
    prop::collection::vec(prop::collection::vec(edit, 0..6), 1..12)
}

fn block(kind: u8) -> Json {
    let block = match kind {
        0 => AssistantBlock::Text(TextContent::new("t")),
        1 => AssistantBlock::Thinking(ThinkingContent { thinking: "h".into(), ..ThinkingContent::default() }),
        _ => AssistantBlock::ToolCall(ToolCall {
            id: "c".into(),
            name: "n".into(),
            arguments: Json::object([("list", Json::array(["x"]))]),
            thought_signature: None,
            namespace: None,
            arguments_error: None,
        }),
    };
    Json::from_serde(&block).unwrap()
}

fn edit(live: picofleet_session::Draft<'_>, edit: &Edit) {
    let message = live.key("generation").key("message");
    let content = message.key("content");
    let blocks: Vec<Json> = content.get().unwrap().as_array().unwrap().iter().cloned().collect();
    let at = |index: &usize| blocks.get(*index).map(|block| (*index, block.get("type").unwrap().as_str().unwrap().into_owned()));
    match edit {
        Edit::Push(kind) => content.push(block(*kind)).unwrap(),
        Edit::Text(index, text) => match at(index) {
            Some((index, kind)) if kind != "toolCall" => content.index(index).key(&kind).append(text).unwrap(),
            _ => {}
        },
        Edit::Argument(index, text) => match at(index) {
            Some((index, kind)) if kind == "toolCall" => {
                content.index(index).key("arguments").key("list").index(0).append(text).unwrap();
            }
            _ => {}
        },
        Edit::Field(index) => at(index).into_iter().for_each(|(index, _)| content.index(index).key("signature").set("s").unwrap()),
        Edit::Replace(index, kind) => at(index).into_iter().for_each(|(index, _)| content.index(index).set(block(*kind)).unwrap()),
        Edit::Insert(index, kind) => content.splice((*index).min(blocks.len()), 0, vec![block(*kind)]).unwrap(),
        Edit::Remove(index) => at(index).into_iter().for_each(|(index, _)| content.splice(index, 1, Vec::new()).unwrap()),
        Edit::Usage(input) => message.key("usage").key("input").set(*input).unwrap(),
        Edit::Other(number) => message.key("timestamp").set(*number).unwrap(),
    }
}

/// A message as an observer has it who knows events only.
fn observe(message: &Json, usage: &Usage, changes: &[MessageChange]) -> Json {
    let key = |parts: &[Segment]| parts.to_vec();
    let content = |index: usize, rest: &[Segment]| {
        [Segment::from("content"), Segment::from(index)].into_iter().chain(rest.iter().cloned()).collect::<Vec<_>>()
    };
    let op = |change: &MessageChange| match change.clone() {
        MessageChange::TextStart { content_index, block }
        | MessageChange::ThinkingStart { content_index, block }
        | MessageChange::ToolcallStart { content_index, block } => {
            Op::Splice { path: key(&[Segment::from("content")]), index: content_index, remove: 0, items: vec![block] }
        }
        MessageChange::TextDelta { content_index, delta } => Op::Append(content(content_index, &[Segment::from("text")]), delta.into()),
        MessageChange::ThinkingDelta { content_index, delta } => {
            Op::Append(content(content_index, &[Segment::from("thinking")]), delta.into())
        }
        MessageChange::ToolcallDelta { content_index, path, delta } => {
            let path: Vec<Segment> = std::iter::once(Segment::from("arguments")).chain(path).collect();
            Op::Append(content(content_index, &path), delta.into())
        }
        MessageChange::Block { content_index, block } => Op::Set(content(content_index, &[]), block),
        MessageChange::Message { message } => Op::Replace(message),
    };
    let usage = Op::Set(key(&[Segment::from("usage")]), Json::from_serde(usage).unwrap());
    let ops: Vec<Op> = changes.iter().map(op).chain([usage]).collect();
    apply(Some(message), &ops).unwrap()
}

proptest! {
    /// Somebody who applies what events say has the committed part.
    #[test]
    fn the_changes_of_a_message_make_the_committed_one(commits in edits()) {
        let first = Json::from_serde(&assistant("a")).unwrap();
        let mut before = mount(&attempt(Some(first.clone())));
        let mut seen = first;
        for edits in commits {
            let tracker = Tracker::new(before.get(LIVE.kind).unwrap().clone()).unwrap();
            let change = tracker.begin();
            edits.iter().for_each(|one| edit(change.draft(), one));
            let prepared = change.prepare();
            let mut frame = frame(point(before.at().0.0 + 1), Some(before.at()));
            frame.documents.push((LIVE.kind.to_owned(), DocumentFrame::Ops(ops_to_json(&prepared.ops))));
            for event in tell(&before, &frame) {
                let AgentEvent::MessageUpdate { usage, changes } = event else { panic!("{event:?}") };
                seen = observe(&seen, &usage, &changes);
            }
            before.advance(&frame).unwrap();
            let committed = before.get(LIVE.kind).unwrap().get("generation").unwrap().get("message").unwrap();
            prop_assert_eq!(&seen, committed);
        }
    }
}
