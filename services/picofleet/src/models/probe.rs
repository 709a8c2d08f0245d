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

/// Why the scripted provider is not asked for an error.
const SCRIPT_HAS_NO_MODELS: &str = "does not apply: a script is played for every model, so that none is unknown";

/// What came of it.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// It works; the text says what came.
    Works(String),
    /// It does not; the text says why.
    Fails(String),
    /// The provider cannot be asked for it; the text says why.
    DoesNotApply(&'static str),
}

/// Tries it.
pub(crate) async fn probe(models: &dyn Provider, model: &Model, what: Probe) -> Outcome {
    if what == Probe::Error && model.api == API {
        return Outcome::DoesNotApply(SCRIPT_HAS_NO_MODELS);
    }
    match tried(models, model, what).await {
        Ok(detail) => Outcome::Works(detail),
        Err(detail) => Outcome::Fails(detail),
    }
}

async fn tried(models: &dyn Provider, model: &Model, what: Probe) -> Result<String, String> {
    let model = if what == Probe::Error { Model { id: NO_SUCH_MODEL.to_owned(), ..model.clone() } } else { model.clone() };
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

#[cfg(test)]
mod tests {
    use picofleet_models::config::Providers;
    use picofleet_models::registry::{Models, SCRIPTED_MODEL, SCRIPTED_PROVIDER};

    use super::*;

    #[tokio::test]
    async fn the_scripted_model_answers_calls_a_tool_and_is_not_asked_for_an_error() {
        let models = Models::new(&Providers::new(), Clock::system(), |_| None);
        let model = models.get_model(SCRIPTED_PROVIDER, SCRIPTED_MODEL).unwrap();
        assert!(matches!(probe(&models, model, Probe::Answer).await, Outcome::Works(_)));
        assert!(matches!(probe(&models, model, Probe::Tool).await, Outcome::Works(_)));
        assert_eq!(probe(&models, model, Probe::Error).await, Outcome::DoesNotApply(SCRIPT_HAS_NO_MODELS));
    }

    /// A provider that is not there fails every request, which is what the last probe wants.
    #[tokio::test]
    async fn other_providers_are_asked_for_all_three() {
        let models = Models::new(&Providers::new(), Clock::system(), |_| None);
        let model = models.get_model(SCRIPTED_PROVIDER, SCRIPTED_MODEL).unwrap();
        let away = Model { api: "openai-responses".to_owned(), provider: "away".to_owned(), ..model.clone() };
        let text = "Unknown provider: away".to_owned();
        assert_eq!(probe(&models, &away, Probe::Answer).await, Outcome::Fails(text.clone()));
        assert_eq!(probe(&models, &away, Probe::Tool).await, Outcome::Fails(text.clone()));
        assert_eq!(probe(&models, &away, Probe::Error).await, Outcome::Works(text));
    }
}
