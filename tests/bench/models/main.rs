//! The adapters' half of the comparison that `tests/bench/models/run` makes: `models_compare decode|memory API URL STREAMS`
//! prints a line of JSON.

#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a benchmark prints and times")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use futures::StreamExt as _;
use picofleet_models::http::{Client, ClientOptions};
use picofleet_models::js;
use picofleet_models::model::Model;
use picofleet_models::provider::{Context, Partial, Provider, StreamEvent, StreamOptions};
use picofleet_models::{anthropic, openai_chat, openai_responses};
use picofleet_session::message::{AssistantBlock, AssistantMessage};
use picofleet_session::{Clock, Json};
use rustix::time::{ClockId, clock_gettime};
use tokio_util::sync::CancellationToken;

const WARM_UP: usize = 10;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [mode, api, url, streams] = arguments.as_slice() else { bail!("usage: models_compare decode|memory API URL STREAMS") };
    let streams = streams.parse().context("read the number of streams")?;
    // One thread, as the others have for their callers.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = match mode.as_str() {
        "decode" => runtime.block_on(timed(api, url, streams))?,
        "memory" => runtime.block_on(held(api, url, streams))?,
        other => bail!("there is no mode {other:?}; use decode or memory"),
    };
    let members = [("who", Json::from("picofleet")), ("mode", mode.as_str().into()), ("api", api.as_str().into())];
    println!("{}", js::stringify(&Json::object(members.into_iter().chain(result))));
    Ok(())
}

type Members = Vec<(&'static str, Json)>;

/// A provider and the one request that is made of it.
#[derive(Clone)]
struct Subject {
    provider: Arc<dyn Provider>,
    model: Model,
    context: Context,
}

impl Subject {
    fn new(name: &str, url: &str) -> Result<Self> {
        let options = ClientOptions { environment_proxies: false, ..ClientOptions::default() };
        let client = Client::new(options, Clock::system())?;
        let key = Some("test-key".into());
        let (api, path, provider): (_, _, Arc<dyn Provider>) = match name {
            "chat" => (openai_chat::API, "/v1", Arc::new(openai_chat::OpenAiChat::new(client, key))),
            "messages" => (anthropic::API, "", Arc::new(anthropic::Anthropic::new(client, key))),
            "responses" => (openai_responses::API, "/v1", Arc::new(openai_responses::OpenAiResponses::new(client, key))),
            other => bail!("there is no API {other:?}; use chat, messages or responses"),
        };
        let model = format!(
            r#"{{"id": "bench-model", "name": "Bench", "api": "{api}", "provider": "bench", "baseUrl": "{url}{path}",
                "reasoning": false, "input": ["text"], "cost": {{"input": 3, "output": 15, "cacheRead": 0.3, "cacheWrite": 3.75}},
                "contextWindow": 200000, "maxTokens": 8192}}"#
        );
        let context = r#"{"messages": [{"role": "user", "content": "Go on.", "timestamp": 1}]}"#;
        Ok(Self { provider, model: model.parse::<Json>()?.to()?, context: context.parse::<Json>()?.to()? })
    }

    fn open(&self) -> futures::stream::BoxStream<'static, StreamEvent> {
        self.provider.stream(&self.model, &self.context, &StreamOptions::default(), CancellationToken::new())
    }

    /// The final message. On the way there is the answer so far, as those who show it keep it.
    async fn decode(&self) -> Result<AssistantMessage> {
        let mut partial = Partial::default();
        let mut stream = self.open();
        while let Some(event) = stream.next().await {
            partial.apply(&event);
            match event {
                StreamEvent::Done { message } => return Ok(*message),
                StreamEvent::Error { message } => bail!("the stream failed: {}", message.error_message.unwrap_or_default()),
                _ => {}
            }
        }
        bail!("the stream ended without an end")
    }
}

async fn timed(api: &str, url: &str, streams: usize) -> Result<Members> {
    let subject = Subject::new(api, url)?;
    let mut last = None;
    let (mut wall, mut cpu) = (Vec::new(), Vec::new());
    for number in 0..WARM_UP + streams {
        let (from, spent) = (Instant::now(), processor_time());
        last = Some(subject.decode().await?);
        if number >= WARM_UP {
            wall.push(from.elapsed().as_secs_f64() * 1e3);
            cpu.push((processor_time() - spent) * 1e3);
        }
    }
    let message = last.context("decode at least one stream")?;
    let numbers = |all: Vec<f64>| all.into_iter().map(Json::try_from).collect::<Result<Json, _>>().context("a time is no number");
    let mut found: Members = vec![("wall", numbers(wall)?), ("cpu", numbers(cpu)?), ("output", message.usage.output.into())];
    let (mut text, mut thinking) = (0, 0);
    for block in &message.content {
        match block {
            AssistantBlock::Text(block) => text += block.text.chars().count(),
            AssistantBlock::Thinking(block) => thinking += block.thinking.chars().count(),
            AssistantBlock::ToolCall(call) => found.push(("arguments", call.arguments.clone())),
        }
    }
    found.extend([("text", text.into()), ("thinking", thinking.into())]);
    Ok(found)
}

/// Processor time of the process, in seconds.
fn processor_time() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default().as_secs_f64()
}

/// Memory of streams that got their half and wait for the rest; `characters` is what they have of thinking and text.
async fn held(api: &str, url: &str, streams: usize) -> Result<Members> {
    let whole = Subject::new(api, url)?;
    for _ in 0..WARM_UP {
        whole.decode().await?;
    }
    let half = Subject::new(api, &format!("{url}/half"))?;
    let before = resident_kib()?;
    let (events, characters) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..streams {
        let (half, events, characters) = (half.clone(), Arc::clone(&events), Arc::clone(&characters));
        tasks.spawn(async move {
            let mut partial = Partial::default();
            let mut stream = half.open();
            while let Some(event) = stream.next().await {
                partial.apply(&event);
                events.fetch_add(1, Ordering::Relaxed);
                if let StreamEvent::TextDelta { delta, .. } | StreamEvent::ThinkingDelta { delta, .. } = &event {
                    characters.fetch_add(delta.chars().count() as u64, Ordering::Relaxed);
                }
            }
        });
    }
    let mut last = None;
    while last != Some(events.load(Ordering::Relaxed)) || last == Some(0) {
        last = Some(events.load(Ordering::Relaxed));
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
    ensure!(tasks.try_join_next().is_none(), "a stream ended that stays open");
    let after = resident_kib()?;
    Ok(vec![
        ("before", before.into()),
        ("after", after.into()),
        ("streams", streams.into()),
        ("characters", characters.load(Ordering::Relaxed).into()),
    ])
}

fn resident_kib() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
