//! The golden vectors: what is sent, and what bytes come to.

use std::convert::Infallible;
use std::path::PathBuf;

use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _};
use picofleet_delta::Json;
use picofleet_models::http::{Decoder as _, HttpError, StatusError, StreamEnd};
use picofleet_models::model::Model;
use picofleet_models::openai_chat::{OpenAiChatDecoder, request};
use picofleet_models::provider::StreamEvent;
use picofleet_models::sse::{self, Limits};
use picofleet_session::Millis;
use secrecy::SecretString;
use serde::de::DeserializeOwned;

/// Every record of a file; the directory may be replaced by `PICOFLEET_VECTORS`.
pub(crate) fn records(name: &str) -> Vec<Json> {
    let directory = std::env::var_os("PICOFLEET_VECTORS")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors"), PathBuf::from);
    let text = std::fs::read_to_string(directory.join(name)).unwrap();
    let records: Vec<Json> = text.lines().map(|line| line.parse().unwrap()).collect();
    assert!(!records.is_empty(), "{name} is empty");
    records
}

/// Records made with pi-ai in the same way, for what the golden vectors leave out.
fn own_records(text: &str) -> Vec<Json> {
    text.lines().map(|line| line.parse().unwrap()).collect()
}

pub(crate) fn raw<'a>(record: &'a Json, name: &str) -> &'a Json {
    record.get(name).unwrap_or_else(|| panic!("{name} is missing in {record}"))
}

pub(crate) fn field<T: DeserializeOwned>(record: &Json, name: &str) -> T {
    raw(record, name).to().unwrap_or_else(|error| panic!("{name} of {record}: {error}"))
}

#[derive(Default)]
pub(crate) struct Differences(Vec<String>);

impl Differences {
    pub(crate) fn same(&mut self, record: &Json, what: &str, expected: &Json, actual: &Json) {
        if expected != actual {
            self.0.push(format!("{} {what}\n  expected {expected}\n  got      {actual}", raw(record, "id")));
        }
    }

    pub(crate) fn assert_none(self) {
        assert!(self.0.is_empty(), "{} differ\n{}", self.0.len(), self.0.join("\n"));
    }
}

#[test]
fn requests() {
    let mut differences = Differences::default();
    for record in records("pi-ai-request-chat.jsonl").into_iter().chain(own_records(include_str!("requests.jsonl"))) {
        let key = SecretString::from("dummy-key");
        let (model, context, options) = (field(&record, "model"), field(&record, "context"), field(&record, "options"));
        let request = request(&model, &context, &options, Some(&key), Millis(7));
        if let Some(error) = record.get("error") {
            differences.same(&record, "error", error, &Json::from(request.unwrap_err().to_string()));
            continue;
        }
        let request = request.unwrap();
        let expected = raw(&record, "request");
        assert_eq!(*raw(expected, "method"), "POST");
        differences.same(&record, "path", raw(expected, "path"), &Json::from(request.path()));
        differences.same(&record, "body", raw(expected, "body"), &Json::parse(request.body()).unwrap());
        let value = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap());
        let headers = raw(expected, "headers").as_object().unwrap();
        for (name, expected) in headers.iter() {
            differences.same(&record, name, expected, &Json::from(value(name)));
        }
        for name in ["session_id", "x-client-request-id", "x-session-affinity", "x-session-id"] {
            assert!(headers.contains_key(name) || value(name).is_none(), "{record} sends {name}");
        }
        assert!(!format!("{request:?}").contains("dummy-key"), "{request:?}");
    }
    differences.assert_none();
}

/// What bytes come to, in pieces as given.
pub(crate) fn decode(model: &Model, pieces: Vec<Bytes>, end: StreamEnd) -> Vec<StreamEvent> {
    let mut decoder = OpenAiChatDecoder::new(model, Millis(5));
    let mut events = Vec::new();
    decoder.start(&mut events);
    let pieces = futures::stream::iter(pieces.into_iter().map(Ok::<_, Infallible>));
    let messages: Vec<_> = sse::messages(pieces, Limits::default()).collect().now_or_never().unwrap();
    for message in messages {
        if decoder.message(message.unwrap(), &mut events).is_break() {
            decoder.end(StreamEnd::Complete, &mut events);
            return events;
        }
    }
    decoder.end(end, &mut events);
    events
}

/// How a recorded answer ended: the text of a cut is node's.
fn end_of(record: &Json) -> StreamEnd {
    if record.get("connectionCutAfterBody").is_some() {
        let cause = "other side closed (UND_ERR_SOCKET)".to_owned();
        return StreamEnd::Failed(HttpError::Cut { cause });
    }
    StreamEnd::Complete
}

/// An event as the vectors have it; they leave out the call of an end.
pub(crate) fn summary(event: &StreamEvent) -> Json {
    match event {
        StreamEvent::ToolCallEnd { index, .. } => Json::array([Json::from("toolcall_end"), Json::from(*index)]),
        other => other.summary(),
    }
}

/// A final message as the vectors have it: without times, and without the engine's words on malformed arguments.
pub(crate) fn comparable(message: &Json) -> Json {
    let object = message.as_object().unwrap();
    let entries = object.iter().filter(|(key, _)| !matches!(*key, "timestamp" | "durationMs")).map(|(key, value)| match key {
        "content" => (key, Json::array(value.as_array().unwrap().iter().map(without_engine_words))),
        _ => (key, value.clone()),
    });
    Json::object(entries)
}

fn without_engine_words(block: &Json) -> Json {
    let entries = block.as_object().unwrap().iter().map(|(key, value)| match key {
        "argumentsError" => (key, Json::from(value.as_str().unwrap().split_once("\n\n").unwrap().1)),
        _ => (key, value.clone()),
    });
    Json::object(entries)
}

fn compare(record: &Json, events: &[StreamEvent], how: &str, differences: &mut Differences) {
    let summaries: Vec<Json> = events.iter().map(summary).collect();
    differences.same(record, how, raw(record, "events"), &Json::array(summaries));
    let message = events.last().unwrap().final_message().unwrap();
    let message = Json::from_serde(&picofleet_session::message::Message::from(message.clone())).unwrap();
    differences.same(record, how, &comparable(raw(record, "message")), &comparable(&message));
}

#[test]
fn streams() {
    let mut differences = Differences::default();
    for record in records("pi-ai-stream-chat.jsonl").into_iter().chain(own_records(include_str!("streams.jsonl"))) {
        let (model, status): (Model, u16) = (field(&record, "model"), field(&record, "status"));
        let body: String = field(&record, "body");
        if status != 200 {
            let refusal = StatusError { status, body, request_id: None, retry_after_ms: None, should_retry: None };
            let mut events = Vec::new();
            OpenAiChatDecoder::new(&model, Millis(5)).end(StreamEnd::Failed(refusal.into()), &mut events);
            compare(&record, &events, "refused", &mut differences);
            continue;
        }
        let whole = decode(&model, vec![body.clone().into()], end_of(&record));
        compare(&record, &whole, "in one piece", &mut differences);
        let bytes = body.bytes().map(|byte| Bytes::copy_from_slice(&[byte])).collect();
        assert_eq!(decode(&model, bytes, end_of(&record)), whole, "byte by byte: {record}");
    }
    differences.assert_none();
}
