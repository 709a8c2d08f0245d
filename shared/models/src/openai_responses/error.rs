//! The texts of failures, as pi-ai has them over the official client.

use std::borrow::Cow;

use picofleet_delta::Json;

use crate::http::{HttpError, StatusError};
use crate::js::{self, truthy};

/// Most UTF-16 units of an error body that are shown.
const BODY_MAX: usize = 4000;

/// What an event of the name `error` says, or one with an `error`.
pub(super) fn event_text(error: &Json) -> String {
    client_text(error).unwrap_or_else(|| "(no status code or body)".to_owned())
}

/// What the client makes of an error value: its message, else all of it.
fn client_text(error: &Json) -> Option<String> {
    match error.get("message").filter(|message| truthy(message)) {
        Some(message) => Some(message.as_str().map_or_else(|| js::stringify(message), Cow::into_owned)),
        None => truthy(error).then(|| js::stringify(error)),
    }
}

/// What a failed request says.
pub(super) fn http_text(provider: &str, error: &HttpError) -> String {
    match error {
        HttpError::Status(refusal) => status_text(provider, refusal),
        error => error.to_string(),
    }
}

/// What a refused request says: the inner error of its body where it has one.
fn status_text(provider: &str, refusal: &StatusError) -> String {
    let provider = if provider == "openai" { "OpenAI" } else { provider };
    let status = refusal.status;
    let json = refusal.json().filter(truthy);
    let error = json.as_ref().and_then(|json| json.get("error"));
    let message = match (error.and_then(client_text), &json) {
        (Some(text), _) => format!("{status} {text}"),
        (None, None) if !refusal.body.is_empty() => format!("{status} {}", refusal.body),
        (None, _) => format!("{status} status code (no body)"),
    };
    let has_members = |error: &&Json| error.as_object().is_some_and(|members| !members.is_empty());
    let body = error.filter(has_members).map(|error| shortened(js::stringify(error)));
    let text = body.filter(|body| !message.contains(body)).unwrap_or(message);
    format!("{provider} API error ({status}): {text}")
}

fn shortened(text: String) -> String {
    let units = js::utf16_len(&text);
    if units <= BODY_MAX {
        return text;
    }
    let mut kept = 0;
    let within = |c: &char| {
        kept += c.len_utf16();
        kept <= BODY_MAX
    };
    let start: String = text.chars().take_while(within).collect();
    format!("{start}... [truncated {} chars]", units - BODY_MAX)
}

/// Why a response failed.
pub(super) fn failure_text(response: &Json) -> String {
    let word = |value: &Json, name: &str| {
        let word = value.get(name).filter(|word| truthy(word));
        word.map(|word| js::scalar_text(word).map_or_else(|| js::stringify(word), Cow::into_owned))
    };
    if let Some(error) = response.get("error").filter(|error| truthy(error)) {
        let code = word(error, "code").unwrap_or_else(|| "unknown".to_owned());
        return format!("{code}: {}", word(error, "message").unwrap_or_else(|| "no message".to_owned()));
    }
    response
        .get("incomplete_details")
        .and_then(|details| word(details, "reason"))
        .map_or_else(|| "Unknown error (no error details in response)".to_owned(), |reason| format!("incomplete: {reason}"))
}

/// Adds where people see to the limits of a subscription that is shared with other programs.
pub(super) fn with_hint(text: String) -> String {
    if text.contains("subscription_sharing_usage_limit_exceeded") {
        format!("{text}\nCheck your ChatGPT usage: https://chatgpt.com/settings/usage")
    } else if text.contains("subscription_sharing_workplace_individual_usage_limit_exceeded") {
        format!(
            "{text}\nYou've reached your ChatGPT workspace's usage limit. Ask your workspace admin to increase it at \
             admin.openai.com → Workspace → Usage limits."
        )
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(status: u16, body: &str) -> StatusError {
        StatusError { status, body: body.to_owned(), request_id: None, retry_after_ms: None, should_retry: None }
    }

    #[test]
    fn refusals_show_the_inner_error() {
        for (body, expected) in [
            (r#"{"error":{"message":"m","code":1}}"#, r#"acme API error (400): {"message":"m","code":1}"#),
            (r#"{"error":{"code":"c"}}"#, r#"acme API error (400): 400 {"code":"c"}"#),
            (r#"{"error":"text"}"#, r#"acme API error (400): 400 "text""#),
            (r#"{"error":{}}"#, "acme API error (400): 400 {}"),
            (r#"{"detail":"x"}"#, "acme API error (400): 400 status code (no body)"),
            ("null", "acme API error (400): 400 null"),
            ("upstream gone", "acme API error (400): 400 upstream gone"),
            ("", "acme API error (400): 400 status code (no body)"),
        ] {
            assert_eq!(status_text("acme", &refusal(400, body)), expected);
        }
        assert_eq!(status_text("openai", &refusal(503, "")), "OpenAI API error (503): 503 status code (no body)");
    }

    #[test]
    fn long_bodies_are_shortened() {
        let body = format!(r#"{{"error":{{"message":"m","more":"{}"}}}}"#, "é".repeat(5000));
        let text = status_text("acme", &refusal(500, &body));
        assert!(text.ends_with("é... [truncated 1025 chars]"), "{text}");
        assert_eq!(js::utf16_len(&text), "acme API error (500): ".len() + BODY_MAX + "... [truncated 1025 chars]".len());
    }

    #[test]
    fn events_and_failures_say_what_they_have() {
        let json = |text: &str| text.parse::<Json>().unwrap();
        assert_eq!(event_text(&json(r#"{"message":{"a":1}}"#)), r#"{"a":1}"#);
        assert_eq!(event_text(&json("\"x\"")), "\"x\"");
        assert_eq!(event_text(&json("null")), "(no status code or body)");
        assert_eq!(failure_text(&json(r#"{"error":{"code":5}}"#)), "5: no message");
        assert_eq!(failure_text(&json(r#"{"error":{"message":"m"}}"#)), "unknown: m");
        let hinted = with_hint("subscription_sharing_usage_limit_exceeded".to_owned());
        assert!(hinted.ends_with("\nCheck your ChatGPT usage: https://chatgpt.com/settings/usage"));
    }
}
