use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use futures::StreamExt as _;
use picofleet_session::Millis;
use picofleet_session::message::{AssistantBlock, AssistantMessage, Message, StopReason, TextOrBlocks, UserMessage};

use super::*;
use crate::breaker::BreakerOptions;
use crate::config::ModelsConfig;
use crate::http::HttpError;
use crate::limiter::Limits;
use crate::provider::empty_answer;

fn clock() -> Clock {
    Clock::manual(Millis(1))
}

fn models(text: &str) -> Models {
    let config: ModelsConfig = toml::from_str(text).unwrap();
    Models::new(&config.providers, clock(), |_| None)
}

fn says(text: &str) -> Message {
    Message::from(UserMessage { content: TextOrBlocks::Text(text.to_owned()), timestamp: Millis(1) })
}

async fn answer(provider: &dyn Provider, model: &Model, messages: Vec<Message>) -> AssistantMessage {
    let context = Context { messages, ..Context::default() };
    let stream = provider.stream(model, &context, &StreamOptions::default(), CancellationToken::new());
    let events: Vec<_> = stream.collect().await;
    events.last().unwrap().final_message().unwrap().clone()
}

#[tokio::test]
async fn without_configuration_a_script_calls_a_tool_and_ends() {
    let models = models("");
    let model = models.default_model(&Defaults::default()).unwrap().clone();
    assert_eq!((model.provider.as_str(), model.id.as_str()), (SCRIPTED_PROVIDER, SCRIPTED_MODEL));
    assert_eq!(models.problems().count(), 0);
    let mut messages = vec![says("hello")];
    let mut calls = Vec::new();
    for _ in 0..5 {
        let message = answer(&models, &model, messages.clone()).await;
        calls.push(message.stop_reason);
        messages.extend([Message::from(message), says("go on")]);
    }
    assert_eq!(calls, [StopReason::ToolUse, StopReason::Stop, StopReason::Stop, StopReason::Stop, StopReason::Stop]);
}

#[tokio::test]
async fn a_script_comes_from_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let toml = file("a.toml", "[[turns]]\nblocks = [{ type = \"text\", chunks = [\"toml\"] }]");
    let json = file("a.JSON", r#"{"turns":[{"blocks":[{"type":"text","chunks":["json"]}]}]}"#);
    let bad = file("bad.toml", "turns = 1");
    let missing = directory.path().join("missing.toml");
    for (path, expected) in [(&toml, Ok("toml")), (&json, Ok("json")), (&bad, Err("read script as TOML")), (&missing, Err("missing.toml"))]
    {
        let models = models(&format!(
            "[providers.s]\napi = \"scripted\"\nscript = '{}'\n[[providers.s.models]]\nid = \"m\"\ncontext_window = 1\nmax_tokens = 1",
            path.display()
        ));
        let message = answer(&models, &models.get_model("s", "m").unwrap().clone(), vec![says("x")]).await;
        match expected {
            Ok(text) => assert!(matches!(&message.content[..], [AssistantBlock::Text(own)] if own.text == text)),
            Err(text) => {
                assert!(message.error_message.unwrap().contains(text));
                assert_eq!(models.problems().map(|(id, _)| id).collect::<Vec<_>>(), ["s"]);
            }
        }
    }
}

/// Pipes have nobody who writes, and the device never ends: neither is opened.
#[cfg(unix)]
#[test]
fn only_regular_files_are_read_and_up_to_a_bound() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let large = directory.path().join("large");
    std::fs::File::create(&large).unwrap().set_len(FILE_MAX + 1).unwrap();
    let kind = "it is a pipe, a device or a socket; only a regular file is read";
    for (api, name) in [("scripted", "script"), ("openai-responses", "ca_file"), ("openai-responses", "api_key_file")] {
        for (path, expected) in [
            (std::path::Path::new("/dev/zero"), kind),
            (&pipe, kind),
            (directory.path(), "it is a folder and no file"),
            (&large, if name == "api_key_file" { "it has more than 64 KiB" } else { "it has more than 16 MiB" }),
        ] {
            let scripted = if api == "scripted" { "" } else { "base_url = \"https://127.0.0.1:1\"\n" };
            let models = models(&format!("[providers.s]\napi = \"{api}\"\n{name} = '{}'\n{scripted}", path.display()));
            let problems: Vec<_> = models.problems().map(|(_, problem)| problem.with_causes()).collect();
            assert!(problems[0].contains(&*path.to_string_lossy()) && problems[0].ends_with(expected), "{name}: {problems:?}");
        }
    }
}

const KEYED: &str = "[providers.a]\napi = \"openai-responses\"\nbase_url = \"http://127.0.0.1:1/v1\"\napi_key_env = \"A_KEY\"\n\
    [[providers.a.models]]\nid = \"m\"\ncontext_window = 1000\nmax_tokens = 10";

