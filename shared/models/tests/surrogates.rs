//! A character whose two UTF-16 units come in different events: JavaScript appends them, so pi-ai's answer has the character.
//! Between the two events the text is one that can be stored: without the half.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::convert::Infallible;

use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _};
use picofleet_delta::Json;
use picofleet_models::anthropic::{self, AnthropicDecoder};
use picofleet_models::http::{Decoder, StreamEnd};
use picofleet_models::model::Model;
use picofleet_models::openai_chat::{self, OpenAiChatDecoder};
use picofleet_models::openai_responses::{self, ResponsesDecoder};
use picofleet_models::provider::{Partial, StreamEvent};
use picofleet_models::sse::{self, Limits};
use picofleet_session::Millis;
use picofleet_session::message::{AssistantBlock, AssistantMessage, StopReason};

fn model(api: &str) -> Model {
    let text = format!(
        r#"{{"id":"m","name":"M","api":"{api}","provider":"acme","baseUrl":"","reasoning":true,"input":["text"],
            "cost":{{"input":0,"output":0,"cacheRead":0,"cacheWrite":0}},"contextWindow":1000,"maxTokens":100}}"#
    );
    text.parse::<Json>().unwrap().to().unwrap()
}

/// Decodes events, in one piece and byte by byte, and checks that what readers see can be stored at any time.
fn decode<D: Decoder>(events: &[String], decoder: impl Fn() -> D) -> (Vec<StreamEvent>, AssistantMessage) {
    let body: String = events.iter().map(|data| data.clone() + "\n\n").collect();
    let run = |chunks: Vec<&[u8]>| {
        let chunks: Vec<_> = chunks.into_iter().map(|chunk| Ok::<_, Infallible>(Bytes::copy_from_slice(chunk))).collect();
        let messages: Vec<_> = sse::messages(futures::stream::iter(chunks), Limits::default()).collect().now_or_never().unwrap();
        let (mut decoder, mut out) = (decoder(), Vec::new());
        decoder.start(&mut out);
        for message in messages {
            if decoder.message(message.unwrap(), &mut out).is_break() {
                break;
            }
        }
        decoder.end(StreamEnd::Complete, &mut out);
        out
    };
    let out = run(vec![body.as_bytes()]);
    assert_eq!(run(body.as_bytes().chunks(1).collect()), out);
    let mut partial = Partial::default();
    for event in &out {
        partial.apply(event);
        let message = partial.message().unwrap();
        let stored = Json::parse(&Json::from_serde(&message).unwrap().to_vec()).unwrap().to::<AssistantMessage>().unwrap();
        assert_eq!(stored, message);
    }
    let message = partial.message().unwrap();
    assert_eq!(Some(&message), out.last().unwrap().final_message());
    (out, message)
}

fn delta(event: &StreamEvent) -> Option<&str> {
    match event {
        StreamEvent::TextDelta { delta, .. } | StreamEvent::ThinkingDelta { delta, .. } | StreamEvent::ToolCallDelta { delta, .. } => {
            Some(delta)
        }
        _ => None,
    }
}

fn deltas(events: &[StreamEvent]) -> Vec<&str> {
    events.iter().filter_map(delta).collect()
}

/// What a thought, a text and a call of an answer say.
fn said(message: &AssistantMessage) -> [String; 3] {
    let mut said = <[String; 3]>::default();
    for block in &message.content {
        match block {
            AssistantBlock::Thinking(thinking) => said[0] += &thinking.thinking,
            AssistantBlock::Text(text) => said[1] += &text.text,
            AssistantBlock::ToolCall(call) => said[2] += &call.arguments.to_string(),
        }
    }
    said
}

