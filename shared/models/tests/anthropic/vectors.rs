//! The golden vectors: what is sent, and what bytes come to.

use std::convert::Infallible;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _};
use picofleet_delta::Json;
use picofleet_models::anthropic::{AnthropicDecoder, request};
use picofleet_models::http::{Decoder, HttpError, StatusError, StreamEnd};
use picofleet_models::model::Model;
use picofleet_models::provider::StreamEvent;
use picofleet_models::sse::{self, Limits};
use picofleet_session::Millis;
use secrecy::SecretString;
use serde::de::DeserializeOwned;

/// Every record of a file; the directory may be replaced by `PICOFLEET_VECTORS`.
pub(crate) fn records(name: &str) -> Vec<Json> {
    let directory = std::env::var_os("PICOFLEET_VECTORS")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors"), PathBuf::from);
    read(&directory.join(name))
}

/// Records of the same form that were made with the same pi-ai for this adapter: its members of `compat`, budgets, strict
/// tools, refusals and streams out of order.
fn own_records(name: &str) -> Vec<Json> {
    read(&PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/anthropic").join(name))
}

fn read(path: &Path) -> Vec<Json> {
    let text = std::fs::read_to_string(path).unwrap();
    let records: Vec<Json> = text.lines().map(|line| line.parse().unwrap()).collect();
    assert!(!records.is_empty(), "{} is empty", path.display());
    records
}

pub(crate) fn field<T: DeserializeOwned>(record: &Json, name: &str) -> T {
    let value = record.get(name).unwrap_or_else(|| panic!("{name} is missing in {record}"));
    value.to().unwrap_or_else(|error| panic!("{name} of {record}: {error}"))
}

fn same(record: &Json, what: &str, expected: &Json, actual: &Json, differences: &mut Vec<String>) {
    if expected != actual {
        differences.push(format!("{} {what}\n  expected {expected}\n  got      {actual}", record.get("id").unwrap()));
    }
}

#[test]
fn requests() {
    let mut differences = Vec::new();
    for record in records("pi-ai-request-anthropic.jsonl").into_iter().chain(own_records("requests.jsonl")) {
        let expected = record.get("request").unwrap();
        let headers = expected.get("headers").unwrap().as_object().unwrap();
        let key = headers.get("x-api-key").map(|key| SecretString::from(key.as_str().unwrap().into_owned()));
        let (model, context, options) = (field(&record, "model"), field(&record, "context"), field(&record, "options"));
        let request = request(&model, &context, &options, key.as_ref(), Millis(7)).unwrap();
        same(&record, "path", expected.get("path").unwrap(), &Json::from(request.path()), &mut differences);
        same(&record, "body", expected.get("body").unwrap(), &Json::parse(request.body()).unwrap(), &mut differences);
        let value = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap());
        for (name, expected) in headers.iter() {
            same(&record, name, expected, &Json::from(value(name)), &mut differences);
        }
        for name in ["anthropic-beta", "x-session-id", "x-session-affinity", "authorization"] {
            assert!(headers.get(name).is_some() || value(name).is_none(), "{record} sends {name}");
        }
    }
    assert!(differences.is_empty(), "{} differ\n{}", differences.len(), differences.join("\n"));
}

/// What a decoder makes of a body that comes in chunks.
fn decode(record: &Json, chunks: impl IntoIterator<Item = Vec<u8>>) -> Vec<StreamEvent> {
    let model: Model = field(record, "model");
    let mut decoder = AnthropicDecoder::new(&model, Millis(5));
    let mut events = Vec::new();
    let status: u16 = field(record, "status");
    if status != 200 {
        let body = field(record, "body");
        let refusal = StatusError { status, body, request_id: None, retry_after_ms: None, should_retry: None };
        decoder.end(StreamEnd::Failed(HttpError::Status(refusal)), &mut events);
        return events;
    }
    decoder.start(&mut events);
    let chunks: Vec<_> = chunks.into_iter().map(|chunk| Ok::<_, Infallible>(Bytes::from(chunk))).collect();
    let messages = sse::messages(futures::stream::iter(chunks), Limits::default()).collect::<Vec<_>>().now_or_never().unwrap();
    let cut = record.get("connectionCutAfterBody").is_some();
    let mut end = match cut {
        true => StreamEnd::Failed(HttpError::Cut { cause: "other side closed (UND_ERR_SOCKET)".to_owned() }),
        false => StreamEnd::Complete,
    };
    for message in messages {
        if decoder.message(message.unwrap(), &mut events) == ControlFlow::Break(()) {
            end = StreamEnd::Complete;
            break;
        }
    }
    decoder.end(end, &mut events);
    events
}

/// The text without what a JavaScript engine says about bad JSON; see `tests/vectors/README.md`.
fn masked(text: &str) -> String {
    match (text.find(": "), text.find("; data=")) {
        (Some(start), Some(end)) if text.starts_with("Could not parse") => format!("{}{}", &text[..start], &text[end..]),
        _ => text.split_once("\n\nReceived arguments:").map_or_else(|| text.to_owned(), |(_, arguments)| arguments.to_owned()),
    }
}

/// A value whose texts from an engine are masked, wherever they are.
fn mask(value: &Json) -> Json {
    if let Some(items) = value.as_array() {
        return items.iter().map(mask).collect();
    }
    let Some(members) = value.as_object() else { return value.clone() };
    Json::object(members.iter().map(|(key, value)| match key {
        "argumentsError" | "errorMessage" => (key, Json::from(masked(&value.as_str().unwrap()))),
        _ => (key, mask(value)),
    }))
}

/// The events as the vectors have them: an end of a call does not have the call.
fn summaries(events: &[StreamEvent]) -> Json {
    let summary = |event: &StreamEvent| match event {
        StreamEvent::ToolCallEnd { index, .. } => Json::array([Json::from("toolcall_end"), Json::from(*index)]),
        other => other.summary(),
    };
    events.iter().map(summary).collect()
}

#[test]
fn streams() {
    let mut differences = Vec::new();
    for record in records("pi-ai-stream-anthropic.jsonl").into_iter().chain(own_records("streams.jsonl")) {
        let body: String = field(&record, "body");
        let events = decode(&record, [body.clone().into_bytes()]);
        assert_eq!(decode(&record, body.bytes().map(|byte| vec![byte])), events, "byte by byte: {record}");
        same(&record, "events", record.get("events").unwrap(), &summaries(&events), &mut differences);
        let message = Json::from_serde(events.last().unwrap().final_message().unwrap()).unwrap();
        let message = Json::object(message.as_object().unwrap().iter().filter(|(key, _)| *key != "timestamp"));
        let role = Json::build_object().with("role", "assistant").build();
        let message = Json::object(role.as_object().unwrap().iter().chain(message.as_object().unwrap().iter()));
        same(&record, "message", &mask(record.get("message").unwrap()), &mask(&message), &mut differences);
    }
    assert!(differences.is_empty(), "{} differ\n{}", differences.len(), differences.join("\n"));
}
