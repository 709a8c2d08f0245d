//! What a failed or cut answer means. Providers say it in words, so words are matched: this is the one place where text
//! decides.
//!
//! The patterns are those of JavaScript without its `u` flag: case is that of ASCII letters, and `.` is one UTF-16 unit
//! other than a line end. The `regex` crate cannot look around, so words that must stand alone are found by hand.

use std::sync::LazyLock;

use picofleet_session::message::{AssistantMessage, StopReason};
use regex::bytes::{Regex, RegexSet, RegexSetBuilder};

/// The provider whose bare `400` and `413` mean an overflow.
const CEREBRAS: &str = "cerebras";

/// One UTF-16 unit that ends no line.
const ANY: &str = r"(?u-i:[^\n\r\u{2028}\u{2029}\u{10000}-\u{10ffff}])";

/// JavaScript's white space.
const SPACE: &str = r"(?u-i:[\t-\r \u{a0}\u{1680}\u{2000}-\u{200a}\u{2028}\u{2029}\u{202f}\u{205f}\u{3000}\u{feff}])";

/// Any character but white space.
const NO_SPACE: &str = r"(?u-i:[^\t-\r \u{a0}\u{1680}\u{2000}-\u{200a}\u{2028}\u{2029}\u{202f}\u{205f}\u{3000}\u{feff}])";

static OVERFLOW: LazyLock<RegexSet> = LazyLock::new(|| {
    compile(&[
        "prompt (?:is )?too long",
        "prompt exceeds max length",
        "request_too_large",
        "input is too long for requested model",
        "exceeds the context window",
        r"exceeds (?:the )?(?:model'?s )?maximum context length(?: of [0-9,]+ tokens?|<space>*\([0-9,]+\))",
        "context window exceeded",
        "input token count(?u-i:[^\\n\\r\u{2028}\u{2029}])*exceeds the maximum",
        "maximum prompt length is [0-9]+",
        "reduce the length of the messages",
        "maximum context length is [0-9]+ tokens",
        "exceeds (?:the )?maximum allowed input length of [0-9,]+ tokens?",
        r"input \([0-9]+ tokens\) is longer than the model'?s context length \([0-9]+ tokens\)",
        "exceeds the limit of [0-9]+",
        "exceeds the available context size",
        "greater than the context length",
        "context window exceeds limit",
        "exceeded model token limit",
        "too large for model with [0-9]+ maximum context length",
        "prompt has [0-9,]+ tokens?, but the configured context size is [0-9,]+ tokens?",
        "model_context_window_exceeded",
        "prompt too long; exceeded (?:max )?context length",
        "range of input length should be",
        "context[_ ]length[_ ]exceeded",
        "too many tokens",
        "token limit exceeded",
        r"^(?:[a-z0-9_ -]+ API error \(413\):|413(?:<space>|:|$))",
    ])
});

/// Errors that speak of tokens but are a matter of load.
static NO_OVERFLOW: LazyLock<RegexSet> =
    LazyLock::new(|| compile(&["^(?:Throttling error|Service unavailable):", "rate limit", "too many requests"]));

static CEREBRAS_OVERFLOW: LazyLock<RegexSet> = LazyLock::new(|| compile(&[r"^4(?:00|13)<space>*(?:status code)?<space>*\(no body\)"]));

/// Limits of an account that waiting does not lift.
static EXHAUSTED: LazyLock<RegexSet> = LazyLock::new(|| {
    compile(&[
        "GoUsageLimitError",
        "FreeUsageLimitError",
        "Monthly usage limit reached",
        "available balance",
        "insufficient_quota",
        "out of budget",
        "quota exceeded",
        "billing",
        "subscription_sharing_usage_limit_exceeded",
        "subscription_sharing_workplace_individual_usage_limit_exceeded",
    ])
});

