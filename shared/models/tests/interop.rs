//! The adapters against servers that others wrote. `tests/interop/models/run` of the repository starts the servers, says where they
//! are and runs these tests, which are ignored without it.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail as tests do")]
#![allow(clippy::print_stdout, reason = "the table is what a person reads")]

use std::time::Duration;

use futures::StreamExt as _;
use picofleet_delta::Json;
use picofleet_models::classify::is_retryable_assistant_error;
use picofleet_models::http::{Client, ClientOptions};
use picofleet_models::model::Model;
use picofleet_models::provider::{Context, Provider, StreamEvent, StreamOptions};
use picofleet_models::{anthropic, openai_chat, openai_responses};
use picofleet_session::Clock;
use picofleet_session::message::{AssistantBlock, AssistantMessage, StopReason};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// What the servers answer, also in `aimock.json` and `fakellm.yaml`.
const TEXT: &str = "Hello 😀 from another server, in several pieces.";

/// Longest time for one answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long the client waits for a stream that stalls.
const IDLE: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Case {
    /// A text in pieces.
    Text,
    /// One tool call.
    Tool,
    /// Status 400.
    Refused,
    /// Status 500.
    Failed,
    /// Status 429 once, with a delay of a second; then a text.
    Limit,
    /// Status 429 with a delay that is too long.
    LongLimit,
    /// The connection closes within a text.
    Cut,
    /// The body ends well within a text.
    Short,
    /// A piece is no JSON.
    Malformed,
    /// Nothing comes for too long.
    Stalled,
}