#[tokio::test]
async fn what_cannot_be_set_up_is_an_error_event() {
    let models = models(KEYED);
    let model = models.get_model("a", "m").unwrap().clone();
    let message = answer(&models, &model, vec![says("x")]).await;
    let text = "read a key from the environment variable A_KEY: it is not set; set it or change api_key_env";
    assert_eq!((message.stop_reason, message.error_message.as_deref()), (StopReason::Error, Some(text)));
    assert_eq!((message.provider.as_str(), message.timestamp), ("a", Millis(1)));

    let unknown = Model { provider: "z".to_owned(), ..model };
    assert_eq!(answer(&models, &unknown, Vec::new()).await.error_message.unwrap(), "Unknown provider: z");
    let handle: DeferredHandle =
        r#"{"provider":"z","modelId":"m","api":"x","id":"1"}"#.parse::<picofleet_delta::Json>().unwrap().to().unwrap();
    let events: Vec<_> = models.fetch_deferred(&unknown, &handle, CancellationToken::new()).collect().await;
    assert_eq!(events[0].final_message().unwrap().error_message.as_deref(), Some("Unknown provider: z"));
    let refused = models.cancel_deferred(&unknown, &handle).await;
    assert_eq!(refused, Err(CancelDeferredError::Refused("Unknown provider: z".to_owned())));
}

#[test]
fn a_default_that_is_not_there_is_none() {
    let models = models(KEYED);
    let default = |model: &str| Defaults { model: Some(model.to_owned()), thinking_level: None };
    assert_eq!(models.default_model(&default("a/m")).unwrap().id, "m");
    for name in ["a/z", "z/m", "m"] {
        assert!(models.default_model(&default(name)).is_none(), "{name}");
    }
    assert_eq!(models.models().map(|model| model.id.as_str()).collect::<Vec<_>>(), ["m", SCRIPTED_MODEL]);
}

/// What one request comes to.
struct Turn {
    /// What the client tells the breaker.
    reached: Option<bool>,
    events: Vec<StreamEvent>,
}

/// Plays turns in order; a stream may stand still before its end.
struct Fake {
    turns: Mutex<VecDeque<Turn>>,
    breaker: Breaker,
    stall: bool,
}

impl Provider for Fake {
    fn stream(&self, _: &Model, _: &Context, _: &StreamOptions, _: CancellationToken) -> BoxStream<'static, StreamEvent> {
        let turn = self.turns.lock().unwrap().pop_front().expect("one more request than expected");
        match turn.reached {
            Some(true) => self.breaker.trip().reached(),
            Some(false) => self.breaker.trip().not_reached(),
            None => {}
        }
        let events = futures::stream::iter(turn.events);
        if self.stall { events.chain(futures::stream::pending()).boxed() } else { events.boxed() }
    }
}

fn demo_model() -> Model {
    models("").get_model(SCRIPTED_PROVIDER, SCRIPTED_MODEL).unwrap().clone()
}

fn message(stop_reason: StopReason, text: Option<String>, tokens: u64) -> AssistantMessage {
    let mut message = AssistantMessage { stop_reason, error_message: text, ..empty_answer(&demo_model(), Millis(1)) };
    message.usage.total_tokens = tokens;
    message
}

fn start() -> StreamEvent {
    StreamEvent::Start { message: Box::new(empty_answer(&demo_model(), Millis(1))) }
}

fn works(tokens: u64) -> Turn {
    Turn { reached: Some(true), events: vec![start(), StreamEvent::terminal(message(StopReason::Stop, None, tokens))] }
}

fn fails(reached: bool, text: impl ToString) -> Turn {
    Turn { reached: Some(reached), events: vec![StreamEvent::terminal(message(StopReason::Error, Some(text.to_string()), 0))] }
}

fn unreachable() -> Turn {
    fails(false, HttpError::Connect { cause: "connection refused".to_owned() })
}

/// What a fetch of a deferred answer says when it did not get through.
fn pending() -> Turn {
    Turn { reached: Some(false), events: vec![start(), StreamEvent::terminal(message(StopReason::Deferred, None, 0))] }
}

fn guarded(turns: impl IntoIterator<Item = Turn>, limits: Limits) -> Guarded {
    guarded_with(turns, limits, false)
}

fn guarded_with(turns: impl IntoIterator<Item = Turn>, limits: Limits, stall: bool) -> Guarded {
    let breaker = Breaker::new("acme", BreakerOptions { failures: 2, open_ms: 1000 });
    let inner = Arc::new(Fake { turns: Mutex::new(turns.into_iter().collect()), breaker: breaker.clone(), stall });
    Guarded { inner, limiter: Limiter::new("acme", limits), breaker, clock: clock() }
}

