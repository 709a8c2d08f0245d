//! One request that shows whether something of a model works.

use std::time::Duration;

use futures::StreamExt as _;
use picofleet_models::model::Model;
use picofleet_models::openai_responses;
use picofleet_models::provider::{Context, Provider, StreamEvent, StreamOptions};
use picofleet_models::scripted::API;
use picofleet_models::validate::validate_tool_arguments;
use picofleet_session::message::{AssistantBlock, AssistantMessage, Message, StopReason, ToolCall, ToolDeclaration, UserMessage};
use picofleet_session::{Clock, Json};
use tokio_util::sync::CancellationToken;

/// The longest that one request may take.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);
/// How the errors of requests begin that reached no server.
const NO_CONNECTION: &str = "Connection error";
/// A model that no provider has.
const NO_SUCH_MODEL: &str = "picofleet-no-such-model";

/// What is tried.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Probe {
    /// A streamed answer.
    Answer,
    /// A tool call.
    Tool,
    /// An error for a model that does not exist.
    Error,
}

impl Probe {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Answer => "streamed answer",
            Self::Tool => "tool call",
            Self::Error => "error",
        }
    }
}

/// Why the scripted provider is not asked for an error.
const SCRIPT_HAS_NO_MODELS: &str = "does not apply: a script is played for every model, so that none is unknown";

