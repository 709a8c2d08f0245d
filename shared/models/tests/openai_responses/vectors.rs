//! The golden vectors. Every record is checked.

use std::convert::Infallible;

use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _};
use picofleet_delta::{Json, JsonRef};
use picofleet_models::http::{Decoder as _, StreamEnd};
use picofleet_models::model::Model;
use picofleet_models::openai_responses::{ResponsesDecoder, request};
use picofleet_models::provider::{Partial, StreamEvent, StreamOptions};
use picofleet_models::sse::{self, Limits};
use picofleet_session::Millis;
use picofleet_session::message::{AssistantBlock, AssistantMessage, StopReason};

use crate::server::{Reply, Server, Then};
use crate::{KEY, events, field, last, model, own_records, provider, raw, records};

#[test]
fn requests() {
    let mut differences = Vec::new();
    for record in records("pi-ai-request-responses.jsonl").into_iter().chain(own_records("requests.jsonl")) {
        let expected = raw(&record, "request");
        let options: StreamOptions = field(&record, "options");
        let request = request(&field(&record, "model"), &field(&record, "context"), &options, Some(&KEY.into())).unwrap();
        let mut compare = |what: &str, expected: &Json, actual: &Json| {
            if expected != actual {
                differences.push(format!("{} {what}: expected {expected}\n  got {actual}", raw(&record, "id")));
            }
        };
        compare("path", raw(expected, "path"), &Json::from(request.path()));
        compare("body", raw(expected, "body"), &Json::parse(request.body()).unwrap());
        for (name, value) in raw(expected, "headers").as_object().unwrap() {
            let header = request.headers().get(name).map(|value| value.to_str().unwrap());
            compare(name, value, &header.map_or_else(Json::null, Json::from));
        }
        let others = ["session-id", "x-session-id", "x-client-request-id"];
        for name in others.into_iter().filter(|name| raw(expected, "headers").get(name).is_none()) {
            compare(name, &Json::null(), &Json::from(request.headers().get(name).is_some().then_some(1)));
        }
    }
    assert!(differences.is_empty(), "{} differ\n{}", differences.len(), differences.join("\n"));
}

/// What a decoder makes of a body in chunks.
fn decode(model: &Model, chunks: impl IntoIterator<Item = Vec<u8>>) -> Vec<StreamEvent> {
    let chunks: Vec<_> = chunks.into_iter().map(|chunk| Ok::<_, Infallible>(Bytes::from(chunk))).collect();
    let messages: Vec<_> = sse::messages(futures::stream::iter(chunks), Limits::default()).collect().now_or_never().unwrap();
    let mut decoder = ResponsesDecoder::new(model, Millis(7));
    let mut events = Vec::new();
    decoder.start(&mut events);
    for message in messages {
        if decoder.message(message.unwrap(), &mut events).is_break() {
            break;
        }
    }
    decoder.end(StreamEnd::Complete, &mut events);
    events
}

fn check(record: &Json, events: &[StreamEvent], differences: &mut Vec<String>) {
    let mut compare = |what: &str, expected: &Json, actual: &Json| {
        if expected != actual {
            differences.push(format!("{} {what}: expected {expected}\n  got {actual}", raw(record, "id")));
        }
    };
    // The vectors leave the call out of its end.
    let summary = events.iter().map(|event| match event {
        StreamEvent::ToolCallEnd { index, .. } => Json::array([Json::from(event.name()), Json::from(*index)]),
        event => event.summary(),
    });
    compare("events", raw(record, "events"), &Json::array(summary));
    compare("message", &comparable(raw(record, "message")), &comparable(&message_json(&last(events))));
}

fn message_json(message: &AssistantMessage) -> Json {
    let json = Json::from_serde(message).unwrap();
    let members = json.as_object().unwrap().iter().map(|(key, value)| (key, value.clone()));
    Json::object([("role", Json::from("assistant"))].into_iter().chain(members))
}

/// A value without times, and without the first line of `argumentsError`, which is the parser's own.
fn comparable(value: &Json) -> Json {
    match value.as_ref() {
        JsonRef::Array(items) => Json::array(items.iter().map(comparable)),
        JsonRef::Object(members) => {
            let members = members.iter().filter(|(key, _)| !["timestamp", "durationMs"].contains(key));
            Json::object(members.map(|(key, value)| match value.as_str() {
                Some(text) if key == "argumentsError" => (key, Json::from(text.split_once('\n').unwrap().1)),
                _ => (key, comparable(value)),
            }))
        }
        _ => value.clone(),
    }
}

#[test]
fn streams_in_one_piece_and_byte_by_byte() {
    let mut differences = Vec::new();
    let mut streams = 0;
    let records = records("pi-ai-stream-responses.jsonl").into_iter().chain(own_records("streams.jsonl"));
    for record in records.filter(|record| field::<u16>(record, "status") == 200) {
        let record = &record;
        let body: String = field(record, "body");
        let whole = decode(&field(record, "model"), [body.clone().into_bytes()]);
        assert_eq!(decode(&field(record, "model"), body.bytes().map(|byte| vec![byte])), whole, "{}", raw(record, "id"));
        check(record, &whole, &mut differences);
        streams += 1;
    }
    assert!(streams > 0);
    assert!(differences.is_empty(), "{} differ\n{}", differences.len(), differences.join("\n"));
}

