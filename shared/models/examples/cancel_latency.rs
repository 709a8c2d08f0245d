//! Measures how long it takes from the cancellation of a stream until the server sees the end of the connection.
//!
//! For each API, 200 streams are cancelled one after the other, each after its first text, against a server on loopback that
//! then only reads. `BENCHMARKS.md` has the figures. It fails when one takes longer than 100 ms, which is the bound.

use std::error::Error;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use picofleet_delta::Json;
use picofleet_models::anthropic::Anthropic;
use picofleet_models::http::{Client, ClientOptions};
use picofleet_models::model::Model;
use picofleet_models::openai_chat::OpenAiChat;
use picofleet_models::openai_responses::OpenAiResponses;
use picofleet_models::provider::{Context, Provider, StreamEvent, StreamOptions};
use picofleet_session::Clock;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

type Failure = Box<dyn Error + Send + Sync>;

const STREAMS: usize = 200;
const BOUND: Duration = Duration::from_millis(100);
const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";

const CHAT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"one\"}}]}\n\n";
const RESPONSES: &str = "data: {\"type\":\"response.output_item.added\",\"output_index\":0,\"item\":{\"type\":\"message\"}}\n\n\
     data: {\"type\":\"response.output_text.delta\",\"output_index\":0,\"delta\":\"one\"}\n\n";
const ANTHROPIC: &str = "event: content_block_start\n\
     data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\"}}\n\n\
     event: content_block_delta\n\
     data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"one\"}}\n\n";

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let client = Client::new(ClientOptions { environment_proxies: false, ..ClientOptions::default() }, Clock::system())?;
    let key = || Some("key".into());
    let apis: [(&str, &'static str, Arc<dyn Provider>); 3] = [
        ("openai-completions", CHAT, Arc::new(OpenAiChat::new(client.clone(), key()))),
        ("openai-responses", RESPONSES, Arc::new(OpenAiResponses::new(client.clone(), key()))),
        ("anthropic-messages", ANTHROPIC, Arc::new(Anthropic::new(client, key()))),
    ];
    let mut out = std::io::stdout();
    writeln!(out, "{:<20} {:>8} {:>8} {:>8}  of {STREAMS} streams, in microseconds", "API", "p50", "p99", "max")?;
    for (api, first, provider) in apis {
        let mut times = measure(api, first, &*provider).await?;
        times.sort_unstable();
        let at = |percent: usize| times.get((times.len() * percent).div_ceil(100).saturating_sub(1)).map_or(0, Duration::as_micros);
        writeln!(out, "{api:<20} {:>8} {:>8} {:>8}", at(50), at(99), at(100))?;
        if times.last().is_some_and(|longest| *longest > BOUND) {
            return Err(format!("a connection of {api} was closed only after {} ms", BOUND.as_millis()).into());
        }
    }
    Ok(())
}

async fn measure(api: &str, first: &'static str, provider: &dyn Provider) -> Result<Vec<Duration>, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    let (closed, mut on_closed) = mpsc::channel(1);
    let server = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut buffer = [0; 4096];
            let begun = stream.read(&mut buffer).await.is_ok() && stream.write_all(format!("{HEAD}{first}").as_bytes()).await.is_ok();
            while begun && matches!(stream.read(&mut buffer).await, Ok(1..)) {}
            if closed.send(Instant::now()).await.is_err() {
                return;
            }
        }
    });
    let model = model(api, port)?;
    let context: Context = r#"{"messages":[{"role":"user","content":"hello","timestamp":1}]}"#.parse::<Json>()?.to()?;
    let mut times = Vec::with_capacity(STREAMS);
    for _ in 0..STREAMS {
        let cancel = CancellationToken::new();
        let mut stream = provider.stream(&model, &context, &StreamOptions::default(), cancel.clone());
        loop {
            match stream.next().await {
                Some(StreamEvent::TextDelta { .. }) => break,
                Some(StreamEvent::Error { message }) => return Err(message.error_message.unwrap_or_default().into()),
                Some(_) => {}
                None => return Err("the stream ended".into()),
            }
        }
        let at = Instant::now();
        cancel.cancel();
        while stream.next().await.is_some() {}
        let seen = on_closed.recv().await.ok_or("the server ended")?;
        times.push(seen.saturating_duration_since(at));
    }
    server.abort();
    Ok(times)
}

fn model(api: &str, port: u16) -> Result<Model, Failure> {
    let text = format!(
        r#"{{"id":"m","name":"M","api":"{api}","provider":"acme","baseUrl":"http://127.0.0.1:{port}","reasoning":false,
            "input":["text"],"cost":{{"input":0,"output":0,"cacheRead":0,"cacheWrite":0}},"contextWindow":1000,"maxTokens":100}}"#
    );
    Ok(text.parse::<Json>()?.to()?)
}