/// The code that one provider gives for such a limit; no digit may follow it.
static EXHAUSTED_CODE: LazyLock<Regex> = LazyLock::new(|| {
    #[expect(clippy::expect_used, reason = "the pattern is fixed and a test compiles it")]
    Regex::new(&expand(r#"(?i-u)"code"<space>*:<space>*"?1308(?-u:[^0-9]|$)"#)).expect("fixed pattern")
});

static TRANSIENT: LazyLock<RegexSet> = LazyLock::new(|| {
    compile(&[
        "overloaded",
        "server_busy",
        "servers are currently busy",
        "currently experiencing high demand",
        "model is at capacity",
        "rate<any>?limit",
        "too many requests",
        "service<any>?(?:is<any>?)?(?:temporarily<any>?)?unavailable",
        "server<any>?error",
        "internal<any>?error",
        "provider<any>?returned<any>?(?:an<any>?)?error",
        "exceeded request buffer limit while retrying upstream",
        "unable to forward upstream",
        "upstream<any>?request<any>?failed",
        "upstream_stream_read_error",
        "stream was interrupted",
        "http/?2 stream failed",
        "network<any>?error",
        "connection<any>?(?:error|refused|lost|closed)",
        "other side closed",
        "fetch failed",
        "request to <no-space>+ failed, reason:",
        "getaddrinfo",
        "connection reset by peer",
        "ENOTFOUND",
        "EAI_AGAIN",
        "upstream<any>?connect",
        "reset before headers",
        "socket hang up",
        "socket connection was closed",
        "timed? out",
        "timeout",
        "terminated",
        "websocket<any>?(?:closed|error)",
        "websocket<any>?connection<any>?limit<any>?reached",
        "ended without",
        "stream ended before message_stop",
        "stream ended before a terminal response event",
        "http2 request did not get a response",
        "stream disconnected before completion",
        "cut short after the reply had begun",
        "pending stream has been canceled",
        "retry delay",
        "you can retry your request",
        "try your request again",
        "please retry your request",
        "ResourceExhausted",
        "subscription_sharing_usage_unavailable",
        "subscription_sharing_user_unavailable",
    ])
});

/// HTTP statuses that pass; no ASCII letter or digit may stand beside one.
const TRANSIENT_STATUSES: [&str; 7] = ["429", "500", "502", "503", "504", "520", "524"];

/// System errors that pass; no ASCII letter, digit or `_` may stand beside one.
const TRANSIENT_CODES: [&str; 5] = ["econnreset", "econnaborted", "econnrefused", "etimedout", "epipe"];

fn expand(pattern: &str) -> String {
    pattern.replace("<any>", ANY).replace("<space>", SPACE).replace("<no-space>", NO_SPACE)
}

fn compile(patterns: &[&str]) -> RegexSet {
    let patterns = patterns.iter().map(|pattern| expand(pattern));
    #[expect(clippy::expect_used, reason = "the patterns are fixed and a test compiles them all")]
    RegexSetBuilder::new(patterns).case_insensitive(true).unicode(false).build().expect("fixed patterns")
}

/// True when the request did not fit the model's context: the provider says so in an error, or, where `context_window`
/// is given, the usage shows it.
///
/// The usage shows it when an answer that stopped by itself reports more input than the window, or when one stopped at
/// its length without output and its input fills 99 of 100 parts of the window.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "token counts are far below 2^53")]
pub fn is_context_overflow(message: &AssistantMessage, context_window: Option<u64>) -> bool {
    if let Some(text) = error_text(message) {
        let own = message.provider == CEREBRAS && CEREBRAS_OVERFLOW.is_match(text);
        if (own || OVERFLOW.is_match(text)) && !NO_OVERFLOW.is_match(text) {
            return true;
        }
    }
    let Some(window) = context_window.filter(|window| *window > 0) else { return false };
    let input = message.usage.input.saturating_add(message.usage.cache_read);
    match message.stop_reason {
        StopReason::Stop => input > window,
        StopReason::Length => message.usage.output == 0 && input as f64 >= window as f64 * 0.99,
        _ => false,
    }
}

fn error_text(message: &AssistantMessage) -> Option<&[u8]> {
    let text = message.error_message.as_deref().filter(|text| !text.is_empty())?;
    (message.stop_reason == StopReason::Error).then_some(text.as_bytes())
}

/// True when the answer was cut at its length although it gave less than `desired` tokens: the output limit of the
/// request was lower, and a request with more room can go on.
#[must_use]
pub fn is_recoverable_length(message: &AssistantMessage, desired: u64) -> bool {
    message.stop_reason == StopReason::Length && message.usage.output < desired
}

/// True for an error that may pass by itself, so that the same request can be made again.
///
/// Ask [`is_context_overflow`] first: some texts match both.
#[must_use]
pub fn is_retryable_assistant_error(message: &AssistantMessage) -> bool {
    let Some(text) = error_text(message) else { return false };
    if EXHAUSTED.is_match(text) || EXHAUSTED_CODE.is_match(text) {
        return false;
    }
    let lower = text.to_ascii_lowercase();
    TRANSIENT.is_match(text)
        || TRANSIENT_STATUSES.iter().any(|word| stands_alone(&lower, word, |byte| byte.is_ascii_alphanumeric()))
        || TRANSIENT_CODES.iter().any(|word| stands_alone(&lower, word, |byte| byte.is_ascii_alphanumeric() || byte == b'_'))
}

/// True when `word` occurs with no neighbour on either side that `sticks` to it.
fn stands_alone(text: &[u8], word: &str, sticks: impl Fn(u8) -> bool) -> bool {
    let word = word.as_bytes();
    text.windows(word.len()).enumerate().any(|(at, window)| {
        let before = at.checked_sub(1).and_then(|before| text.get(before));
        let after = text.get(at + word.len());
        window == word && ![before, after].into_iter().flatten().any(|byte| sticks(*byte))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_compiles() {
        for set in [&OVERFLOW, &NO_OVERFLOW, &CEREBRAS_OVERFLOW, &EXHAUSTED, &TRANSIENT] {
            assert!(!set.is_match(b""));
        }
        assert!(!EXHAUSTED_CODE.is_match(b""));
    }

    #[test]
    fn any_character_is_one_utf16_unit_that_ends_no_line() {
        for (text, expected) in [("rate limit", true), ("rate–limit", true), ("rate😀limit", false), ("rate\nlimit", false)] {
            assert_eq!(TRANSIENT.is_match(text.as_bytes()), expected, "{text:?}");
        }
    }

    #[test]
    fn the_kelvin_sign_is_no_k() {
        assert!(!OVERFLOW.is_match("too many to\u{212a}ens".as_bytes()));
    }

    #[test]
    fn neighbours_decide() {
        let word = |text: &str| stands_alone(text.as_bytes(), "500", |byte| byte.is_ascii_alphanumeric());
        for text in ["500", "_500", "é500é", "5000 500", "#500-"] {
            assert!(word(text), "{text}");
        }
        for text in ["5000", "a500", "1500", "500500", ""] {
            assert!(!word(text), "{text}");
        }
    }
}
