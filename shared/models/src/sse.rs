//! Server-sent events out of a stream of bytes, in bounded memory.
//!
//! `sse-stream` parses; what it would keep without a bound, or refuse, is dealt with in front of it: lines, events and bodies
//! have a longest size, and bytes that are no UTF-8 become U+FFFD, as the text decoder of JavaScript has it, also when a
//! character is split over chunks.

mod guard;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt as _};
use futures::{Stream, TryStreamExt as _};
use sse_stream::SseByteStream;

use crate::arguments;

pub use guard::{Limits, TooLarge};

/// What an answer with an event that is no JSON says, as the official client of OpenAI has it.
pub(crate) const MALFORMED: &str = "Error reading response: malformed server-sent event JSON.";

/// One event of a stream: a block of lines up to a blank line.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SseMessage {
    /// The value of its `event` line, if it has one.
    pub event: Option<String>,
    /// The values of its `data` lines, joined by line feeds; `""` without one.
    pub data: String,
}

/// Why a stream of events broke off.
#[derive(Debug, thiserror::Error)]
pub enum SseError<E> {
    /// The bytes failed.
    #[error("read a stream of events")]
    Read(#[source] E),
    /// It is larger than its bounds.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
}

/// The events in a stream of bytes. An event is there as soon as its blank line came in. Comments, ids, retry times and
/// fields that nobody knows are dropped. Nothing follows an error.
///
/// Some servers leave the blank line out at the end. The last event counts without it if its data is whole: JSON, or a word
/// in brackets. Otherwise the connection was cut within it, and the event is dropped, so that the answer counts as cut and not
/// as malformed.
pub fn messages<S, E>(bytes: S, limits: Limits) -> BoxStream<'static, Result<SseMessage, SseError<E>>>
where
    S: Stream<Item = Result<Bytes, E>> + Send + 'static,
    E: std::error::Error + Send + Sync + 'static,
{
    let ended = Arc::new(AtomicBool::new(false));
    let guarded = guard::guard(bytes.boxed(), limits, Arc::clone(&ended));
    let events = SseByteStream::new(guarded.map_err(Guarded).boxed());
    let events = events.filter_map(move |event| {
        // The parser asks for bytes only when it has no event left, so this one is the last.
        let is_last = ended.load(Ordering::Relaxed);
        let message = match event {
            Ok(event) if event.data.is_none() && event.event.is_none() => None,
            Ok(event) => {
                Some(SseMessage { event: event.event, data: event.data.unwrap_or_default() }).filter(|m| !is_last || is_whole(m)).map(Ok)
            }
            Err(error) => own_error(error).map(Err),
        };
        std::future::ready(message)
    });
    events.boxed()
}

/// True for an event that was not cut within its data.
fn is_whole(message: &SseMessage) -> bool {
    let is_word = message.data.starts_with('[') && message.data.ends_with(']');
    is_word || arguments::decode(&message.data).is_ok()
}

/// Brings an error of the guard through the parser, which keeps it as a trait object.
#[derive(Debug, thiserror::Error)]
#[error("read a stream of events")]
struct Guarded<E>(SseError<E>);

/// The guard's error. The parser has none of its own: its input is UTF-8 and it takes unknown fields.
fn own_error<E: std::error::Error + Send + Sync + 'static>(error: sse_stream::Error) -> Option<SseError<E>> {
    match error {
        sse_stream::Error::Body(source) => source.downcast::<Guarded<E>>().ok().map(|guarded| guarded.0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::FutureExt as _;

    use super::*;

    fn parse(chunks: impl IntoIterator<Item = Vec<u8>>, limits: Limits) -> Vec<Result<SseMessage, SseError<Infallible>>> {
        let chunks: Vec<_> = chunks.into_iter().map(|chunk| Ok(Bytes::from(chunk))).collect();
        messages(futures::stream::iter(chunks), limits).collect().now_or_never().unwrap()
    }

    fn good(chunks: impl IntoIterator<Item = Vec<u8>>) -> Vec<(Option<String>, String)> {
        parse(chunks, Limits::default()).into_iter().map(Result::unwrap).map(|message| (message.event, message.data)).collect()
    }

    fn whole_and_in_bytes(text: &[u8]) -> Vec<(Option<String>, String)> {
        let whole = good([text.to_vec()]);
        assert_eq!(good(text.iter().map(|byte| vec![*byte])), whole);
        whole
    }

    #[test]
    fn events_are_the_same_in_one_piece_and_byte_by_byte() {
        let text = "\u{feff}: hello\r\n\r\ndata: a\ndata:b\r\r\nevent: x\ndata\n\nid: 7\nretry: 5\n\nodd: 1\nevent:  y \n\ndata: 😀\r\n\r\ndata: {}";
        let expected = [(None, "a\nb"), (Some("x"), ""), (Some(" y "), ""), (None, "😀"), (None, "{}")];
        let expected: Vec<_> = expected.map(|(event, data)| (event.map(str::to_owned), data.to_owned())).into();
        assert_eq!(whole_and_in_bytes(text.as_bytes()), expected);
    }

    #[test]
    fn bytes_that_are_no_text_are_replaced() {
        for (bytes, expected) in [
            (&b"\xff"[..], "\u{fffd}"),
            (b"a\xf0\x9f\x98", "a\u{fffd}"),
            (b"\xf0\x9f\x98\x80", "😀"),
            (b"\xf0\x9f\xf0\x9f\x98\x80", "\u{fffd}😀"),
            (b"\xc3(", "\u{fffd}("),
            (b"\xed\xa0\x80", "\u{fffd}\u{fffd}\u{fffd}"),
            (b"\xe2\x82", "\u{fffd}"),
        ] {
            let text = [b"data: ", bytes, b"\n\n"].concat();
            assert_eq!(whole_and_in_bytes(&text), [(None, expected.to_owned())], "{bytes:?}");
        }
    }

    #[test]
    fn the_end_completes_an_event_that_is_whole() {
        for end in ["", "\n", "\r", "\r\n", "\n\n", "\r\r", "\r\n\r\n", "\r\n\r", "\n: odd"] {
            for data in ["{\"a\":[1]}", "[DONE]"] {
                let text = format!("data: {data}{end}");
                assert_eq!(whole_and_in_bytes(text.as_bytes()), [(None, data.to_owned())], "{text:?}");
            }
        }
        for cut in ["data: {\"a\":[1]", "data: [DON", "event: x", "data: {}\ndata: {", "data: \"\u{fffd}"] {
            assert_eq!(whole_and_in_bytes(cut.as_bytes()), [], "{cut:?}");
        }
        assert_eq!(
            whole_and_in_bytes(b"data: \"a\"\n\nevent: x\n\ndata: \"\xf0\x9f"),
            [(None, "\"a\"".to_owned()), (Some("x".to_owned()), String::new())]
        );
        assert_eq!(whole_and_in_bytes(b": a\nid: 1"), []);
        let failed = [Ok(Bytes::from("data: a\n")), Err(std::io::Error::other("cut"))];
        let found: Vec<_> = messages(futures::stream::iter(failed), Limits::default()).collect().now_or_never().unwrap();
        assert!(matches!(found.as_slice(), [Err(SseError::Read(_))]), "{found:?}");
    }

    #[test]
    fn sizes_are_bounded() {
        let limits = Limits { line: 10, event: 20, body: 100 };
        let fails = |text: &str| {
            let found = parse(text.bytes().map(|byte| vec![byte]), limits);
            assert_eq!(parse([text.as_bytes().to_vec()], limits).last().map(Result::is_err), found.last().map(Result::is_err), "{text:?}");
            found.into_iter().find_map(Result::err).map(|error| error.to_string())
        };
        assert_eq!(fails("data: 1234\n\ndata: 1234\n\n"), None);
        assert_eq!(fails("data: 12345").unwrap(), "a stream of events has a line of more than 10 bytes");
        assert_eq!(fails(": 345678901").unwrap(), "a stream of events has a line of more than 10 bytes");
        assert_eq!(fails("data: 12\ndata: 12\ndata: 12").unwrap(), "a stream of events has an event of more than 20 bytes");
        assert_eq!(fails(&"data: 1\n\n".repeat(12)).unwrap(), "a stream of events has more than 100 bytes");
        assert_eq!(fails(&"data: 1\r\n\r\n".repeat(9)), None);
    }
}
