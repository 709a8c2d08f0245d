//! Argument text of tool calls, whole and while it streams, and JSON of providers.
//!
//! Providers and the models behind them send JSON that [`Json::parse`](picofleet_delta::Json::parse) refuses and
//! JavaScript takes: escapes of unpaired surrogates, numbers beyond a double. [`decode`] takes it too: a surrogate without
//! its partner is dropped, as it is from all outgoing text, and such a number is `null`, as `JSON.stringify` writes it.

mod decoder;
mod halves;

use picofleet_delta::Json;

use crate::js;
use decoder::{Decoder, Strings};

pub use decoder::DecodeError;
pub(crate) use halves::{Edges, Halves, Joined};

/// What the argument text of a call came to.
#[derive(Clone, PartialEq, Debug)]
pub struct ParsedArguments {
    /// The arguments: an object, `{}` when the text was none.
    pub arguments: Json,
    /// Why the text was no JSON object, with the text: the `argumentsError` of the call.
    pub error: Option<String>,
}

/// Decodes one JSON text of a provider.
///
/// # Errors
///
/// The text is not JSON, or nests too deeply.
pub fn decode(text: &str) -> Result<Json, DecodeError> {
    decode_with(text, Strings::Strict)
}

/// Decodes JSON whose strings may hold raw control characters and backslashes that escape nothing; the rest of the
/// grammar must hold.
///
/// # Errors
///
/// As [`decode`].
pub fn parse_json_with_repair(text: &str) -> Result<Json, DecodeError> {
    decode(text).or_else(|_| decode_with(text, Strings::Repaired))
}

/// As [`decode`], with the halves of characters that other events of the stream complete.
pub(crate) fn decode_with_halves(text: &str) -> Result<(Json, Halves), DecodeError> {
    read(text, Strings::Strict)
}

/// As [`parse_json_with_repair`], with the halves of characters that other events of the stream complete.
pub(crate) fn repair_with_halves(text: &str) -> Result<(Json, Halves), DecodeError> {
    decode_with_halves(text).or_else(|_| read(text, Strings::Repaired))
}

fn decode_with(text: &str, strings: Strings) -> Result<Json, DecodeError> {
    Ok(read(text, strings)?.0)
}

fn read(text: &str, strings: Strings) -> Result<(Json, Halves), DecodeError> {
    let mut decoder = Decoder::new(strings);
    decoder.push(text)?;
    let halves = decoder.take_halves();
    Ok((decoder.finish()?, halves))
}

/// Reads the whole argument text of a call. Blank text is `{}`; text that is no JSON object, also after repair, is an
/// error of the message and `{}`.
#[must_use]
pub fn parse_tool_call_arguments(text: &str) -> ParsedArguments {
    if js::trim(text).is_empty() {
        return ParsedArguments { arguments: empty(), error: None };
    }
    let problem = match parse_json_with_repair(text) {
        Ok(arguments) if arguments.as_object().is_some() => return ParsedArguments { arguments, error: None },
        Ok(_) => "the arguments are no JSON object".to_owned(),
        Err(error) => error.to_string(),
    };
    ParsedArguments { arguments: empty(), error: Some(format!("{problem}\n\nReceived arguments:\n{text}")) }
}

/// The value that an unfinished JSON text shows so far: open strings, arrays and objects are closed, a word is completed,
/// a number, key or member that has no value yet is left out, and nothing counts after the first error. `{}` for no value.
#[must_use]
pub fn parse_streaming_json(text: &str) -> Json {
    let mut stream = ArgumentsStream::default();
    stream.push(text);
    stream.partial()
}

fn empty() -> Json {
    Json::build_object().build()
}

/// Argument text that comes in pieces. Each piece is read once; [`ArgumentsStream::partial`] costs the open containers.
#[derive(Default)]
pub struct ArgumentsStream {
    text: String,
    decoder: Decoder,
}

impl ArgumentsStream {
    /// Takes the next piece of the text.
    pub fn push(&mut self, piece: &str) {
        self.text.push_str(piece);
        // The decoder stands still at the first error and keeps what it has: the partial value is a best effort.
        let _ = self.decoder.push(piece);
    }

    /// The text so far.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The value so far, as [`parse_streaming_json`] gives it for the whole text.
    #[must_use]
    pub fn partial(&self) -> Json {
        self.decoder.partial().unwrap_or_else(empty)
    }

    /// The arguments, now that the text is complete.
    #[must_use]
    pub fn finish(&self) -> ParsedArguments {
        parse_tool_call_arguments(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Json {
        text.parse().unwrap()
    }

    #[test]
    fn surrogates_without_partner_are_dropped() {
        for (text, expected) in [
            (r#""\ud83d\ude00""#, "😀"),
            (r#""a\ud83db""#, "ab"),
            (r#""a\ude00b""#, "ab"),
            (r#""\ud83d\ud83d\ude00""#, "😀"),
            (r#""\ud83d\n""#, "\n"),
            (r#""\ud83d""#, ""),
            (r#""\ud83d\u0041""#, "A"),
        ] {
            assert_eq!(decode(text).unwrap(), Json::from(expected), "{text}");
        }
    }

    #[test]
    fn a_number_beyond_a_double_is_null() {
        assert_eq!(decode("[1e999,-1e999,1e-999]").unwrap(), json("[null,null,0]"));
    }

    #[test]
    fn what_is_no_json_is_refused() {
        let bad =
            ["", " ", "01", "1.", ".5", "+1", "-", "1e", "tru", "truex", "nul", "[1,]", "{\"a\":1,}", "{a:1}", "{\"a\"}", "\"", "\"\n\""];
        for text in
            bad.into_iter().chain(["\"\\x\"", "\"\\u12\"", "[", "]", "{]", "1 2", "\u{feff}1", "\u{a0}1", "{\"a\":1]", "[1 2]", "[,1]"])
        {
            assert!(decode(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn depth_has_a_limit() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(decode(&nested(512)).is_ok());
        assert!(decode(&nested(513)).is_err());
        assert_eq!(parse_streaming_json(&"[".repeat(100_000)), json(&nested(512)));
    }

    #[test]
    fn an_error_names_the_place() {
        let parsed = parse_tool_call_arguments("{\"a\":é}");
        assert_eq!(parsed.error.unwrap(), "decode JSON at byte 5: 'é' is not expected here\n\nReceived arguments:\n{\"a\":é}");
        let parsed = parse_tool_call_arguments("{\"a\":1");
        assert_eq!(parsed.error.unwrap(), "decode JSON at byte 6: the text ends too early\n\nReceived arguments:\n{\"a\":1");
    }

    #[test]
    fn partial_values_show_what_is_there() {
        for (text, expected) in [
            ("{\"a", "{}"),
            ("{\"a\"", "{}"),
            ("{\"a\":1,\"b", "{\"a\":1}"),
            ("[1,2.", "[1]"),
            ("[12e", "[12]"),
            ("[1.5e+", "[1.5]"),
            ("[-", "[]"),
            ("[t", "[true]"),
            ("[tx", "[]"),
            ("[\"a\\u00", "[\"a\"]"),
            ("[\"a\\", "[\"a\"]"),
            ("[\"\\ud83d", "[\"\"]"),
            ("{\"a\":{\"b\":[[", "{\"a\":{\"b\":[[]]}}"),
            ("{\"a\":1,\"a\":2", "{\"a\":2}"),
            ("nonsense", "{}"),
            ("[1}2", "[1]"),
        ] {
            assert_eq!(parse_streaming_json(text), json(expected), "{text}");
        }
    }
}
