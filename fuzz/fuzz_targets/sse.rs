//! Server-sent events: what comes out is what a second, simple parser finds, however the bytes are cut and within the bounds.
//!
//! The first four bytes of an input choose a cut and the bounds, the rest is the stream.
#![no_main]

use std::convert::Infallible;

use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _};
use libfuzzer_sys::fuzz_target;
use picofleet_models::arguments::decode;
use picofleet_models::sse::{Limits, SseError, SseMessage, messages};

/// What came before an error, and whether there was one.
fn ours(chunks: &[&[u8]], limits: Limits) -> (Vec<SseMessage>, bool) {
    let chunks: Vec<_> = chunks.iter().map(|chunk| Ok::<_, Infallible>(Bytes::copy_from_slice(chunk))).collect();
    let all: Vec<Result<SseMessage, SseError<Infallible>>> =
        messages(futures::stream::iter(chunks), limits).collect().now_or_never().expect("all bytes are there");
    let fails = all.iter().filter(|item| item.is_err()).count();
    assert!(fails == usize::from(all.last().is_some_and(Result::is_err)), "something follows an error: {all:?}");
    (all.into_iter().filter_map(Result::ok).collect(), fails == 1)
}

/// The events by the rules of the HTML standard, save that the last one may lack its blank line if its data is whole.
fn simple(bytes: &[u8]) -> Vec<SseMessage> {
    let text = String::from_utf8_lossy(bytes).replace("\r\n", "\n").replace('\r', "\n");
    let (mut all, mut event, mut data): (Vec<_>, Option<String>, Vec<String>) = Default::default();
    let take = |event: &mut Option<String>, data: &mut Vec<String>| {
        let any = event.is_some() || !data.is_empty();
        any.then(|| SseMessage { event: event.take(), data: std::mem::take(data).join("\n") })
    };
    let mut lines = text.strip_prefix('\u{feff}').unwrap_or(&text).split('\n').peekable();
    while let Some(line) = lines.next() {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value).to_owned();
        match name {
            "" if line.is_empty() && lines.peek().is_some() => all.extend(take(&mut event, &mut data)),
            "event" => event = Some(value),
            "data" => data.push(value),
            _ => {}
        }
    }
    let is_whole = |data: &str| (data.starts_with('[') && data.ends_with(']')) || decode(data).is_ok();
    all.extend(take(&mut event, &mut data).filter(|last| is_whole(&last.data)));
    all
}

fuzz_target!(|input: &[u8]| {
    let [high, low, line, body, bytes @ ..] = input else { return };
    let (first, second) = bytes.split_at(usize::from(u16::from_be_bytes([*high, *low])) % (bytes.len() + 1));
    let single: Vec<&[u8]> = bytes.chunks(1).collect();

    let expected = simple(bytes);
    for chunks in [&[bytes][..], &[first, second], &single] {
        assert_eq!(ours(chunks, Limits::default()), (expected.clone(), false));
    }

    let line = 1 + usize::from(*line);
    let limits = Limits { line, event: 2 * line, body: 8 * (1 + usize::from(*body)) };
    let (found, failed) = ours(&single, limits);
    assert!(expected.starts_with(&found));
    assert!(failed || found == expected);
    for message in &found {
        // A replacement is longer than the byte that it stands for.
        assert!(message.data.len() + message.event.as_ref().map_or(0, String::len) <= 3 * limits.event);
    }
    for chunks in [&[bytes][..], &[first, second]] {
        let (fewer, fails) = ours(chunks, limits);
        assert_eq!(fails, failed);
        assert!(found.starts_with(&fewer));
    }
});
