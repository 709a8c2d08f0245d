//! Connections that end, hang or are left.

use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::StreamExt as _;
use picofleet_delta::Json;
use picofleet_models::classify::{is_context_overflow, is_retryable_assistant_error};
use picofleet_models::http::ClientOptions;
use picofleet_models::provider::{StreamEvent, StreamOptions};
use picofleet_session::message::{AssistantBlock, StopReason};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::api::Api;
use crate::loopback::{CHUNKED_HEAD, Server, all, context, soon};
use crate::{error_of, for_each_api};

for_each_api! {
    a_connection_closed_at_every_byte
    a_body_that_ends_at_every_byte
    invalid_utf8_split_over_chunks
    cancelling_keeps_what_came_and_closes_the_connection
    cancelling_before_the_answer_closes_the_connection
    dropping_a_stream_closes_the_connection
    a_stalled_stream_has_an_end
    a_server_that_never_answers_has_an_end
}

/// Requests that are under way at the same time.
const AT_ONCE: usize = 16;

/// What an answer came to.
struct Cut {
    at: usize,
    events: Vec<StreamEvent>,
}

impl Cut {
    fn names(&self) -> Vec<Json> {
        self.events.iter().map(StreamEvent::summary).collect()
    }
}

/// The answer of the API, cut after so many of its bytes, each time over a connection of its own. The body ends well or with
/// its connection.
async fn cuts(api: &Api, ends_well: bool, at: RangeInclusive<usize>) -> Vec<Cut> {
    let answer = api.answer.as_bytes();
    let server = Server::start(move |_, mut connection| async move {
        // The path of the request tells where to cut.
        let request = connection.request().await;
        let at = request.split(['/', ' ']).find_map(|word| word.strip_prefix("cut-")?.parse().ok());
        let Some(piece) = at.and_then(|at: usize| answer.get(..at)) else { return };
        connection.send(CHUNKED_HEAD).await;
        if !piece.is_empty() {
            connection.chunk(piece).await;
        }
        if ends_well {
            connection.send("0\r\n\r\n").await;
        }
    })
    .await;
    let provider = api.provider(ClientOptions { keep_alive: Duration::ZERO, ..ClientOptions::default() });
    let ask = |at| {
        let model = api.model(&format!("http://127.0.0.1:{}/cut-{at}", server.port));
        let stream = provider.stream(&model, &context(), &StreamOptions::default(), CancellationToken::new());
        async move { Cut { at, events: all(stream).await.0 } }
    };
    futures::stream::iter(at.map(ask)).buffered(AT_ONCE).collect().await
}

/// An answer that ended too early is a transient error. Gives what it told beside the first events of the whole answer.
fn beside<'a>(cut: &'a Cut, whole: &[Json]) -> &'a [StreamEvent] {
    let (last, told) = cut.events.split_last().unwrap();
    let message = last.final_message().unwrap();
    assert_eq!(message.stop_reason, StopReason::Error, "cut at {}", cut.at);
    assert!(is_retryable_assistant_error(message), "cut at {}: {:?}", cut.at, message.error_message);
    assert!(!is_context_overflow(message, None), "cut at {}", cut.at);
    let same = cut.names().iter().zip(whole).take_while(|(own, other)| own == other).count();
    &told[same.min(told.len())..]
}

/// The events are the first ones of the whole answer, and the end tells the cut unless the client had all that it waits for.
async fn a_connection_closed_at_every_byte(api: &Api) {
    let all = api.answer.len();
    let whole = cuts(api, true, all..=all).await.pop().unwrap().names();
    let enough = api.enough.map(|end| api.answer.find(end).unwrap() + end.len());
    for cut in cuts(api, false, 0..=all).await {
        if enough.is_some_and(|enough| cut.at >= enough) {
            assert_eq!(cut.names(), whole, "cut at {}", cut.at);
        } else {
            assert_eq!(beside(&cut, &whole), [], "cut at {}", cut.at);
        }
    }
}

/// A body may end as if it were complete. That is good only after the event that says how the answer ended.
async fn a_body_that_ends_at_every_byte(api: &Api) {
    let cuts = cuts(api, true, 0..=api.answer.len()).await;
    let whole = cuts.last().unwrap();
    assert_eq!(whole.events.last().unwrap().final_message().unwrap().stop_reason, StopReason::ToolUse, "{:?}", whole.events);
    assert_eq!(whole.events.last().unwrap().final_message().unwrap().content.len(), 3);
    let is_good = |cut: &Cut| cut.events.last().unwrap().final_message().unwrap().stop_reason != StopReason::Error;
    let first_good = cuts.iter().position(is_good).unwrap();
    assert!(first_good > api.answer.find(api.terminal).unwrap() + api.terminal.len(), "{first_good}");
    for cut in &cuts[..first_good] {
        // The end of the body may end the blocks that are open.
        let ends = beside(cut, &whole.names()).iter().all(|event| event.name().ends_with("_end"));
        assert!(ends, "cut at {}: {:?}", cut.at, cut.events);
    }
    for cut in &cuts[first_good..] {
        assert_eq!(cut.names(), whole.names(), "cut at {}", cut.at);
    }
}

