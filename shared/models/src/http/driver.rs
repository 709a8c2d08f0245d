//! Turns an answer and a decoder into the stream of a provider.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Client, HttpError, Messages, Request, RequestError};
use crate::provider::StreamEvent;
use crate::sse::SseMessage;

/// How long to wait for the end of an answer whose rest is of no interest, so that its connection can be used again.
const DRAIN: Duration = Duration::from_millis(100);

/// How many messages to read for that.
const DRAIN_MESSAGES: usize = 16;

/// Reads the answers of one API. It is pure: what it makes depends only on what it is given, so it runs without HTTP.
///
/// The calls are, in this order: [`Decoder::start`] once the server accepted the request, [`Decoder::message`] for each
/// message, [`Decoder::end`]. A request that failed before that has only the last call.
///
/// Invariant: only `end` makes a terminal event, exactly one, as the last one.
pub trait Decoder: Send + Sized + 'static {
    /// The server accepted the request.
    fn start(&mut self, events: &mut Vec<StreamEvent>);

    /// Takes a message. [`ControlFlow::Break`] says that the answer is complete or has failed, so that no more of it is read;
    /// the end is then [`StreamEnd::Complete`], and the decoder knows why it broke off.
    fn message(&mut self, message: SseMessage, events: &mut Vec<StreamEvent>) -> ControlFlow<()>;

    /// Nothing more comes. The final message has what came in; of a failure, the stop reason is
    /// [`HttpError::stop_reason`] and the text is the error's, save that adapters word [`HttpError::Status`] themselves.
    fn end(self, end: StreamEnd, events: &mut Vec<StreamEvent>);
}

/// How an answer ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StreamEnd {
    /// The body ended as HTTP says, or the decoder broke off. Whether the answer is complete is the decoder's to say.
    Complete,
    /// It did not.
    Failed(HttpError),
}

/// Sends a request and decodes the answer. A request that could not be made is an error event.
///
/// The final message gets its duration here. A decoder that ends without a terminal event is a defect; the stream then ends
/// without one.
pub fn stream<D: Decoder>(
    client: &Client,
    request: Result<Request, RequestError>,
    decoder: D,
    cancel: CancellationToken,
) -> BoxStream<'static, StreamEvent> {
    let run = Run { client: client.clone(), request, phase: Phase::Sending(decoder), queue: VecDeque::new(), cancel, started: None };
    futures::stream::unfold(run, |mut run| async move { run.next().await.map(|event| (event, run)) }).boxed()
}

struct Run<D> {
    client: Client,
    request: Result<Request, RequestError>,
    phase: Phase<D>,
    queue: VecDeque<StreamEvent>,
    cancel: CancellationToken,
    started: Option<Instant>,
}

enum Phase<D> {
    Sending(D),
    Reading(D, Messages),
    Ended,
}

impl<D: Decoder> Run<D> {
    async fn next(&mut self) -> Option<StreamEvent> {
        loop {
            if let Some(event) = self.queue.pop_front() {
                return Some(event);
            }
            match std::mem::replace(&mut self.phase, Phase::Ended) {
                Phase::Ended => return None,
                Phase::Sending(decoder) => self.send(decoder).await,
                Phase::Reading(decoder, messages) => self.read(decoder, messages).await,
            }
        }
    }

    async fn send(&mut self, mut decoder: D) {
        self.started = Some(Instant::now());
        let opened = match &self.request {
            Err(error) => Err(HttpError::Request(error.clone())),
            Ok(request) => tokio::select! {
                biased;
                () = self.cancel.cancelled() => Err(HttpError::Aborted),
                opened = self.client.open(request) => opened,
            },
        };
        match opened {
            Ok(messages) => {
                let mut events = Vec::new();
                decoder.start(&mut events);
                self.queue.extend(events);
                self.phase = Phase::Reading(decoder, messages);
            }
            Err(error) => self.end(decoder, StreamEnd::Failed(error)),
        }
    }

    async fn read(&mut self, mut decoder: D, mut messages: Messages) {
        let message = tokio::select! {
            biased;
            () = self.cancel.cancelled() => Some(Err(HttpError::Aborted)),
            message = messages.next() => message,
        };
        match message {
            Some(Ok(message)) => {
                let mut events = Vec::new();
                let flow = decoder.message(message, &mut events);
                self.queue.extend(events);
                if flow.is_continue() {
                    self.phase = Phase::Reading(decoder, messages);
                } else {
                    drain(messages, &self.cancel).await;
                    self.end(decoder, StreamEnd::Complete);
                }
            }
            Some(Err(error)) => {
                // Closes the connection before the caller sees the end.
                drop(messages);
                self.end(decoder, StreamEnd::Failed(error));
            }
            None => self.end(decoder, StreamEnd::Complete),
        }
    }

    fn end(&mut self, decoder: D, end: StreamEnd) {
        let mut events = Vec::new();
        decoder.end(end, &mut events);
        let duration_ms = self.started.map(|started| started.elapsed().as_millis());
        for event in &mut events {
            if let StreamEvent::Done { message } | StreamEvent::Error { message } = event {
                message.duration_ms = duration_ms.and_then(|millis| u32::try_from(millis).ok()).map(f64::from);
                if let (Some(text), Ok(request)) = (&message.error_message, &self.request) {
                    message.error_message = Some(self.client.redact(request, text));
                }
            }
        }
        self.queue.extend(events);
    }
}

async fn drain(messages: Messages, cancel: &CancellationToken) {
    let rest = messages.take(DRAIN_MESSAGES).for_each(|_| async {});
    tokio::select! {
        biased;
        () = cancel.cancelled() => {}
        _ = tokio::time::timeout(DRAIN, rest) => {}
    }
}
