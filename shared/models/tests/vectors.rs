//! The golden vectors made with pi-ai; see `tests/vectors/README.md` of the repository.
//!
//! Every record of the files of this crate's pure functions is checked; none is left out.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::path::PathBuf;

use picofleet_delta::Json;
use picofleet_models::model::{Model, ModelCost, ThinkingLevel};
use picofleet_models::transcript::{Context, ToolSupport};
use picofleet_models::{arguments, classify, estimate, hash, model, retry, sanitize, transcript, transform, validate};
use picofleet_session::message::{AssistantMessage, Cost, Message, SystemMessage, ToolCall, ToolDeclaration, Usage};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Every record of a file; the directory may be replaced by `PICOFLEET_VECTORS`.
fn records(name: &str) -> Vec<Json> {
    let directory = std::env::var_os("PICOFLEET_VECTORS")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors"), PathBuf::from);
    let text = std::fs::read_to_string(directory.join(name)).unwrap();
    let records: Vec<Json> = text.lines().map(|line| line.parse().unwrap()).collect();
    assert!(!records.is_empty(), "{name} is empty");
    records
}

/// A field of a record as a Rust value.
fn field<T: DeserializeOwned>(record: &Json, name: &str) -> T {
    let value = record.get(name).unwrap_or_else(|| panic!("{name} is missing in {record}"));
    value.to().unwrap_or_else(|error| panic!("{name} of {record}: {error}"))
}

fn raw<'a>(record: &'a Json, name: &str) -> &'a Json {
    record.get(name).unwrap_or_else(|| panic!("{name} is missing in {record}"))
}

/// Fails once for a file, with every record that differs.
#[derive(Default)]
struct Differences(Vec<String>);

impl Differences {
    fn compare<T: Serialize>(&mut self, record: &Json, expected: &Json, actual: &T) {
        let actual = Json::from_serde(actual).unwrap();
        if actual != *expected {
            self.0.push(format!("{}: expected {expected}\n  got {actual}", raw(record, "id")));
        }
    }
}

impl Drop for Differences {
    fn drop(&mut self) {
        assert!(self.0.is_empty() || std::thread::panicking(), "{} records differ\n{}", self.0.len(), self.0.join("\n"));
    }
}

/// Vectors leave out the time of messages where it plays no part.
fn answer(record: &Json) -> AssistantMessage {
    field(record, "message")
}

#[test]
fn overflow() {
    let mut differences = Differences::default();
    for record in records("pi-ai-overflow.jsonl") {
        let window = record.get("contextWindow").and_then(Json::as_u64);
        differences.compare(&record, raw(&record, "overflow"), &classify::is_context_overflow(&answer(&record), window));
    }
}

#[test]
fn retryable() {
    let mut differences = Differences::default();
    for record in records("pi-ai-retryable.jsonl") {
        differences.compare(&record, raw(&record, "retryable"), &classify::is_retryable_assistant_error(&answer(&record)));
    }
}

#[test]
fn retry_delay() {
    let mut differences = Differences::default();
    for record in records("pi-ai-retry-delay.jsonl") {
        let delay = retry::retry_delay_ms(&field(&record, "policy"), field(&record, "attempt"));
        differences.compare(&record, raw(&record, "delayMs"), &Json::try_from(delay).unwrap());
    }
}

#[test]
fn estimates() {
    let mut differences = Differences::default();
    for record in records("pi-ai-estimate.jsonl") {
        match &*field::<String>(&record, "fn") {
            "estimateMessageTokens" => {
                let tokens = estimate::estimate_message_tokens(&field(&record, "message"));
                differences.compare(&record, raw(&record, "tokens"), &tokens);
            }
            "calculateContextTokens" => {
                let tokens = estimate::calculate_context_tokens(&field(&record, "usage"));
                differences.compare(&record, raw(&record, "tokens"), &tokens);
            }
            "estimateContextTokens" => {
                let estimate = estimate::estimate_context_tokens::<Message>(&field::<Vec<_>>(&record, "messages"));
                differences.compare(&record, raw(&record, "estimate"), &estimate);
            }
            other => panic!("unknown function {other}"),
        }
    }
}

