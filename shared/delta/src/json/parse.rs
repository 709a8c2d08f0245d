//! JSON text to values, without recursion.
//!
//! The tokens come from `json-event-parser`, which is strict: RFC 8259, UTF-8, no lone surrogate escapes, no leading
//! zeros, nothing after the value. It skips a byte order mark, so that is refused here. A repeated key keeps its
//! first place and its last value, as in ECMAScript.

use std::str::FromStr;
use std::sync::Arc;

use json_event_parser::{JsonEvent, LowLevelJsonParser, LowLevelJsonParserResult};

use super::{Json, JsonError, JsonErrorKind, Number, Repr};
use crate::DEPTH_MAX;
use crate::array::Array;
use crate::object::Object;

impl Json {
    /// Parses one JSON text of UTF-8.
    ///
    /// # Errors
    ///
    /// `Syntax`, `Depth` or `Number`, with the offset in bytes.
    pub fn parse(text: &[u8]) -> Result<Json, JsonError> {
        if text.starts_with(b"\xef\xbb\xbf") {
            return Err(JsonError::at(JsonErrorKind::Syntax, 0, "starts with a byte order mark; send plain UTF-8"));
        }
        let mut parser = Parser { tokens: LowLevelJsonParser::new(), text, offset: 0, stack: Vec::new() };
        let value = parser.value()?;
        match parser.next()? {
            JsonEvent::Eof => Ok(value),
            _ => Err(parser.syntax("more follows the value; send one value")),
        }
    }
}

/// Parses like [`Json::parse`].
impl FromStr for Json {
    type Err = JsonError;

    fn from_str(text: &str) -> Result<Json, JsonError> {
        Json::parse(text.as_bytes())
    }
}

/// A container whose end was not seen yet. An object's key waits for its value.
enum Open {
    Array(Vec<Json>),
    Object(Object, Arc<str>),
}

struct Parser<'a> {
    tokens: LowLevelJsonParser,
    text: &'a [u8],
    offset: usize,
    stack: Vec<Open>,
}

impl<'a> Parser<'a> {
    fn next(&mut self) -> Result<JsonEvent<'a>, JsonError> {
        loop {
            let rest: &'a [u8] = &self.text[self.offset..];
            let LowLevelJsonParserResult { consumed_bytes, event } = self.tokens.parse_next(rest, true);
            self.offset += consumed_bytes;
            match event {
                Some(Ok(event)) => return Ok(event),
                Some(Err(error)) => {
                    let at = usize::try_from(error.location().start.offset).unwrap_or(self.offset);
                    return Err(JsonError::at(JsonErrorKind::Syntax, at, error.message()));
                }
                None => {}
            }
        }
    }

    fn syntax(&self, detail: &str) -> JsonError {
        JsonError::at(JsonErrorKind::Syntax, self.offset, detail)
    }

    fn value(&mut self) -> Result<Json, JsonError> {
        loop {
            let done = match self.next()? {
                JsonEvent::Null => Json::null(),
                JsonEvent::Boolean(value) => Json::from(value),
                JsonEvent::Number(text) => match Number::from_text(&text) {
                    Some(number) => Json::from(number),
                    None => return Err(JsonError::number(Some(self.offset - text.len()), &text)),
                },
                JsonEvent::String(text) => Json::from(&*text),
                JsonEvent::StartArray => {
                    self.open(Open::Array(Vec::new()))?;
                    continue;
                }
                JsonEvent::StartObject => {
                    self.open(Open::Object(Object::empty(), Arc::default()))?;
                    continue;
                }
                JsonEvent::ObjectKey(name) => {
                    if let Some(Open::Object(_, key)) = self.stack.last_mut() {
                        *key = Arc::from(&*name);
                    }
                    continue;
                }
                JsonEvent::EndArray | JsonEvent::EndObject => match self.stack.pop() {
                    Some(Open::Array(items)) => Json(Repr::Array(Array::new(items))),
                    Some(Open::Object(object, _)) => Json(Repr::Object(object)),
                    None => return Err(self.syntax("a container ends that was not opened")),
                },
                JsonEvent::Eof => return Err(self.syntax("the text ends before the value")),
            };
            match self.stack.last_mut() {
                None => return Ok(done),
                Some(Open::Array(items)) => items.push(done),
                Some(Open::Object(object, key)) => object.edit().set(std::mem::take(key), done),
            }
        }
    }

    fn open(&mut self, container: Open) -> Result<(), JsonError> {
        if self.stack.len() >= DEPTH_MAX as usize {
            return Err(JsonError::depth(Some(self.offset - 1)));
        }
        self.stack.push(container);
        Ok(())
    }
}