/// Every chunk has one byte of the answer, so characters and line ends are split.
async fn invalid_utf8_split_over_chunks(api: &Api) {
    let body = [api.open.as_bytes(), &api.delta(b"a\xf0\x9f\x98\x80\xf0\x9f\xff\xc3"), api.close.as_bytes()].concat();
    let server = Server::start(move |_, mut connection| {
        let body = body.clone();
        async move {
            connection.request().await;
            connection.send(CHUNKED_HEAD).await;
            for byte in body {
                connection.chunk([byte]).await;
            }
            connection.send("0\r\n\r\n").await;
        }
    })
    .await;
    let (events, message) = all(api.ask(&server)).await;
    assert_eq!(message.stop_reason, StopReason::Stop, "{message:?}");
    assert!(events.contains(&StreamEvent::TextDelta { index: 0, delta: "a😀\u{fffd}\u{fffd}\u{fffd}".to_owned() }), "{events:?}");
}

/// A server that goes silent, after the beginning of an answer or before it, and tells when the client closed the connection.
async fn silent(api: &Api, begins: bool) -> (Server, mpsc::Receiver<()>) {
    let (closed, on_closed) = mpsc::channel(1);
    let begun = [api.open.as_bytes(), &api.delta(b"begun")].concat();
    let server = Server::start(move |_, mut connection| {
        let (closed, begun) = (closed.clone(), begun.clone());
        async move {
            connection.request().await;
            if begins {
                connection.send(CHUNKED_HEAD).await;
                connection.chunk(begun).await;
            }
            connection.closed().await;
            let _ = closed.send(()).await;
        }
    })
    .await;
    (server, on_closed)
}

fn assert_begun(content: &[AssistantBlock]) {
    let [AssistantBlock::Text(text)] = content else { panic!("{content:?}") };
    assert_eq!(text.text, "begun");
}

async fn cancelling_keeps_what_came_and_closes_the_connection(api: &Api) {
    let (server, mut on_closed) = silent(api, true).await;
    let cancel = CancellationToken::new();
    let mut stream = api.ask_with(&server, ClientOptions::default(), &StreamOptions::default(), cancel.clone());
    while !matches!(soon(stream.next()).await.unwrap(), StreamEvent::TextDelta { .. }) {}
    cancel.cancel();
    let (events, message) = all(stream).await;
    assert_eq!((events.len(), message.stop_reason), (1, StopReason::Aborted));
    assert_eq!(message.error_message.as_deref(), Some("Request was aborted"));
    assert_begun(&message.content);
    soon(on_closed.recv()).await.unwrap();
}

async fn cancelling_before_the_answer_closes_the_connection(api: &Api) {
    let (server, mut on_closed) = silent(api, false).await;
    let cancel = CancellationToken::new();
    let stream = api.ask_with(&server, ClientOptions::default(), &StreamOptions::default(), cancel.clone());
    let running = tokio::spawn(all(stream));
    // The request is out when its connection is there.
    soon(async {
        while server.connections.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    cancel.cancel();
    let (events, message) = soon(running).await.unwrap();
    assert_eq!((events.len(), message.stop_reason), (1, StopReason::Aborted));
    soon(on_closed.recv()).await.unwrap();
}

async fn dropping_a_stream_closes_the_connection(api: &Api) {
    let (server, mut on_closed) = silent(api, true).await;
    let mut stream = api.ask(&server);
    while !matches!(soon(stream.next()).await.unwrap(), StreamEvent::TextDelta { .. }) {}
    drop(stream);
    soon(on_closed.recv()).await.unwrap();
}

async fn a_stalled_stream_has_an_end(api: &Api) {
    let (server, mut on_closed) = silent(api, true).await;
    let options = ClientOptions { idle_timeout: Duration::from_millis(50), ..ClientOptions::default() };
    let (_, message) = all(api.ask_with(&server, options, &StreamOptions::default(), CancellationToken::new())).await;
    assert_eq!(error_of(&message), "terminated: timed out after 0.05 s without data");
    assert_begun(&message.content);
    assert!(is_retryable_assistant_error(&message));
    soon(on_closed.recv()).await.unwrap();
}

async fn a_server_that_never_answers_has_an_end(api: &Api) {
    let (server, mut on_closed) = silent(api, false).await;
    let options = StreamOptions { timeout_ms: Some(50), ..StreamOptions::default() };
    let (events, message) = all(api.ask_with(&server, ClientOptions::default(), &options, CancellationToken::new())).await;
    assert_eq!((events.len(), error_of(&message)), (1, "Request timed out."));
    assert!(is_retryable_assistant_error(&message));
    soon(on_closed.recv()).await.unwrap();
}