/// What came of it.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// It works; the text says what came.
    Works(String),
    /// It does not; the text says why.
    Fails(String),
    /// It does not, and neither would anything else.
    Stops {
        /// What went wrong.
        detail: String,
        /// Why the rest is not tried.
        reason: &'static str,
    },
    /// The provider cannot be asked for it; the text says why.
    DoesNotApply(&'static str),
    /// It was left out; the text says why.
    NotTried(&'static str),
}

/// Tries it.
pub(crate) async fn probe(models: &dyn Provider, model: &Model, what: Probe) -> Outcome {
    if what == Probe::Error && model.api == API {
        return Outcome::DoesNotApply(SCRIPT_HAS_NO_MODELS);
    }
    match tried(models, model, what).await {
        Ok(detail) => Outcome::Works(detail),
        Err(Failed { detail, stops: Some(reason) }) => Outcome::Stops { detail, reason },
        Err(Failed { detail, stops: None }) => Outcome::Fails(detail),
    }
}

/// Why something does not work.
struct Failed {
    detail: String,
    /// Why nothing else would work.
    stops: Option<&'static str>,
}

impl From<String> for Failed {
    fn from(detail: String) -> Self {
        Self { detail, stops: None }
    }
}

impl Failed {
    /// A request that ended with an error.
    fn of(message: &AssistantMessage) -> Self {
        let detail = error_text(message);
        let stops = match status(message) {
            Some(401 | 403) => Some("not tried, since the key was refused"),
            None if detail.starts_with(NO_CONNECTION) => Some("not tried, since the server was not reached"),
            _ => None,
        };
        Self { detail, stops }
    }
}

async fn tried(models: &dyn Provider, model: &Model, what: Probe) -> Result<String, Failed> {
    let model = if what == Probe::Error { Model { id: NO_SUCH_MODEL.to_owned(), ..model.clone() } } else { model.clone() };
    let (deltas, message) = ask(models, &model, what).await?;
    let failed = matches!(message.stop_reason, StopReason::Error | StopReason::Aborted);
    match what {
        Probe::Error if !failed => Err("a model that does not exist gave an answer".to_owned().into()),
        Probe::Error if !is_refusal(&message) => Err(format!("the server did not refuse the model: {}", error_text(&message)).into()),
        Probe::Error => Ok(error_text(&message)),
        // First: also what was cut may have text and calls.
        Probe::Answer | Probe::Tool if failed => Err(Failed::of(&message)),
        Probe::Answer if deltas == 0 => Err("an answer came without text".to_owned().into()),
        Probe::Answer => Ok(format!("{deltas} pieces, {} tokens in, {} out", message.usage.input, message.usage.output)),
        Probe::Tool => Ok(called(&model, &message)?),
    }
}

/// What was called, if every call is one that a tool can run.
fn called(model: &Model, message: &AssistantMessage) -> Result<String, String> {
    let calls: Vec<&ToolCall> =
        message.content.iter().filter_map(|block| if let AssistantBlock::ToolCall(call) = block { Some(call) } else { None }).collect();
    let Some(first) = calls.first() else { return Err("the model answered without a call".to_owned()) };
    if message.stop_reason != StopReason::ToolUse {
        return Err(format!("a call came, but the answer ended as if there was none ({})", stop_word(message.stop_reason)));
    }
    for call in &calls {
        check_call(model, call)?;
    }
    Ok(format!("{} {}", first.name, first.arguments))
}

fn check_call(model: &Model, call: &ToolCall) -> Result<(), String> {
    if let Some(error) = &call.arguments_error {
        return Err(format!("the arguments of a call of {} are malformed: {error}", call.name));
    }
    // A script calls what it says, whatever is offered.
    if model.api == API {
        return Ok(());
    }
    let tool = tool();
    if call.name != tool.name {
        return Err(format!("it called {}, and only {} was offered", call.name, tool.name));
    }
    match validate_tool_arguments(&tool, call) {
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")),
    }
}

fn stop_word(reason: StopReason) -> String {
    Json::from_serde(&reason).map_or_else(|_| format!("{reason:?}"), |word| word.to_string())
}

/// Whether the server answered that the request is wrong: that it was too slow or too much says nothing about the model.
fn is_refusal(message: &AssistantMessage) -> bool {
    matches!(status(message), Some(400..=499)) && !matches!(status(message), Some(408 | 429))
}

/// The status of a refused request, with which the text of its error begins; that of the Responses API has it behind a name.
fn status(message: &AssistantMessage) -> Option<u16> {
    let text = message.error_message.as_deref()?;
    let named = if message.api == openai_responses::API { text.split_once(" API error (").map(|(_, rest)| rest) } else { None };
    let (status, rest) = named.unwrap_or(text).split_at_checked(3)?;
    if rest.starts_with([' ', ':', ')']) { status.parse().ok() } else { None }
}

fn error_text(message: &AssistantMessage) -> String {
    message.error_message.clone().unwrap_or_else(|| "an error without a text".to_owned())
}

async fn ask(models: &dyn Provider, model: &Model, what: Probe) -> Result<(usize, AssistantMessage), String> {
    let prompt = match what {
        Probe::Tool => "Use the tool to find the time in Paris.",
        Probe::Answer | Probe::Error => "Say hello in one short sentence.",
    };
    let user = Message::from(UserMessage { content: prompt.into(), timestamp: Clock::system().now() });
    let tools = (what == Probe::Tool).then(|| vec![tool()]);
    let context = Context { system_prompt: None, messages: vec![user], tools };
    let cancel = CancellationToken::new();
    let mut events = models.stream(model, &context, &StreamOptions::default(), cancel.clone());
    let mut deltas = 0;
    let read = async {
        while let Some(event) = events.next().await {
            match event {
                StreamEvent::TextDelta { .. } => deltas += 1,
                StreamEvent::Done { message } | StreamEvent::Error { message } => return Ok(*message),
                _ => {}
            }
        }
        Err("the stream ended without a final event".to_owned())
    };
    let message = tokio::time::timeout(TIMEOUT, read).await;
    cancel.cancel();
    let message = message.map_err(|_| format!("nothing final came within {} s", TIMEOUT.as_secs()))??;
    Ok((deltas, message))
}

fn tool() -> ToolDeclaration {
    let city = Json::object([("type", Json::from("string")), ("description", Json::from("The city"))]);
    let parameters =
        Json::object([("type", Json::from("object")), ("properties", Json::object([("city", city)])), ("required", Json::array(["city"]))]);
    ToolDeclaration {
        name: "get_time".to_owned(),
        description: "Tells the time in a city".to_owned(),
        parameters,
        constrained_sampling: None,
    }
}

#[cfg(test)]
mod tests;
