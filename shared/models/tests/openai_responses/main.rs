//! The adapter for OpenAI Responses: the vectors, and a server on loopback.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod connection;
mod deferred;
mod server;
mod vectors;

use std::path::PathBuf;

use futures::StreamExt as _;
use picofleet_delta::Json;
use picofleet_models::http::{Client, ClientOptions};
use picofleet_models::model::Model;
use picofleet_models::openai_responses::OpenAiResponses;
use picofleet_models::provider::{Context, Provider as _, StreamEvent, StreamOptions};
use picofleet_session::message::{AssistantMessage, Message, TextOrBlocks, UserMessage};
use picofleet_session::{Clock, Millis};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

const KEY: &str = "dummy-key";

fn repository_vectors() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors")
}

/// Every record of a file; the directory may be replaced by `PICOFLEET_VECTORS`.
fn records(name: &str) -> Vec<Json> {
    records_in(std::env::var_os("PICOFLEET_VECTORS").map_or_else(repository_vectors, PathBuf::from), name)
}

/// Records made with pi-ai from random contexts and bodies, beside the vectors.
fn own_records(name: &str) -> Vec<Json> {
    records_in(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/openai_responses"), name)
}

fn records_in(directory: PathBuf, name: &str) -> Vec<Json> {
    let text = std::fs::read_to_string(directory.join(name)).unwrap();
    let records: Vec<Json> = text.lines().map(|line| line.parse().unwrap()).collect();
    assert!(!records.is_empty(), "{name} is empty");
    records
}

fn raw<'a>(record: &'a Json, name: &str) -> &'a Json {
    record.get(name).unwrap_or_else(|| panic!("{name} is missing in {record}"))
}

fn field<T: DeserializeOwned>(record: &Json, name: &str) -> T {
    raw(record, name).to().unwrap_or_else(|error| panic!("{name} of {record}: {error}"))
}

/// The stream of a record of the repository.
fn stream(id: &str) -> Json {
    let mut records = records_in(repository_vectors(), "pi-ai-stream-responses.jsonl").into_iter();
    records.find(|record| field::<String>(record, "id") == id).unwrap()
}

fn clock() -> Clock {
    Clock::manual(Millis(1_000_000))
}

fn client(clock: Clock) -> Client {
    Client::new(ClientOptions { environment_proxies: false, ..ClientOptions::default() }, clock).unwrap()
}

fn provider() -> OpenAiResponses {
    OpenAiResponses::new(client(clock()), Some(KEY.into()))
}

fn model(base_url: &str) -> Model {
    Model { base_url: base_url.to_owned(), ..field(&stream("st-r1"), "model") }
}

fn context() -> Context {
    let message = UserMessage { content: TextOrBlocks::Text("hello".to_owned()), timestamp: Millis(1) };
    Context { messages: vec![Message::from(message)], ..Context::default() }
}

async fn events(provider: &OpenAiResponses, model: &Model, options: &StreamOptions) -> Vec<StreamEvent> {
    let stream = provider.stream(model, &context(), options, CancellationToken::new());
    server::soon("the end of the stream", stream.collect()).await
}

/// The final message of a stream that has one, as its last event.
fn last(events: &[StreamEvent]) -> AssistantMessage {
    let terminal: Vec<_> = events.iter().filter_map(StreamEvent::final_message).collect();
    assert_eq!(terminal.len(), 1, "{events:?}");
    events.last().unwrap().final_message().unwrap().clone()
}