impl Case {
    const fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Tool => "tool",
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::Limit => "limit",
            Self::LongLimit => "long limit",
            Self::Cut => "cut",
            Self::Short => "short",
            Self::Malformed => "malformed",
            Self::Stalled => "stalled",
        }
    }

    /// The behaviours that `llmock` is told.
    fn scenario(self) -> String {
        let text = format!(r#"{{"type": "reply", "text": "{TEXT}"}}"#);
        let broken = |rest: &str| format!(r#"{text}, {{"type": "stream_fault", "after_chunks": 4, {rest}}}"#);
        let behaviours = match self {
            Self::Text => text,
            Self::Tool => {
                r#"{"type": "reply", "tool_calls": [{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}]}"#.to_owned()
            }
            Self::Refused => r#"{"type": "fail", "status": 400, "message": "no such thing"}"#.to_owned(),
            Self::Failed => r#"{"type": "fail", "status": 500, "message": "out of order"}"#.to_owned(),
            Self::LongLimit => r#"{"type": "fail", "status": 429, "message": "too fast", "retry_after": 30}"#.to_owned(),
            Self::Limit => format!(r#"{{"type": "fail", "status": 429, "retry_after": 1}}, {text}"#),
            Self::Cut => broken(r#""kind": "disconnect""#),
            Self::Short => broken(r#""kind": "truncate""#),
            Self::Malformed => broken(r#""kind": "malformed""#),
            Self::Stalled => broken(r#""kind": "stall", "stall_seconds": 20"#),
        };
        format!(r#"{{"behaviors": [{behaviours}]}}"#)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Api {
    Chat,
    Anthropic,
    Responses,
}

impl Api {
    const fn name(self) -> &'static str {
        match self {
            Self::Chat => openai_chat::API,
            Self::Anthropic => anthropic::API,
            Self::Responses => openai_responses::API,
        }
    }

    fn provider(self) -> Box<dyn Provider> {
        let options = ClientOptions { idle_timeout: IDLE, environment_proxies: false, ..ClientOptions::default() };
        let client = Client::new(options, Clock::system()).unwrap();
        let key = Some("test-key".into());
        match self {
            Self::Chat => Box::new(openai_chat::OpenAiChat::new(client, key)),
            Self::Anthropic => Box::new(anthropic::Anthropic::new(client, key)),
            Self::Responses => Box::new(openai_responses::OpenAiResponses::new(client, key)),
        }
    }
}

struct Server {
    name: &'static str,
    url: String,
    /// Where each API is that it has.
    apis: &'static [(Api, &'static str)],
    cases: &'static [Case],
}

impl Server {
    /// The server at the URL in an environment variable.
    fn of(name: &'static str, apis: &'static [(Api, &'static str)], cases: &'static [Case]) -> Self {
        let variable = format!("PICOFLEET_INTEROP_URL_{}", name.to_uppercase());
        let url = std::env::var(&variable).unwrap_or_else(|_| panic!("{variable} is not set; tests/interop/models/run sets it"));
        Self { name, url, apis, cases }
    }

    /// Runs all cases and prints a line for each.
    async fn check(&self) {
        let mut failed = Vec::new();
        println!();
        for (api, path) in self.apis {
            for case in self.cases {
                let started = tokio::time::Instant::now();
                if self.name == "llmock" {
                    self.tell("reset", String::new()).await;
                    self.tell("scenario", case.scenario()).await;
                }
                let events = self.ask(*api, path, *case).await;
                // Its chat completions tell no usage.
                let counts = self.name != "fakellm" || *api != Api::Chat;
                let mut problems = problems(*case, &events, started.elapsed(), counts);
                if self.name == "llmock" {
                    problems.extend(self.verdict().await);
                }
                let outcome = if problems.is_empty() { "ok" } else { "FAILED" };
                let error = last(&events).error_message.as_deref().unwrap_or_default();
                println!("{:8} {:20} {:11} {outcome:7} {error}", self.name, api.name(), case.name());
                if !problems.is_empty() {
                    failed.push(format!("{} {} {}: {}\n{events:#?}", self.name, api.name(), case.name(), problems.join("; ")));
                }
            }
        }
        assert!(failed.is_empty(), "{}", failed.join("\n"));
    }

    async fn ask(&self, api: Api, path: &str, case: Case) -> Vec<StreamEvent> {
        let (url, id) = (&self.url, format!("{}-{}", api.name(), case.name()));
        let model = format!(
            r#"{{"id": "model-1", "name": "Model 1", "api": "{}", "provider": "{}", "baseUrl": "{url}{path}", "reasoning": false,
                "input": ["text"], "cost": {{"input": 3, "output": 15, "cacheRead": 0.3, "cacheWrite": 3.75}},
                "contextWindow": 200000, "maxTokens": 8192}}"#,
            api.name(),
            self.name
        );
        let model: Model = model.parse::<Json>().unwrap().to().unwrap();
        let tools = if case == Case::Tool {
            r#", "tools": [{"name": "get_weather", "description": "The weather", "parameters": {"type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city", "days"]}}]"#
        } else {
            ""
        };
        let context = format!(
            r#"{{"systemPrompt": "Be brief.", "messages": [{{"role": "user", "content": "interop {}", "timestamp": 1}}]{tools}}}"#,
            case.name()
        );
        let context: Context = context.parse::<Json>().unwrap().to().unwrap();
        let options = StreamOptions {
            max_retries: Some(u32::from(matches!(case, Case::Limit | Case::LongLimit))),
            max_retry_delay_ms: Some(5000),
            // `aimock` counts requests by it.
            headers: [("x-test-id".to_owned(), Some(id))].into(),
            ..StreamOptions::default()
        };
        let stream = api.provider().stream(&model, &context, &options, CancellationToken::new());
        timeout(PATIENCE, stream.collect()).await.expect("an answer ends")
    }

    async fn tell(&self, what: &str, body: String) {
        let request = reqwest::Client::new().post(format!("{}/_llmock/{what}", self.url));
        let answer = request.header("content-type", "application/json").body(body).send().await.unwrap();
        assert!(answer.status().is_success(), "{what}: {} {}", answer.status(), answer.text().await.unwrap());
    }

    /// What `llmock` holds against the client.
    async fn verdict(&self) -> Vec<String> {
        let answer = reqwest::get(format!("{}/_llmock/verdict", self.url)).await.unwrap().text().await.unwrap();
        let verdict: Json = answer.parse().unwrap();
        let findings = verdict.get("findings").and_then(Json::as_array).unwrap_or_else(|| panic!("no findings in {verdict}"));
        let serious = findings.iter().filter(|finding| finding.get("severity").is_some_and(|severity| *severity == "error"));
        // Given for every such stream that is not asked for again.
        let own = |finding: &&Json| finding.get("code").is_none_or(|code| *code != "truncated_stream_accepted");
        serious.filter(own).map(ToString::to_string).collect()
    }
}

fn last(events: &[StreamEvent]) -> &AssistantMessage {
    events.last().and_then(StreamEvent::final_message).expect("the last event is terminal")
}

fn text_of(message: &AssistantMessage) -> String {
    let text = |block: &AssistantBlock| if let AssistantBlock::Text(text) = block { text.text.clone() } else { String::new() };
    message.content.iter().map(text).collect()
}

/// What is not as it should be.
fn problems(case: Case, events: &[StreamEvent], took: Duration, counts: bool) -> Vec<String> {
    let message = last(events);
    let error = message.error_message.as_deref().unwrap_or_default();
    let pieces = events.iter().filter(|event| matches!(event, StreamEvent::TextDelta { .. })).count();
    let mut problems = Vec::new();
    let mut want = |what: &str, holds: bool| {
        if !holds {
            problems.push(format!("not so: {what}"));
        }
    };
    want("one terminal event", events.iter().filter(|event| event.final_message().is_some()).count() == 1);
    let mut fails = |status: Option<&str>, said: &str, retryable: bool| {
        want("an error", message.stop_reason == StopReason::Error);
        want("the status in the error", status.is_none_or(|status| error.contains(status)));
        want("the server's words in the error", error.contains(said));
        want("the right kind of error", is_retryable_assistant_error(message) == retryable);
    };
    match case {
        Case::Refused => fails(Some("400"), "no such thing", false),
        Case::Failed => fails(Some("500"), "out of order", true),
        Case::LongLimit => fails(Some("429"), "Server requested 30s retry delay (max: 5s)", true),
        Case::Cut | Case::Short | Case::Stalled => fails(None, "", true),
        Case::Malformed => want("an error", message.stop_reason == StopReason::Error && !error.is_empty()),
        Case::Text | Case::Limit => {
            want("a whole answer", message.stop_reason == StopReason::Stop && error.is_empty());
            want("the text", text_of(message) == TEXT);
            want("a text in pieces", pieces > 1);
            want("counted tokens", message.usage.output > 0 || !counts);
            want("a wait of a second", case == Case::Text || took >= Duration::from_millis(990));
        }
        Case::Tool => {
            want("a call", message.stop_reason == StopReason::ToolUse);
            let arguments: Json = r#"{"city": "Paris", "days": 3}"#.parse().unwrap();
            let called = |block: &AssistantBlock| matches!(block, AssistantBlock::ToolCall(call) if call.name == "get_weather" && !call.id.is_empty() && call.arguments == arguments);
            want("the one call", message.content.iter().filter(|block| matches!(block, AssistantBlock::ToolCall(_))).count() == 1);
            want("its name, id and arguments", message.content.iter().any(called));
        }
    }
    if matches!(case, Case::Cut | Case::Short | Case::Malformed | Case::Stalled) {
        want("what came of the text", TEXT.starts_with(&text_of(message)));
        want("a stream that began", matches!(events.first(), Some(StreamEvent::Start { .. })));
    }
    problems
}

const OPENAI: (Api, &str) = (Api::Chat, "/v1");
const RESPONSES: (Api, &str) = (Api::Responses, "/v1");
const ANTHROPIC: (Api, &str) = (Api::Anthropic, "");

#[tokio::test]
#[ignore = "needs the servers that tests/interop/models/run starts"]
async fn aimock() {
    let cases = &[Case::Text, Case::Tool, Case::Refused, Case::Failed, Case::Limit, Case::LongLimit, Case::Cut];
    Server::of("aimock", &[OPENAI, ANTHROPIC, RESPONSES], cases).check().await;
}

#[tokio::test]
#[ignore = "needs the servers that tests/interop/models/run starts"]
async fn fakellm() {
    // It streams an answer also where a rule has a status, and has no delays.
    Server::of("fakellm", &[OPENAI, ANTHROPIC], &[Case::Text, Case::Tool]).check().await;
}

#[tokio::test]
#[ignore = "needs the servers that tests/interop/models/run starts"]
async fn llmock() {
    let cases = &[
        Case::Text,
        Case::Tool,
        Case::Refused,
        Case::Failed,
        Case::Limit,
        Case::LongLimit,
        Case::Cut,
        Case::Short,
        Case::Malformed,
        Case::Stalled,
    ];
    Server::of("llmock", &[OPENAI, (Api::Anthropic, "/anthropic"), RESPONSES], cases).check().await;
}
