//! What the targets of the three decoders share.
//!
//! The first two bytes of an input choose a cut and whether the connection breaks off, the rest is the body of the answer.

use std::convert::Infallible;

use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _};
use picofleet_delta::Json;
use picofleet_models::http::{Decoder, HttpError, StreamEnd};
use picofleet_models::model::Model;
use picofleet_models::provider::{Partial, StreamEvent};
use picofleet_models::sse::{Limits, messages};
use picofleet_session::message::StopReason;

/// Texts of the events are at most this many times as long as the body: they come as deltas, at the end of their block and in
/// the answer, and a signature writes escapes that were single characters.
const GROWTH: usize = 64;

/// What an answer without a body has.
const LEAST: usize = 16 << 10;

/// A model of an API, as the golden vectors have it.
pub fn model(api: &str) -> Model {
    let text = format!(
        r#"{{"id": "model-1", "name": "Model 1", "api": "{api}", "provider": "acme", "baseUrl": "http://127.0.0.1/v1",
            "reasoning": true, "input": ["text", "image"], "contextWindow": 200000, "maxTokens": 8192,
            "cost": {{"input": 3, "output": 15, "cacheRead": 0.3, "cacheWrite": 3.75}}}}"#
    );
    text.parse::<Json>().expect("it is JSON").to().expect("it is a model")
}

/// Decodes an input in one piece and in two.
pub fn check<D: Decoder>(input: &[u8], decoder: impl Fn() -> D) {
    let [high, low, body @ ..] = input else { return };
    let choice = usize::from(u16::from_be_bytes([*high, *low]));
    let (first, second) = body.split_at((choice >> 1) % (body.len() + 1));
    let end = if choice & 1 == 0 { StreamEnd::Complete } else { StreamEnd::Failed(HttpError::Cut { cause: "cut".to_owned() }) };

    let whole = decode(&[body], decoder(), end.clone());
    let cut = decode(&[first, second], decoder(), end);
    assert_eq!(format!("{whole:?}"), format!("{cut:?}"));
    follow(&whole, body.len());
}

fn decode<D: Decoder>(chunks: &[&[u8]], mut decoder: D, end: StreamEnd) -> Vec<StreamEvent> {
    let chunks: Vec<_> = chunks.iter().map(|chunk| Ok::<_, Infallible>(Bytes::copy_from_slice(chunk))).collect();
    let mut messages = messages(futures::stream::iter(chunks), Limits::default());
    let mut events = Vec::new();
    decoder.start(&mut events);
    while let Some(message) = messages.next().now_or_never().expect("all bytes are there") {
        let message = message.expect("an input is far below the bounds");
        if decoder.message(message, &mut events).is_break() {
            decoder.end(StreamEnd::Complete, &mut events);
            return events;
        }
    }
    decoder.end(end, &mut events);
    events
}

fn follow(events: &[StreamEvent], body: usize) {
    let (last, before) = events.split_last().expect("a stream is not empty");
    let message = last.final_message().expect("the last event is terminal");
    assert!(before.iter().all(|event| event.final_message().is_none()), "an event follows a terminal one");
    assert!(matches!(before.first(), Some(StreamEvent::Start { .. })));
    let failed = matches!(message.stop_reason, StopReason::Error | StopReason::Aborted);
    assert_eq!(matches!(last, StreamEvent::Error { .. }), failed);
    assert_eq!(message.error_message.is_some(), failed, "{message:?}");
    assert!(message.stop_reason != StopReason::Pending);

    let mut partial = Partial::default();
    let mut size = 0;
    for event in before {
        partial.apply(event);
        size += event.summary().to_vec().len();
    }
    let shown = partial.message().expect("a start came");
    assert_eq!(shown.content.len(), message.content.len());
    partial.apply(last);
    assert_eq!(format!("{:?}", partial.message()), format!("{:?}", Some(message)));

    let written = Json::from_serde(message).expect("a message can be written").to_vec();
    size += written.len();
    assert!(size <= GROWTH * body + LEAST, "{size} bytes of {body}");
    assert!(Json::parse(&written).is_ok(), "a message can be read back");
}