#[test]
fn validation() {
    let mut differences = Differences::default();
    for record in records("pi-ai-validate.jsonl") {
        let tool: ToolDeclaration = field(&record, "tool");
        let call: ToolCall = field(&record, "toolCall");
        match validate::validate_tool_arguments(&tool, &call) {
            Ok(value) => {
                differences.compare(&record, raw(&record, "ok"), &true);
                differences.compare(&record, record.get("value").unwrap_or(&Json::null()), &value);
            }
            Err(error) => {
                differences.compare(&record, raw(&record, "ok"), &false);
                differences.compare(&record, record.get("error").unwrap_or(&Json::null()), &error.to_string());
            }
        }
    }
}

#[test]
fn transcripts() {
    let mut differences = Differences::default();
    for record in records("pi-ai-transcript.jsonl") {
        let messages: Vec<Message> = if record.get("messages").is_some() { field(&record, "messages") } else { Vec::new() };
        let expected = raw(&record, "result");
        let function: String = field(&record, "fn");
        match &*function {
            "getCurrentTools" => differences.compare(&record, expected, &transcript::get_current_tools(&messages)),
            "getCurrentSystemMessage" => {
                let message = transcript::get_current_system_message(&messages).map(Message::from);
                assert!(sections_in_order(&record, message.as_ref()), "{record}");
                differences.compare(&record, expected, &message);
            }
            "getCurrentSystemPrompt" => differences.compare(&record, expected, &transcript::get_current_system_prompt(&messages)),
            "getDeclaredTools" => differences.compare(&record, expected, &transcript::get_declared_tools(&messages)),
            "collapseSystemMessages" => differences.compare(&record, expected, &transcript::collapse_system_messages(&messages)),
            "hasNonAdditiveToolChanges" => {
                differences.compare(&record, expected, &transcript::has_non_additive_tool_changes(&messages));
            }
            "resolveTranscriptTools" => {
                let support: ToolSupport = field(&record, "support");
                differences.compare(&record, expected, &transcript::resolve_transcript_tools(&messages, support));
            }
            "declarationsEqual" => {
                let (left, right): (ToolDeclaration, ToolDeclaration) = (field(&record, "left"), field(&record, "right"));
                differences.compare(&record, expected, &transcript::declarations_equal(&left, &right));
            }
            "toToolDeclaration" => {
                let declaration = transcript::to_tool_declaration(raw(&record, "tool")).unwrap();
                let text = Json::from_serde(&declaration).unwrap().to_string();
                assert_eq!(text, expected.to_string(), "the order of keys counts in {}", raw(&record, "id"));
            }
            "getToolStateChanges" => {
                let (previous, current): (Vec<_>, Vec<_>) = (field(&record, "previous"), field(&record, "current"));
                differences.compare(&record, expected, &transcript::get_tool_state_changes(&previous, &current));
            }
            "normalizeContext" => {
                let context: Context = field(&record, "context");
                differences.compare(&record, expected, &transcript::normalize_context(context));
            }
            "getSystemMessageText" => {
                let message: SystemMessage = field(&record, "message");
                differences.compare(&record, expected, &transcript::get_system_message_text(&message));
            }
            "renderSystemMessageUpdate" => {
                let message: SystemMessage = field(&record, "message");
                differences.compare(&record, expected, &transcript::render_system_message_update(&message));
            }
            other => panic!("unknown function {other}"),
        }
    }
}

/// Sections are ordered, which the equality of JSON values does not see.
fn sections_in_order(record: &Json, message: Option<&Message>) -> bool {
    let names =
        |sections: Option<&Json>| sections.map(|sections| sections.as_object().unwrap().keys().map(str::to_owned).collect::<Vec<_>>());
    let actual = match message {
        Some(Message::System(message)) => names(message.sections.as_ref()),
        _ => None,
    };
    actual == names(raw(record, "result").get("sections"))
}

