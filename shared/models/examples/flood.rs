//! Measures what an answer of 1 GB of deltas costs with the usual limits: `flood API`, one of the three.
//!
//! A server on loopback sends the same delta until 1 GB is out or the client is gone. The program tells how the stream ends,
//! how much the server could send, the length of the text and the largest resident memory of the process, server included.
//! It fails when the stream does not end in the error of its limit, or when the memory is above a bound.

use std::error::Error;
use std::io::Write as _;
use std::sync::Arc;

use futures::StreamExt as _;
use picofleet_delta::Json;
use picofleet_models::anthropic::Anthropic;
use picofleet_models::http::{Client, ClientOptions};
use picofleet_models::model::Model;
use picofleet_models::openai_chat::OpenAiChat;
use picofleet_models::openai_responses::OpenAiResponses;
use picofleet_models::provider::{Context, Provider, StreamEvent, StreamOptions};
use picofleet_session::Clock;
use picofleet_session::message::AssistantBlock;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

type Failure = Box<dyn Error + Send + Sync>;

const FLOOD: usize = 1 << 30;
/// The limit of a body is 128 MiB; its text is in the decoder and once more, for a moment, in the final message.
const MEMORY_MAX_KIB: u64 = 300 << 10;
const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";

/// What opens a text, and a delta of it whose text is `TEXT`.
fn stream(api: &str) -> Option<(&'static str, &'static str)> {
    Some(match api {
        "openai-completions" => ("", "data: {\"choices\":[{\"delta\":{\"content\":\"TEXT\"}}]}\n\n"),
        "openai-responses" => (
            "data: {\"type\":\"response.output_item.added\",\"output_index\":0,\"item\":{\"type\":\"message\"}}\n\n",
            "data: {\"type\":\"response.output_text.delta\",\"output_index\":0,\"delta\":\"TEXT\"}\n\n",
        ),
        "anthropic-messages" => (
            "event: content_block_start\n\
             data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\"}}\n\n",
            "event: content_block_delta\n\
             data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"TEXT\"}}\n\n",
        ),
        _ => return None,
    })
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let api = std::env::args().nth(1).ok_or("name an API: openai-completions, openai-responses or anthropic-messages")?;
    let (start, delta) = stream(&api).ok_or("there is no such API")?;
    let client = Client::new(ClientOptions { environment_proxies: false, ..ClientOptions::default() }, Clock::system())?;
    let provider: Arc<dyn Provider> = match api.as_str() {
        "openai-completions" => Arc::new(OpenAiChat::new(client, Some("key".into()))),
        "openai-responses" => Arc::new(OpenAiResponses::new(client, Some("key".into()))),
        _ => Arc::new(Anthropic::new(client, Some("key".into()))),
    };
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    let server = tokio::spawn(flood(listener, start, delta.replace("TEXT", &"0123456789abcdef".repeat(16))));
    let context: Context = r#"{"messages":[{"role":"user","content":"hello","timestamp":1}]}"#.parse::<Json>()?.to()?;
    let mut stream = provider.stream(&model(&api, port)?, &context, &StreamOptions::default(), CancellationToken::new());
    let (mut deltas, mut last) = (0_u64, None);
    while let Some(event) = stream.next().await {
        match event {
            StreamEvent::TextDelta { .. } => deltas += 1,
            StreamEvent::Done { message } | StreamEvent::Error { message } => last = Some(message),
            _ => {}
        }
    }
    drop(stream);
    let sent = server.await??;
    let message = last.ok_or("the stream has no end")?;
    let error = message.error_message.unwrap_or_default();
    let text = message.content.iter().map(|block| if let AssistantBlock::Text(text) = block { text.text.len() } else { 0 }).sum::<usize>();
    let peak_kib = peak_kib()?;
    writeln!(
        std::io::stdout(),
        "{api}: {} MiB sent, {deltas} deltas, {} MiB of text, {} MiB resident at most; {error}",
        sent >> 20,
        text >> 20,
        peak_kib >> 10
    )?;
    if !error.contains("more than") || peak_kib > MEMORY_MAX_KIB {
        return Err("the answer was not ended by its limit within bounded memory".into());
    }
    Ok(())
}

async fn flood(listener: TcpListener, start: &'static str, delta: String) -> std::io::Result<usize> {
    let (mut stream, _) = listener.accept().await?;
    let _ = stream.read(&mut [0; 4096]).await?;
    stream.write_all(format!("{HEAD}{start}").as_bytes()).await?;
    let deltas = delta.repeat(100);
    let mut sent = 0;
    while sent < FLOOD && stream.write_all(deltas.as_bytes()).await.is_ok() {
        sent += deltas.len();
    }
    Ok(sent)
}

/// The largest resident memory of this process so far.
fn peak_kib() -> Result<u64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("the system does not tell the memory of a process")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

fn model(api: &str, port: u16) -> Result<Model, Failure> {
    let text = format!(
        r#"{{"id":"m","name":"M","api":"{api}","provider":"acme","baseUrl":"http://127.0.0.1:{port}","reasoning":false,
            "input":["text"],"cost":{{"input":0,"output":0,"cacheRead":0,"cacheWrite":0}},"contextWindow":1000,"maxTokens":100}}"#
    );
    Ok(text.parse::<Json>()?.to()?)
}
