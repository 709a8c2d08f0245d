//! Configured providers against a server on loopback: the key goes out in the header and nowhere else.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "openai_responses/server.rs"]
#[allow(dead_code, reason = "other tests use the rest of it")]
mod server;

use std::fmt::Debug;

use futures::StreamExt as _;
use picofleet_delta::Json;
use picofleet_models::config::{ModelsConfig, check};
use picofleet_models::limiter::Limits;
use picofleet_models::provider::{Context, DeferredRequest, Provider as _, StreamEvent, StreamOptions};
use picofleet_models::registry::{Models, Secret};
use picofleet_session::message::{AssistantMessage, DeferredHandle, Message, StopReason, TextOrBlocks, UserMessage};
use picofleet_session::{Clock, Millis};
use server::{Reply, Server, soon};
use tokio_util::sync::CancellationToken;

const KEY: &str = "sk-hush-0123456789";

/// The three APIs: the name, the path below the server, the header of the key.
const APIS: [(&str, &str, &str); 3] =
    [("openai-completions", "/v1", "authorization"), ("openai-responses", "/v1", "authorization"), ("anthropic-messages", "", "x-api-key")];

fn config(api: &str, base_url: &str) -> ModelsConfig {
    let text = format!(
        "[providers.acme]\napi = \"{api}\"\nbase_url = \"{base_url}\"\napi_key_env = \"ACME_KEY\"\nhttp = {{ environment_proxies = false }}\n\
         [[providers.acme.models]]\nid = \"m\"\ncontext_window = 100000\nmax_tokens = 1000\n[defaults]\nmodel = \"acme/m\""
    );
    toml::from_str(&text).unwrap()
}

async fn ask(models: &Models, config: &ModelsConfig) -> Vec<StreamEvent> {
    ask_with(models, config, &StreamOptions::default()).await
}

async fn ask_with(models: &Models, config: &ModelsConfig, options: &StreamOptions) -> Vec<StreamEvent> {
    let message = UserMessage { content: TextOrBlocks::Text("hello".to_owned()), timestamp: Millis(1) };
    let context = Context { messages: vec![Message::from(message)], ..Context::default() };
    let model = models.default_model(&config.defaults).unwrap();
    soon("the end", models.stream(model, &context, options, CancellationToken::new()).collect()).await
}

/// Fails if a text has the key, or a part of it that gives it away.
fn quiet(text: &str) {
    assert!(!text.contains(KEY) && !text.contains("hush"), "{text}");
}

fn shown(value: &impl Debug) -> String {
    format!("{value:?}")
}

