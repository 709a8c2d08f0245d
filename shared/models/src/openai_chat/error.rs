//! The texts of failures, as pi-ai has them over the official client.

use std::borrow::Cow;

use picofleet_delta::Json;

use crate::http::{HttpError, StatusError, seconds};
use crate::js::{self, truthy};

/// Most UTF-16 units of an error body that are shown.
const BODY_MAX: usize = 4000;

/// What a failed request says.
pub(super) fn http_text(error: &HttpError) -> String {
    match error {
        HttpError::Status(refusal) => status_text(refusal),
        HttpError::RetryDelay { asked, max, refusal } => {
            let (asked, max) = (seconds(asked), seconds(max));
            format!("Server requested {asked}s retry delay (max: {max}s). {}", client_status_text(refusal))
        }
        error => error.to_string(),
    }
}

/// What an error within a stream says.
pub(super) fn chunk_text(error: &Json) -> String {
    with_raw(client_text(error), error)
}

/// What the client makes of an error value: its message, else all of it.
fn client_text(error: &Json) -> String {
    match error.get("message").filter(|message| truthy(message)) {
        Some(message) => message.as_str().map_or_else(|| js::stringify(message), Cow::into_owned),
        None => js::stringify(error),
    }
}

/// The error value in the body of a refusal. The client takes a body without an error for the error itself.
fn error_of(body: &Json) -> Option<&Json> {
    let inner = body.get("error").filter(|inner| !inner.is_null());
    inner.or_else(|| body.is_container().then_some(body)).filter(|error| truthy(error))
}

/// What the client says of a refusal.
fn client_status_text(refusal: &StatusError) -> String {
    let status = refusal.status;
    match refusal.json().filter(truthy) {
        None => refusal.to_string(),
        Some(body) => match error_of(&body) {
            None => format!("{status} status code (no body)"),
            Some(error) => format!("{status} {}", client_text(error)),
        },
    }
}

/// The same with the whole error value.
fn status_text(refusal: &StatusError) -> String {
    let message = client_status_text(refusal);
    let Some(body) = refusal.json().filter(truthy) else { return message };
    let Some(error) = error_of(&body) else { return message };
    let status = refusal.status;
    let whole = error.as_object().filter(|members| !members.is_empty()).map(|_| shortened(js::stringify(error)));
    let text = match whole {
        Some(whole) if !message.contains(&whole) => format!("{status}: {whole}"),
        _ => message,
    };
    with_raw(text, error)
}

/// Gateways have the error of the server behind them in `metadata.raw`.
fn with_raw(text: String, error: &Json) -> String {
    let raw = error.get("metadata").and_then(|metadata| metadata.get("raw")).filter(|raw| truthy(raw));
    let Some(raw) = raw.map(|raw| raw.as_str().map_or_else(|| js::stringify(raw), Cow::into_owned)) else { return text };
    if text.contains(&raw) { text } else { format!("{text}\n{raw}") }
}

fn shortened(text: String) -> String {
    let units = js::utf16_len(&text);
    if units <= BODY_MAX {
        return text;
    }
    let mut room = BODY_MAX;
    let fits = |c: &char| {
        let fits = c.len_utf16() <= room;
        room = room.saturating_sub(c.len_utf16());
        fits
    };
    let kept: String = text.chars().take_while(fits).collect();
    format!("{kept}... [truncated {} chars]", units - BODY_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(body: &str) -> String {
        let body = body.to_owned();
        http_text(&HttpError::Status(StatusError { status: 400, body, request_id: None, retry_after_ms: None, should_retry: None }))
    }

    #[test]
    fn refusals_read_like_those_of_the_client() {
        for (body, text) in [
            ("", "400 status code (no body)"),
            ("plain", "400 plain"),
            ("null", "400 null"),
            ("\"text\"", "400 status code (no body)"),
            (r#"{ "error": {"message":"m" ,"n":1e2} }"#, r#"400: {"message":"m","n":100}"#),
            (r#"{"error":{"n":1}}"#, r#"400 {"n":1}"#),
            (r#"{"error":"m"}"#, r#"400 "m""#),
            (r#"{"error":{}}"#, "400 {}"),
            (r#"{"error":""}"#, "400 status code (no body)"),
            (r#"{"detail":"d"}"#, r#"400 {"detail":"d"}"#),
            (r#"{"message":"m","error":null}"#, r#"400: {"message":"m","error":null}"#),
            ("[1]", "400 [1]"),
            (r#"{"error":{"message":"m","metadata":{"raw":"r\n"}}}"#, "400: {\"message\":\"m\",\"metadata\":{\"raw\":\"r\\n\"}}\nr\n"),
        ] {
            assert_eq!(refused(body), text, "{body}");
        }
    }

    #[test]
    fn a_long_body_is_shortened() {
        let text = refused(&format!(r#"{{"error":{{"message":"m","more":"{}"}}}}"#, "😀".repeat(3000)));
        assert!(text.ends_with("😀... [truncated 2025 chars]"), "{text}");
    }

    #[test]
    fn errors_within_a_stream_are_their_message() {
        let text = |error: &str| chunk_text(&error.parse().unwrap());
        assert_eq!(text(r#"{"message":"m","metadata":{"raw":"r"}}"#), "m\nr");
        assert_eq!(text(r#""down""#), "\"down\"");
        assert_eq!(text(r#"{"message":{"a":1}}"#), r#"{"a":1}"#);
    }
}