fn check(events: &[StreamEvent], message: &AssistantMessage) {
    assert_eq!(message.stop_reason, StopReason::ToolUse, "{message:?}");
    assert_eq!(said(message), ["t😀h", "a😀b", r#"{"p":"x😀y"}"#]);
    assert_eq!(deltas(events), ["t", "😀h", "a", "😀b", "{\"p\":\"x", "😀y\"}"]);
}

/// Three pairs of pieces that are cut within a character: of a thought, of a text and of arguments.
const PIECES: [[&str; 2]; 3] = [[r"t\ud83d", r"\ude00h"], [r"a\ud83d", r"\ude00b"], [r#"{\"p\":\"x\uD83D"#, r#"\uDE00y\"}"#]];

#[test]
fn chat_completions() {
    let chunk = |delta: &str| format!(r#"data: {{"choices":[{{"index":0,"delta":{{{delta}}}}}]}}"#);
    let call =
        |head: &str, piece: &str| chunk(&format!(r#""tool_calls":[{{"index":0,{head}"function":{{"name":"f","arguments":"{piece}"}}}}]"#));
    let [thinking, text, arguments] = PIECES;
    let mut events: Vec<String> = thinking.iter().map(|piece| chunk(&format!(r#""reasoning":"{piece}""#))).collect();
    events.extend(text.iter().map(|piece| chunk(&format!(r#""content":"{piece}""#))));
    events.extend([call(r#""id":"c","#, arguments[0]), call("", arguments[1])]);
    events.push(r#"data: {"choices":[{"delta":{},"finish_reason":"tool_calls"}]}"#.to_owned());
    let (events, message) = decode(&events, || OpenAiChatDecoder::new(&model(openai_chat::API), Millis(7)));
    check(&events, &message);
}

#[test]
fn details_of_chat_completions() {
    let chunk =
        |text: &str| format!(r#"data: {{"choices":[{{"delta":{{"reasoning_details":[{{"type":"reasoning.text","text":"{text}"}}]}}}}]}}"#);
    let end = r#"data: {"choices":[{"delta":{},"finish_reason":"stop"}]}"#.to_owned();
    let events = [chunk(r"t\ud83d"), chunk(r"\ude00h"), end];
    let (_, message) = decode(&events, || OpenAiChatDecoder::new(&model(openai_chat::API), Millis(7)));
    let AssistantBlock::Thinking(thinking) = &message.content[0] else { panic!("{message:?}") };
    assert_eq!(thinking.thinking_signature.as_deref(), Some(r#"[{"type":"reasoning.text","text":"t😀h"}]"#));
}

#[test]
fn half_a_character_alone_begins_a_text() {
    let chunk = |text: &str| format!(r#"data: {{"choices":[{{"delta":{{"content":"{text}"}}}}]}}"#);
    let end = r#"data: {"choices":[{"delta":{},"finish_reason":"stop"}]}"#.to_owned();
    let events = [chunk(r"\ud83d"), chunk(r"\ude00"), chunk(r"\ud83d"), end];
    let (events, message) = decode(&events, || OpenAiChatDecoder::new(&model(openai_chat::API), Millis(7)));
    assert_eq!(deltas(&events), ["", "😀", ""]);
    assert_eq!(said(&message)[1], "😀");
}

#[test]
fn anthropic_messages() {
    let event = |kind: &str, rest: &str| format!("event: {kind}\ndata: {{\"type\":\"{kind}\",{rest}}}");
    let kinds = [
        (r#"{"type":"thinking","thinking":"","signature":""}"#, "thinking_delta", "thinking"),
        (r#"{"type":"text","text":""}"#, "text_delta", "text"),
        (r#"{"type":"tool_use","id":"c","name":"f","input":{}}"#, "input_json_delta", "partial_json"),
    ];
    let mut events = vec![event("message_start", r#""message":{"id":"r","usage":{}}"#)];
    for (index, ((block, delta, member), pieces)) in kinds.into_iter().zip(PIECES).enumerate() {
        events.push(event("content_block_start", &format!(r#""index":{index},"content_block":{block}"#)));
        let delta = |piece| format!(r#""index":{index},"delta":{{"type":"{delta}","{member}":"{piece}"}}"#);
        events.extend(pieces.map(|piece| event("content_block_delta", &delta(piece))));
        events.push(event("content_block_stop", &format!(r#""index":{index}"#)));
    }
    events.push(event("message_delta", r#""delta":{"stop_reason":"tool_use"}"#));
    events.push(event("message_stop", r#""x":0"#));
    let (events, message) = decode(&events, || AnthropicDecoder::new(&model(anthropic::API), Millis(7)));
    check(&events, &message);
}

#[test]
fn an_anthropic_block_that_starts_with_half_a_character() {
    let events = [
        ("message_start", r#""message":{}"#),
        ("content_block_start", r#""index":0,"content_block":{"type":"text","text":"a\ud83d"}"#),
        ("content_block_delta", r#""index":0,"delta":{"type":"text_delta","text":"\ude00"}"#),
        ("content_block_stop", r#""index":0"#),
        ("message_delta", r#""delta":{"stop_reason":"end_turn"}"#),
    ];
    let mut out = Vec::new();
    let mut decoder = AnthropicDecoder::new(&model(anthropic::API), Millis(7));
    decoder.start(&mut out);
    for (kind, rest) in events {
        let message = sse::SseMessage { event: Some(kind.to_owned()), data: format!("{{\"type\":\"{kind}\",{rest}}}") };
        assert!(decoder.message(message, &mut out).is_continue());
    }
    decoder.end(StreamEnd::Complete, &mut out);
    assert_eq!(said(out.last().unwrap().final_message().unwrap())[1], "a😀");
}

#[test]
fn openai_responses() {
    let kinds = [
        (r#"{"type":"reasoning","id":"rs"}"#, "response.reasoning_summary_text.delta", r#"{"type":"reasoning","id":"rs","summary":[]}"#),
        (
            r#"{"type":"message","id":"m"}"#,
            "response.output_text.delta",
            r#"{"type":"message","id":"m","content":[{"type":"output_text","text":"a\ud83d\ude00b"}]}"#,
        ),
        (
            r#"{"type":"function_call","id":"fc","call_id":"c","name":"f","arguments":""}"#,
            "response.function_call_arguments.delta",
            r#"{"type":"function_call","id":"fc","call_id":"c","name":"f"}"#,
        ),
    ];
    let mut events = Vec::new();
    for (index, ((item, delta, done), pieces)) in kinds.into_iter().zip(PIECES).enumerate() {
        events.push(format!(r#"data: {{"type":"response.output_item.added","output_index":{index},"item":{item}}}"#));
        events.extend(pieces.map(|piece| format!(r#"data: {{"type":"{delta}","output_index":{index},"delta":"{piece}"}}"#)));
        events.push(format!(r#"data: {{"type":"response.output_item.done","output_index":{index},"item":{done}}}"#));
    }
    events.push(r#"data: {"type":"response.completed","response":{"status":"completed"}}"#.to_owned());
    let (events, message) = decode(&events, || ResponsesDecoder::new(&model(openai_responses::API), Millis(7)));
    check(&events, &message);
}