#[tokio::test]
async fn the_key_goes_into_its_header_and_nowhere_else() {
    for (api, path, header) in APIS {
        // A server that gives away what it was told.
        let bodies = [
            Reply::json(401, &format!(r#"{{"error":{{"type":"authentication_error","message":"bad key {KEY}"}}}}"#)),
            Reply::new(500, "text/plain", format!("bad key {KEY}")),
            Reply::events(format!("event: error\ndata: {{\"type\":\"error\",\"error\":{{\"message\":\"bad key {KEY}\"}}}}\n\n")),
        ];
        for reply in bodies {
            let server = Server::start([reply]).await;
            let config = config(api, &server.base_url.replace("/v1", path));
            assert_eq!(check(&config.providers, &config.defaults), []);
            let models = Models::new(&config.providers, Clock::manual(Millis(1)), |name| (name == "ACME_KEY").then(|| KEY.into()));
            let events = ask(&models, &config).await;
            let message = events.last().unwrap().final_message().unwrap();
            assert_eq!(message.stop_reason, StopReason::Error);
            assert!(message.error_message.as_ref().unwrap().contains("bad key [redacted]"), "{message:?}");
            let sent = server.received()[0].header(header).unwrap().to_owned();
            assert!(sent.ends_with(KEY), "{sent}");
            quiet(&shown(&events));
            quiet(&Json::from_serde(message).unwrap().to_string());
            quiet(&shown(&toml::Value::try_from(&config).unwrap()));
            quiet(&String::from_utf8(server.received()[0].body.clone()).unwrap());
        }
    }
    let secret = Secret::new(KEY);
    quiet(&format!("{secret} {secret:?}"));
}

/// A gateway that wants its key under a name of its own gets it, and what it repeats of it is not told.
#[tokio::test]
async fn a_key_in_any_header_counts_as_a_key_and_is_taken_out_of_errors() {
    for (api, path, _) in APIS {
        for (name, value) in
            [("x-goog-api-key", KEY.to_owned()), ("X-Gateway-Token", KEY.to_owned()), ("cookie", format!("team=blue; session={KEY}; a=b"))]
        {
            let body = format!(r#"{{"error":{{"type":"authentication_error","message":"bad key {KEY}"}}}}"#);
            let mut reply = Reply::json(401, &body);
            reply.headers.push(("x-request-id".to_owned(), format!("of-{KEY}")));
            let server = Server::start([reply]).await;
            let mut config = config(api, &server.base_url.replace("/v1", path));
            let provider = config.providers.get_mut("acme").unwrap();
            provider.api_key_env = None;
            provider.headers.insert(name.to_owned(), value.clone());
            assert_eq!(check(&config.providers, &config.defaults), []);
            let models = Models::new(&config.providers, Clock::manual(Millis(1)), |_| None);
            let events = ask(&models, &config).await;
            let text = events.last().unwrap().final_message().unwrap().error_message.clone().unwrap();
            assert!(text.contains("bad key [redacted]"), "{text}");
            assert_eq!(server.received()[0].header(&name.to_ascii_lowercase()), Some(value.as_str()));
            assert_eq!(server.received()[0].header("authorization"), None);
            quiet(&shown(&events));
            quiet(&shown(&toml::Value::try_from(&config).unwrap()));
            quiet(&shown(&config));
            quiet(&shown(&models.default_model(&config.defaults)));
        }
    }
}

/// Values under every name are kept from `Debug`: a name need not tell that a value is a credential.
#[test]
fn debug_texts_have_names_of_headers_and_no_values() {
    let mut config = config("openai-completions", "http://127.0.0.1:1");
    config.providers.get_mut("acme").unwrap().headers.insert("x-team".to_owned(), KEY.to_owned());
    let models = Models::new(&config.providers, Clock::manual(Millis(1)), |_| Some(KEY.into()));
    let model = models.default_model(&config.defaults).unwrap();
    let options = StreamOptions { headers: [("x-team".to_owned(), Some(KEY.to_owned()))].into(), ..StreamOptions::default() };
    for text in [shown(&config), shown(model), shown(&options)] {
        assert!(text.contains("x-team"), "{text}");
        quiet(&text);
    }
}

#[tokio::test]
async fn a_provider_without_a_key_is_asked_without_one() {
    for (api, path, header) in APIS {
        let server = Server::start([Reply::json(500, "{}")]).await;
        let mut config = config(api, &server.base_url.replace("/v1", path));
        config.providers.get_mut("acme").unwrap().api_key_env = None;
        assert_eq!(check(&config.providers, &config.defaults), []);
        let models = Models::new(&config.providers, Clock::manual(Millis(1)), |_| None);
        let events = ask(&models, &config).await;
        let text = events.last().unwrap().final_message().unwrap().error_message.clone().unwrap();
        assert!(text.contains("500"), "{api}: {text}");
        assert_eq!((server.received()[0].header(header), server.received()[0].header("authorization")), (None, None));
    }
}

/// What is cut off of a long refusal may have had the end of a key that it repeats.
#[tokio::test]
async fn a_refusal_that_is_cut_within_the_key_tells_no_part_of_it() {
    let filling = "x".repeat(picofleet_models::http::ERROR_BODY_MAX - 10);
    let server = Server::start([Reply::new(500, "text/plain", format!("{filling}{KEY} and more"))]).await;
    let config = config("openai-completions", &server.base_url);
    let models = Models::new(&config.providers, Clock::manual(Millis(1)), |_| Some(KEY.into()));
    let text = ask(&models, &config).await.last().unwrap().final_message().unwrap().error_message.clone().unwrap();
    assert!(text.contains("xxx[redacted]"), "{}", &text[text.len() - 100..]);
    quiet(&text[text.len() - 100..]);
}

#[tokio::test]
async fn a_key_in_a_file_that_is_not_there_names_the_file() {
    let mut config = config("openai-responses", "http://127.0.0.1:1/v1");
    let provider = config.providers.get_mut("acme").unwrap();
    provider.api_key_env = None;
    provider.api_key_file = Some("/nowhere/key".into());
    let models = Models::new(&config.providers, Clock::manual(Millis(1)), |_| None);
    let events = ask(&models, &config).await;
    let text = events[0].final_message().unwrap().error_message.clone().unwrap();
    assert!(text.starts_with("read a key from the file /nowhere/key") && text.contains("No such file"), "{text}");
}

#[tokio::test]
async fn a_provider_that_is_away_is_not_asked_for_a_while() {
    // Nobody listens there: the server is gone before the first request.
    let base_url = Server::start([Reply::json(200, "{}")]).await.base_url.clone();
    let config = config("openai-responses", &base_url);
    let models = Models::new(&config.providers, Clock::manual(Millis(1)), |_| Some(KEY.into()));
    let mut texts = Vec::new();
    for _ in 0..6 {
        let events = ask(&models, &config).await;
        texts.push(events.last().unwrap().final_message().unwrap().error_message.clone().unwrap());
    }
    assert!(texts[4].starts_with("Connection error.: "), "{texts:?}");
    assert!(texts[5].starts_with("Connection error: provider acme was not reached 5 times in a row"), "{texts:?}");
}

fn handle(api: &str) -> DeferredHandle {
    let text = format!(r#"{{"provider":"acme","modelId":"m","api":"{api}","id":"x_1"}}"#);
    text.parse::<Json>().unwrap().to().unwrap()
}

async fn fetch(models: &Models, config: &ModelsConfig, api: &str) -> AssistantMessage {
    let model = models.default_model(&config.defaults).unwrap();
    let events: Vec<_> = soon("the end", models.fetch_deferred(model, &handle(api), CancellationToken::new()).collect()).await;
    events.last().unwrap().final_message().unwrap().clone()
}

/// A fetch that does not get through says that the answer is pending, which is no sign of the provider.
#[tokio::test]
async fn fetches_from_a_provider_that_is_away_open_its_breaker() {
    let base_url = Server::start([Reply::json(200, "{}")]).await.base_url.clone();
    for (api, _, _) in &APIS[1..] {
        let config = config(api, &base_url);
        let models = Models::new(&config.providers, Clock::manual(Millis(1)), |_| Some(KEY.into()));
        for _ in 0..5 {
            assert_eq!(fetch(&models, &config, api).await.stop_reason, StopReason::Deferred, "{api}");
        }
        let text = fetch(&models, &config, api).await.error_message.unwrap();
        assert!(text.starts_with("Connection error: provider acme was not reached 5 times in a row"), "{api}: {text}");
    }
}

/// Deferred answers have the redaction of streams: of every header that holds a credential.
#[tokio::test]
async fn keys_in_any_header_are_taken_out_of_what_deferred_answers_quote() {
    let failed = format!(r#"{{"id":"x_1","status":"failed","error":{{"code":"c","message":"bad key {KEY}"}}}}"#);
    let odd = format!(r#"{{"bad key {KEY}":1}}"#);
    for ((api, path, _), body) in APIS[1..].iter().zip([failed, odd]) {
        let server = Server::start([Reply::json(200, &body), Reply::json(200, &body), Reply::json(400, &format!("bad key {KEY}"))]).await;
        let mut config = config(api, &server.base_url.replace("/v1", path));
        let provider = config.providers.get_mut("acme").unwrap();
        provider.api_key_env = None;
        provider.headers.insert("x-gateway-token".to_owned(), KEY.to_owned());
        let models = Models::new(&config.providers, Clock::manual(Millis(1)), |_| None);
        let model = models.default_model(&config.defaults).unwrap();
        let options = StreamOptions { deferred: Some(DeferredRequest::Flag(true)), ..StreamOptions::default() };
        let made = ask_with(&models, &config, &options).await.last().unwrap().final_message().unwrap().clone();
        let fetched = fetch(&models, &config, api).await;
        for text in [made.error_message.unwrap(), fetched.error_message.unwrap()] {
            assert!(text.contains("bad key [redacted]"), "{api}: {text}");
            quiet(&text);
        }
        let cancelled = soon("the end", models.cancel_deferred(model, &handle(api))).await;
        assert!(cancelled.as_ref().unwrap_err().to_string().contains("bad key [redacted]"), "{api}: {cancelled:?}");
        quiet(&shown(&cancelled));
    }
}

#[tokio::test]
async fn retries_count_for_the_requests_per_minute() {
    for (api, path, _) in APIS {
        let server = Server::start([Reply::new(503, "text/plain", "busy").with("retry-after-ms", "0")]).await;
        let mut config = config(api, &server.base_url.replace("/v1", path));
        let acme = config.providers.get_mut("acme").unwrap();
        acme.limits = Limits { requests_per_minute: Some(2), wait_max_ms: 1, ..Limits::default() };
        let models = Models::new(&config.providers, Clock::system(), |_| Some(KEY.into()));
        let options = StreamOptions { max_retries: Some(1), ..StreamOptions::default() };
        let mut texts = Vec::new();
        for _ in 0..2 {
            let events = ask_with(&models, &config, &options).await;
            texts.push(events.last().unwrap().final_message().unwrap().error_message.clone().unwrap());
        }
        assert!(texts[0].contains("503") && texts[1].contains("its requests per minute"), "{api}: {texts:?}");
        assert_eq!(server.received().len(), 2);
    }
}
