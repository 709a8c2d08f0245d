//! What stands in front of the parser: bounds, and text instead of bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt as _};

use super::SseError;

/// Sizes in bytes that a stream of events may have. One line may hold a whole answer or an image, so they are generous.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Its longest line.
    pub line: usize,
    /// Its longest event.
    pub event: usize,
    /// All of it.
    pub body: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { line: 16 << 20, event: 16 << 20, body: 128 << 20 }
    }
}

/// A stream is larger than its bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TooLarge {
    /// A line is.
    #[error("a stream of events has a line of more than {0} bytes")]
    Line(usize),
    /// An event is.
    #[error("a stream of events has an event of more than {0} bytes")]
    Event(usize),
    /// All of it is.
    #[error("a stream of events has more than {0} bytes")]
    Body(usize),
}

struct Guard<S> {
    bytes: S,
    limits: Limits,
    sizes: Sizes,
    /// The start of a character whose rest is still to come: at most three bytes.
    carry: Vec<u8>,
    /// Nothing more comes in; told to the reader of the events, too.
    ended: Arc<AtomicBool>,
}

/// The same bytes in chunks of valid UTF-8, within the limits. It ends after the first error.
pub(super) fn guard<E: Send + 'static>(
    bytes: BoxStream<'static, Result<Bytes, E>>,
    limits: Limits,
    ended: Arc<AtomicBool>,
) -> impl Stream<Item = Result<Bytes, SseError<E>>> + Send {
    let guard = Guard { bytes, limits, sizes: Sizes::default(), carry: Vec::new(), ended };
    futures::stream::unfold(guard, |mut guard| async move {
        let item = guard.next().await?;
        if item.is_err() {
            guard.end();
        }
        Some((item, guard))
    })
}

impl<S: Stream<Item = Result<Bytes, E>> + Unpin, E> Guard<S> {
    async fn next(&mut self) -> Option<Result<Bytes, SseError<E>>> {
        if self.ended.load(Ordering::Relaxed) {
            return None;
        }
        Some(match self.bytes.next().await {
            Some(Ok(chunk)) => match self.sizes.take(&chunk, self.limits) {
                Ok(()) => Ok(self.text(chunk)),
                Err(error) => Err(error.into()),
            },
            Some(Err(error)) => Err(SseError::Read(error)),
            None => {
                self.end();
                Ok(self.closing())
            }
        })
    }

    fn end(&self) {
        // One task has both sides.
        self.ended.store(true, Ordering::Relaxed);
    }

    /// What ends the last event, which the server may have left open, and the character that it broke off.
    fn closing(&mut self) -> Bytes {
        let cut = std::mem::take(&mut self.carry);
        Bytes::from_static(if cut.is_empty() { b"\n\n" } else { "\u{fffd}\n\n".as_bytes() })
    }

    /// The chunk as text, with the start of a character from before and without one that it only begins.
    fn text(&mut self, chunk: Bytes) -> Bytes {
        if self.carry.is_empty() && std::str::from_utf8(&chunk).is_ok() {
            return chunk;
        }
        let mut bytes = std::mem::take(&mut self.carry);
        bytes.extend_from_slice(&chunk);
        let mut text = String::with_capacity(bytes.len());
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(part) = chunks.next() {
            text.push_str(part.valid());
            match std::str::from_utf8(part.invalid()) {
                Err(error) if chunks.peek().is_none() && error.error_len().is_none() => self.carry.extend_from_slice(part.invalid()),
                Err(_) => text.push(char::REPLACEMENT_CHARACTER),
                Ok(_) => {}
            }
        }
        text.into()
    }
}

#[derive(Default)]
struct Sizes {
    line: usize,
    event: usize,
    body: usize,
    after_return: bool,
}

impl Sizes {
    fn take(&mut self, chunk: &[u8], limits: Limits) -> Result<(), TooLarge> {
        self.body += chunk.len();
        if self.body > limits.body {
            return Err(TooLarge::Body(limits.body));
        }
        let mut start = 0;
        for end in memchr::memchr2_iter(b'\n', b'\r', chunk) {
            // The line feed of a pair ends no line of its own.
            let second = chunk[end] == b'\n' && self.after_return && end == start;
            self.grow(end - start, limits)?;
            start = end + 1;
            self.after_return = chunk[end] == b'\r';
            if second {
                continue;
            }
            if self.line == 0 {
                self.event = 0;
            }
            self.line = 0;
        }
        if start < chunk.len() {
            self.after_return = false;
        }
        self.grow(chunk.len() - start, limits)
    }

    fn grow(&mut self, more: usize, limits: Limits) -> Result<(), TooLarge> {
        self.line += more;
        self.event += more;
        if self.line > limits.line {
            return Err(TooLarge::Line(limits.line));
        }
        if self.event > limits.event {
            return Err(TooLarge::Event(limits.event));
        }
        Ok(())
    }
}