#[test]
fn transformation() {
    let mut differences = Differences::default();
    for record in records("pi-ai-transform.jsonl") {
        let messages: Vec<Message> = field(&record, "messages");
        let result = transform::transform_messages(&messages, &field(&record, "model"), field(&record, "now"), |id, _| id.to_owned());
        differences.compare(&record, raw(&record, "result"), &result);
    }
}

#[test]
fn argument_text() {
    let mut differences = Differences::default();
    for record in records("pi-ai-arguments-text.jsonl") {
        let text: String = field(&record, "text");
        let parsed = arguments::parse_tool_call_arguments(&text);
        differences.compare(&record, raw(&record, "arguments"), &parsed.arguments);
        differences.compare(&record, raw(&record, "malformed"), &parsed.error.is_some());
        differences.compare(&record, raw(&record, "streaming"), &arguments::parse_streaming_json(&text));
        if let Some(error) = parsed.error {
            assert!(error.ends_with(&format!("\n\nReceived arguments:\n{text}")), "{record}: {error}");
        }
    }
}

fn some_model() -> Model {
    Model {
        id: "m1".to_owned(),
        name: "M1".to_owned(),
        api: "openai-completions".to_owned(),
        provider: "acme".to_owned(),
        base_url: "http://127.0.0.1/v1".to_owned(),
        reasoning: false,
        input: Vec::new(),
        input_limits: None,
        cost: ModelCost::default(),
        context_window: 0,
        max_tokens: 0,
        headers: None,
        thinking_level_map: None,
        prompt_cache: None,
        sampling_params: None,
        sampling_params_by_thinking_level: None,
        compat: None,
    }
}

#[test]
fn misc() {
    let mut differences = Differences::default();
    for record in records("pi-ai-misc.jsonl") {
        let expected = raw(&record, "result");
        match &*field::<String>(&record, "fn") {
            "calculateCost" => {
                let cost: ModelCost = field(&record, "cost");
                let usage: Usage = field(&record, "usage");
                let actual: Cost = model::calculate_cost(&cost, &usage);
                differences.compare(&record, expected, &actual);
                assert_eq!(actual, field::<Cost>(&record, "result"), "to the last bit: {record}");
            }
            "clampThinkingLevel" => {
                let thinking_level_map = record.get("thinkingLevelMap").map(|map| map.to().unwrap());
                let model = Model { reasoning: field(&record, "reasoning"), thinking_level_map, ..some_model() };
                let level: ThinkingLevel = field(&record, "level");
                differences.compare(&record, raw(&record, "supported"), &model::supported_thinking_levels(&model));
                differences.compare(&record, expected, &model::clamp_thinking_level(&model, level));
            }
            "clampMaxTokensToContext" => {
                let model = Model { context_window: field(&record, "contextWindow"), ..some_model() };
                let tokens = field(&record, "contextTokens");
                differences.compare(&record, expected, &model::clamp_max_tokens_to_context(&model, tokens, field(&record, "requested")));
            }
            "isRecoverableLength" => {
                let desired = field(&record, "desiredMaxOutput");
                differences.compare(&record, expected, &classify::is_recoverable_length(&answer(&record), desired));
            }
            "shortHash" => differences.compare(&record, expected, &hash::short_hash(&field::<String>(&record, "text"))),
            other => panic!("unknown function {other}"),
        }
    }
}

#[test]
fn sanitizing() {
    let mut differences = Differences::default();
    for record in records("pi-ai-sanitize.jsonl") {
        differences.compare(&record, raw(&record, "result"), &sanitize::sanitize_surrogates(&field::<Vec<u16>>(&record, "units")));
    }
}

/// The models of the request vectors, which have every field, survive a round trip.
#[test]
fn models_round_trip() {
    let mut differences = Differences::default();
    for file in ["pi-ai-request-chat.jsonl", "pi-ai-request-anthropic.jsonl", "pi-ai-request-responses.jsonl"] {
        for record in records(file) {
            differences.compare(&record, raw(&record, "model"), &field::<Model>(&record, "model"));
            let _: Context = field(&record, "context");
        }
    }
}