async fn ask(guarded: &Guarded) -> AssistantMessage {
    answer(guarded, &demo_model(), vec![says("1234567")]).await
}

#[tokio::test(start_paused = true)]
async fn connections_that_fail_open_the_breaker_and_one_that_works_closes_it() {
    let no_answer = fails(false, HttpError::NoAnswer);
    let refusal = fails(true, "acme API error (500): 500 busy");
    let guarded = guarded([unreachable(), refusal, no_answer, unreachable(), works(5), works(5)], Limits::default());
    for _ in 0..4 {
        assert!(!ask(&guarded).await.error_message.unwrap().contains("was not made"));
    }
    let refused = ask(&guarded).await;
    assert!(refused.error_message.unwrap().starts_with("Connection error: provider acme was not reached 2 times in a row"));
    tokio::time::advance(Duration::from_secs(1)).await;
    for _ in 0..2 {
        assert_eq!(ask(&guarded).await.stop_reason, StopReason::Stop);
    }
}

/// What the client tells counts, whatever the events look like.
#[tokio::test(start_paused = true)]
async fn fetches_that_do_not_get_through_open_the_breaker_and_keep_it_open() {
    let guarded = guarded([unreachable(), pending(), pending(), works(1)], Limits::default());
    let mut last = Vec::new();
    for seconds in [0, 0, 0, 1, 1, 1] {
        tokio::time::advance(Duration::from_secs(seconds)).await;
        last.push(ask(&guarded).await.stop_reason);
    }
    // The third is not made. The probe after a second is not answered, so that the next one comes two seconds later.
    assert_eq!(
        last,
        [StopReason::Error, StopReason::Deferred, StopReason::Error, StopReason::Deferred, StopReason::Error, StopReason::Stop]
    );
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_breaks_off_is_no_failed_connection() {
    let cut = || {
        let text = HttpError::Connect { cause: "x".to_owned() }.to_string();
        Turn { reached: Some(true), events: vec![start(), StreamEvent::terminal(message(StopReason::Error, Some(text), 0))] }
    };
    let guarded = guarded([cut(), cut(), cut(), works(1)], Limits::default());
    for _ in 0..3 {
        ask(&guarded).await;
    }
    assert_eq!(ask(&guarded).await.stop_reason, StopReason::Stop);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_is_given_up_is_followed_by_another() {
    let given_up =
        || Turn { reached: None, events: vec![StreamEvent::terminal(message(StopReason::Aborted, Some("aborted".to_owned()), 0))] };
    let guarded = guarded([unreachable(), unreachable(), given_up(), works(1)], Limits::default());
    ask(&guarded).await;
    ask(&guarded).await;
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(ask(&guarded).await.stop_reason, StopReason::Aborted);
    assert_eq!(ask(&guarded).await.stop_reason, StopReason::Stop);
}

#[tokio::test(start_paused = true)]
async fn tokens_count_with_the_estimate_and_then_as_they_were() {
    let limits = Limits { tokens_per_minute: Some(100), ..Limits::default() };
    let guarded = guarded([works(60), works(97), works(1)], limits);
    let began = tokio::time::Instant::now();
    // Two tokens by the estimate.
    for waited in [0, 0, 60] {
        ask(&guarded).await;
        assert_eq!(began.elapsed().as_secs(), waited);
    }
}

#[tokio::test(start_paused = true)]
async fn a_running_stream_holds_its_place_until_it_is_dropped() {
    let limits = Limits { concurrency: Some(1), wait_max_ms: 1500, ..Limits::default() };
    let guarded = guarded_with([Turn { reached: Some(true), events: vec![start()] }, works(1)], limits, true);
    let context = Context::default();
    let mut running = guarded.stream(&demo_model(), &context, &StreamOptions::default(), CancellationToken::new());
    assert_eq!(running.next().await, Some(start()));

    let text = ask_first(&guarded).await.final_message().unwrap().error_message.clone().unwrap();
    assert!(text.starts_with("Rate limit of provider acme: the request waited 1.5 s"), "{text}");

    let cancel = CancellationToken::new();
    cancel.cancel();
    let cancelled: Vec<_> = guarded.stream(&demo_model(), &context, &StreamOptions::default(), cancel).collect().await;
    assert_eq!(cancelled[0].final_message().unwrap().stop_reason, StopReason::Aborted);

    drop(running);
    assert_eq!(ask_first(&guarded).await, start());
}

async fn ask_first(guarded: &Guarded) -> StreamEvent {
    guarded.stream(&demo_model(), &Context::default(), &StreamOptions::default(), CancellationToken::new()).next().await.unwrap()
}
