//! One request that shows whether something of a model works.

use std::time::Duration;

use futures::StreamExt as _;
use picofleet_models::model::Model;
use picofleet_models::provider::{Context, Provider, StreamEvent, StreamOptions};
use picofleet_models::scripted::API;
use picofleet_session::message::{AssistantBlock, AssistantMessage, Message, StopReason, ToolDeclaration, UserMessage};
use picofleet_session::{Clock, Json};
use tokio_util::sync::CancellationToken;

/// The longest that one request may take.
const TIMEOUT: Duration = Duration::from_secs(60);
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

/// Tries it; the text says what came.
pub(crate) async fn probe(models: &dyn Provider, model: &Model, what: Probe) -> Result<String, String> {
    let model = if what == Probe::Error { Model { id: NO_SUCH_MODEL.to_owned(), ..model.clone() } } else { model.clone() };
    if what == Probe::Error && model.api == API {
        return Ok("left out: the scripted provider has no models of its own that could be unknown".to_owned());
    }
    let (deltas, message) = ask(models, &model, what).await?;
    match what {
        Probe::Answer if message.stop_reason == StopReason::Error => Err(error_text(&message)),
        Probe::Answer if deltas == 0 => Err("an answer came without text".to_owned()),
        Probe::Answer => Ok(format!("{deltas} pieces, {} tokens in, {} out", message.usage.input, message.usage.output)),
        Probe::Tool => {
            match message.content.iter().find_map(|block| if let AssistantBlock::ToolCall(call) = block { Some(call) } else { None }) {
                Some(call) => Ok(format!("{} {}", call.name, call.arguments)),
                None if message.stop_reason == StopReason::Error => Err(error_text(&message)),
                None => Err("the model answered without a call".to_owned()),
            }
        }
        Probe::Error if message.stop_reason == StopReason::Error => Ok(error_text(&message)),
        Probe::Error => Err("a model that does not exist gave an answer".to_owned()),
    }
}

fn error_text(message: &AssistantMessage) -> String {
    message.error_message.clone().unwrap_or_else(|| "an error without a text".to_owned())
}

async fn ask(models: &dyn Provider, model: &Model, what: Probe) -> Result<(usize, AssistantMessage), String> {
    let prompt = match what {
        Probe::Tool => "Use the tool to find the time in Paris.",
        Probe::Answer | Probe::Error => "Say hello in one short sentence.",
    };
    let user = Message::User(UserMessage { content: prompt.into(), timestamp: Clock::system().now() });
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
