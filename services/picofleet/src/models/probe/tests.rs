use futures::stream::BoxStream;
use picofleet_models::config::Providers;
use picofleet_models::provider::empty_answer;
use picofleet_models::registry::{Models, SCRIPTED_MODEL, SCRIPTED_PROVIDER};
use picofleet_session::Millis;

use super::*;

fn scripted() -> (Models, Model) {
    let models = Models::new(&Providers::new(), Clock::system(), |_| None);
    let model = models.get_model(SCRIPTED_PROVIDER, SCRIPTED_MODEL).unwrap().clone();
    (models, model)
}

#[tokio::test]
async fn the_scripted_model_answers_calls_a_tool_and_is_not_asked_for_an_error() {
    let (models, model) = scripted();
    assert!(matches!(probe(&models, &model, Probe::Answer).await, Outcome::Works(_)));
    assert!(matches!(probe(&models, &model, Probe::Tool).await, Outcome::Works(_)));
    assert_eq!(probe(&models, &model, Probe::Error).await, Outcome::DoesNotApply(SCRIPT_HAS_NO_MODELS));
}

/// A provider that is not there fails every request, and refuses no model.
#[tokio::test]
async fn other_providers_are_asked_for_all_three() {
    let (models, model) = scripted();
    let away = Model { api: "openai-responses".to_owned(), provider: "away".to_owned(), ..model };
    let text = "Unknown provider: away".to_owned();
    assert_eq!(probe(&models, &away, Probe::Answer).await, Outcome::Fails(text.clone()));
    assert_eq!(probe(&models, &away, Probe::Tool).await, Outcome::Fails(text.clone()));
    assert_eq!(probe(&models, &away, Probe::Error).await, Outcome::Fails(format!("the server did not refuse the model: {text}")));
}

/// Ends every answer with this message.
struct Says(AssistantMessage);

impl Provider for Says {
    fn stream(&self, _: &Model, _: &Context, _: &StreamOptions, _: CancellationToken) -> BoxStream<'static, StreamEvent> {
        let message = Box::new(self.0.clone());
        let failed = message.stop_reason == StopReason::Error;
        let event = if failed { StreamEvent::Error { message } } else { StreamEvent::Done { message } };
        futures::stream::iter([event]).boxed()
    }
}

fn model(api: &str) -> Model {
    Model { api: api.to_owned(), provider: "acme".to_owned(), ..scripted().1 }
}

async fn fails(message: AssistantMessage, what: Probe) -> String {
    match probe(&Says(message.clone()), &model(&message.api), what).await {
        Outcome::Fails(text) => text,
        other => panic!("{other:?} for {message:?}"),
    }
}

#[tokio::test]
async fn only_a_refusal_of_the_server_is_the_error_that_is_wanted() {
    let says = |api: &str, text: &str| AssistantMessage {
        stop_reason: StopReason::Error,
        error_message: Some(text.to_owned()),
        ..empty_answer(&model(api), Millis(0))
    };
    for (api, text) in [
        ("openai-completions", "404 there is no such model"),
        ("openai-completions", "404: {\"message\":\"no\"}"),
        ("anthropic-messages", "400 {\"type\":\"error\"}"),
        ("openai-responses", "acme API error (404): 404 no"),
    ] {
        let message = says(api, text);
        assert_eq!(probe(&Says(message), &model(api), Probe::Error).await, Outcome::Works(text.to_owned()));
    }
    for (api, text) in [
        ("openai-completions", "408 too slow"),
        ("openai-completions", "429: {\"message\":\"too fast\"}"),
        ("openai-responses", "acme API error (429): 429 too fast"),
        ("anthropic-messages", "503 out of order"),
        ("openai-completions", "Connection error.: connection refused"),
        ("openai-completions", "Request timed out."),
        ("anthropic-messages", "terminated: other side closed (UND_ERR_SOCKET)"),
        ("openai-completions", "4045 is the number"),
        ("openai-completions", ""),
    ] {
        let told = fails(says(api, text), Probe::Error).await;
        assert_eq!(told, format!("the server did not refuse the model: {text}"));
    }
}

#[tokio::test]
async fn only_a_whole_call_of_the_tool_works() {
    let call = |name: &str, arguments: &str| ToolCall {
        id: "c1".to_owned(),
        name: name.to_owned(),
        arguments: arguments.parse().unwrap(),
        thought_signature: None,
        namespace: None,
        arguments_error: None,
    };
    let says = |stop_reason: StopReason, calls: Vec<ToolCall>| AssistantMessage {
        content: calls.into_iter().map(AssistantBlock::ToolCall).collect(),
        stop_reason,
        ..empty_answer(&model("openai-completions"), Millis(0))
    };
    let good = call("get_time", r#"{"city":"Paris"}"#);
    let works = probe(&Says(says(StopReason::ToolUse, vec![good.clone()])), &model("openai-completions"), Probe::Tool).await;
    assert_eq!(works, Outcome::Works(r#"get_time {"city":"Paris"}"#.to_owned()));

    let cut = AssistantMessage { error_message: Some("terminated".to_owned()), ..says(StopReason::Error, vec![good.clone()]) };
    assert_eq!(fails(cut, Probe::Tool).await, "terminated");
    let malformed = ToolCall { arguments_error: Some("it ends too early".to_owned()), ..good.clone() };
    for (stop, calls, expected) in [
        (StopReason::ToolUse, vec![], "answered without a call"),
        (StopReason::Stop, vec![good.clone()], "ended as if there was none (\"stop\")"),
        (StopReason::Length, vec![good.clone()], "ended as if there was none (\"length\")"),
        (StopReason::ToolUse, vec![call("tell_time", r#"{"city":"Paris"}"#)], "it called tell_time, and only get_time was offered"),
        (StopReason::ToolUse, vec![call("get_time", "{}")], "city"),
        (StopReason::ToolUse, vec![good, malformed], "of get_time are malformed: it ends too early"),
    ] {
        let told = fails(says(stop, calls), Probe::Tool).await;
        assert!(told.contains(expected) && !told.contains('\n'), "{told}");
    }
}

#[tokio::test]
async fn a_refused_key_and_a_server_that_is_away_stop_the_test() {
    let says = |api: &str, text: &str| AssistantMessage {
        stop_reason: StopReason::Error,
        error_message: Some(text.to_owned()),
        ..empty_answer(&model(api), Millis(0))
    };
    for (api, text, stops) in [
        ("openai-completions", "401 no such key", Some("not tried, since the key was refused")),
        ("openai-responses", "acme API error (403): 403 no", Some("not tried, since the key was refused")),
        ("anthropic-messages", "Connection error.: connection refused", Some("not tried, since the server was not reached")),
        ("openai-completions", "Connection error: provider acme was not reached", Some("not tried, since the server was not reached")),
        ("openai-completions", "404 Connection error", None),
        ("openai-completions", "Request timed out.", None),
        ("anthropic-messages", "500 out of order", None),
    ] {
        let expected = match stops {
            Some(reason) => Outcome::Stops { detail: text.to_owned(), reason },
            None => Outcome::Fails(text.to_owned()),
        };
        assert_eq!(probe(&Says(says(api, text)), &model(api), Probe::Answer).await, expected, "{text}");
    }
}