#[tokio::test]
async fn streams_over_http() {
    let mut differences = Vec::new();
    let provider = provider();
    for record in records("pi-ai-stream-responses.jsonl") {
        let content_type = record.get("contentType").and_then(Json::as_str).map_or_else(|| "text/event-stream".to_owned(), Into::into);
        let cut = record.get("connectionCutAfterBody").and_then(Json::as_bool) == Some(true);
        let reply = Reply::new(field(&record, "status"), &content_type, field::<String>(&record, "body"));
        let server = Server::start([reply.uneven().then(if cut { Then::Cut } else { Then::End })]).await;
        let model = Model { base_url: server.base_url.clone(), ..field(&record, "model") };
        check(&record, &events(&provider, &model, &StreamOptions::default()).await, &mut differences);
    }
    assert!(differences.is_empty(), "{} differ\n{}", differences.len(), differences.join("\n"));
}

/// Readers that put the events together see what the final message says, save what only it has.
#[test]
fn events_add_up_to_the_message() {
    for record in records("pi-ai-stream-responses.jsonl").iter().filter(|record| field::<u16>(record, "status") == 200) {
        let events = decode(&field(record, "model"), [field::<String>(record, "body").into_bytes()]);
        let (terminal, before) = events.split_last().unwrap();
        let mut partial = Partial::default();
        before.iter().for_each(|event| partial.apply(event));
        let bare = |message: &AssistantMessage| {
            let mut content = message.content.clone();
            for block in &mut content {
                match block {
                    AssistantBlock::Text(text) => text.text_signature = None,
                    AssistantBlock::Thinking(thinking) => thinking.thinking_signature = None,
                    AssistantBlock::ToolCall(_) => {}
                }
            }
            content
        };
        assert_eq!(bare(&partial.message().unwrap()), bare(terminal.final_message().unwrap()), "{}", raw(record, "id"));
    }
}

fn failing(body: &str) -> AssistantMessage {
    let message = last(&decode(&model("http://127.0.0.1/v1"), [body.as_bytes().to_vec()]));
    assert_eq!(message.stop_reason, StopReason::Error);
    message
}

#[test]
fn failures_within_a_stream() {
    for (body, text) in [
        ("data: {\n\n", "Error reading response: malformed server-sent event JSON."),
        ("data: {\"type\":\"error\",\"code\":\"c\",\"message\":\"m\"}\n\n", "Error Code c: m"),
        ("event: error\ndata: {\"error\":{\"message\":\"inner\"}}\n\n", "inner"),
        ("data: {\"error\":{\"code\":1}}\n\n", "{\"code\":1}"),
        ("data: {\"type\":\"response.completed\",\"response\":{\"status\":\"odd\"}}\n\n", "Unhandled stop reason: odd"),
        ("data: [DONE]\n\n", "OpenAI Responses stream ended before a terminal response event"),
        ("", "OpenAI Responses stream ended before a terminal response event"),
    ] {
        assert_eq!(failing(body).error_message.unwrap(), text, "{body}");
    }
}

#[test]
fn nothing_counts_after_done() {
    let completed = r#"data: {"type":"response.completed","response":{"status":"completed"}}"#;
    let events = decode(&model("http://127.0.0.1/v1"), [format!("{completed}\n\ndata: [DONE]\n\ndata: {{\n\n").into_bytes()]);
    assert_eq!(last(&events).stop_reason, StopReason::Stop);
}

#[test]
fn an_open_call_shows_what_came_in() {
    let body = concat!(
        r#"data: {"type":"response.output_item.added","output_index":0,"item":{"type":"function_call","id":"fc_1","#,
        r#""call_id":"call_1","name":"read","arguments":"{\"path\":"}}"#,
        "\n\n",
        r#"data: {"type":"response.function_call_arguments.delta","output_index":0,"delta":"\"a"}"#,
        "\n\n",
    );
    let message = failing(body);
    let AssistantBlock::ToolCall(call) = &message.content[0] else { panic!("{message:?}") };
    assert_eq!(call.arguments, "{\"path\":\"a\"}".parse::<Json>().unwrap());
}

#[test]
fn items_without_a_start_or_an_index_are_taken() {
    let body = concat!(
        r#"data: {"type":"response.output_item.done","item":{"type":"message","id":"m","content":[{"type":"output_text","text":"x"}]}}"#,
        "\n\n",
        r#"data: {"type":"response.output_item.done","item":{"type":"web_search_call","id":"w"}}"#,
        "\n\n",
        r#"data: {"type":"response.completed","response":{"status":"completed","usage":{"input_tokens":1e99,"output_tokens":-5}}}"#,
        "\n\n",
    );
    let message = last(&decode(&model("http://127.0.0.1/v1"), [body.as_bytes().to_vec()]));
    assert_eq!((message.stop_reason, message.content.len()), (StopReason::Stop, 1));
    assert_eq!((message.usage.input, message.usage.output), (u64::MAX, 0));
}
