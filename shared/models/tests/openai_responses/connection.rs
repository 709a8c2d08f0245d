//! What happens on the wire: order in time, ends of connections, refusals, cancellation.

use std::sync::Arc;

use futures::StreamExt as _;
use picofleet_delta::Json;
use picofleet_models::openai_responses::{OpenAiResponses, request};
use picofleet_models::provider::{Provider as _, StreamEvent, StreamOptions};
use picofleet_session::message::StopReason;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::server::{Reply, Server, Then, soon};
use crate::{KEY, context, events, field, last, model, provider, stream};

/// The body of a record up to the end of the event that has a text in it, and the rest.
fn split_after(body: &str, text: &str) -> (String, String) {
    let end = body.find(text).unwrap();
    let end = end + body[end..].find("\n\n").unwrap() + 2;
    (body[..end].to_owned(), body[end..].to_owned())
}

#[tokio::test]
async fn the_request_is_a_post_with_the_key() {
    let server = Server::start([Reply::events(field::<String>(&stream("st-r1"), "body"))]).await;
    events(&provider(), &model(&server.base_url), &StreamOptions::default()).await;
    let received = &server.received()[0];
    assert_eq!((received.method.as_str(), received.path.as_str()), ("POST", "/v1/responses"));
    assert_eq!(received.header("authorization"), Some("Bearer dummy-key"));
    assert_eq!(received.json().get("stream").and_then(Json::as_bool), Some(true));
}

#[tokio::test]
async fn text_is_told_before_the_last_byte_came() {
    let (first, rest) = split_after(&field::<String>(&stream("st-r1"), "body"), "\"Hel\"");
    let allowed = Arc::new(Notify::new());
    let reply = Reply { pieces: vec![first.into()], ..Reply::events("") }.then(Then::EndAfter(Arc::clone(&allowed)));
    let server = Server::start([reply]).await;
    let mut stream = provider().stream(&model(&server.base_url), &context(), &StreamOptions::default(), CancellationToken::new());
    let told = soon("the first text", async {
        while let Some(event) = stream.next().await {
            if let StreamEvent::TextDelta { delta, .. } = event {
                return delta;
            }
        }
        panic!("no text");
    });
    assert_eq!(told.await, "Hel");
    allowed.notify_one();
    let message = last(&soon("the end", stream.collect::<Vec<_>>()).await);
    assert!(!rest.is_empty() && message.stop_reason == StopReason::Error);
}

#[tokio::test]
async fn refusals_are_errors_with_their_body() {
    for (reply, text) in [
        (Reply::json(429, r#"{"error":{"message":"slow"}}"#), r#"acme API error (429): {"message":"slow"}"#),
        (Reply::new(502, "text/html", "<html>bad gateway</html>"), "acme API error (502): 502 <html>bad gateway</html>"),
        (Reply::json(500, ""), "acme API error (500): 500 status code (no body)"),
        (Reply::json(401, r#"{"error":{"message":"no dummy-key"}}"#), r#"acme API error (401): {"message":"no [redacted]"}"#),
    ] {
        let server = Server::start([reply]).await;
        let events = events(&provider(), &model(&server.base_url), &StreamOptions::default()).await;
        assert_eq!(events.len(), 1, "{events:?}");
        assert_eq!(last(&events).error_message.unwrap(), text);
    }
}

#[tokio::test]
async fn a_refusal_is_tried_again_when_the_caller_says_so() {
    let again = Reply::json(429, "{}").with("retry-after-ms", "1");
    let server = Server::start([again, Reply::events(field::<String>(&stream("st-r1"), "body"))]).await;
    let options = StreamOptions { max_retries: Some(1), ..StreamOptions::default() };
    assert_eq!(last(&events(&provider(), &model(&server.base_url), &options).await).stop_reason, StopReason::Stop);
    assert_eq!(server.received().len(), 2);
}

#[tokio::test]
async fn what_cannot_be_asked_is_an_error_event() {
    let keyless = OpenAiResponses::new(crate::client(crate::clock()), None);
    let told = last(&events(&keyless, &model("http://127.0.0.1:1/v1"), &StreamOptions::default()).await);
    assert_eq!(told.error_message.unwrap(), "No API key for provider: acme");

    let mut context = context();
    let tool = r#"{"name":"t","description":"","parameters":{},"constrainedSampling":{"type":"json_schema","strict":"require"}}"#;
    context.tools = Some(vec![tool.parse::<Json>().unwrap().to().unwrap()]);
    let stream = provider().stream(&model("http://127.0.0.1:1/v1"), &context, &StreamOptions::default(), CancellationToken::new());
    let told = last(&soon("the end", stream.collect::<Vec<_>>()).await);
    let expected = "Tool \"t\" requires JSON-schema constrained sampling, but strict tools are unsupported.";
    assert_eq!(told.error_message.unwrap(), expected);
}

#[test]
fn the_key_is_in_no_debug_text() {
    let request = request(&model("http://h/v1"), &context(), &StreamOptions::default(), Some(&KEY.into())).unwrap();
    assert_eq!(request.headers()["authorization"], "Bearer dummy-key");
    assert!(!format!("{request:?} {:?}", request.headers()).contains(KEY));
}
