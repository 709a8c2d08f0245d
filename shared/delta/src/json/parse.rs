//! JSON text to values, without recursion.
//!
//! Strict RFC 8259: no leading zeros, no trailing commas, no byte order mark, no lone surrogate escapes, nothing after
//! the value. A repeated key keeps its first place and its last value, as in ECMAScript.
//!
//! Why not a library: `serde_json` and its kin recurse into containers, and the pull parser `json-event-parser` spends
//! more on its tokens than all the rest costs here (164 MB/s for tokens alone on a document of many small entries).

use std::borrow::Cow;
use std::str::FromStr;
use std::sync::Arc;

use super::{Json, JsonError, JsonErrorKind, Number, Repr};
use crate::array::Array;
use crate::object::Object;
use crate::{DEPTH_MAX, ENVELOPE_DEPTH};

impl Json {
    /// Parses one JSON text of UTF-8.
    ///
    /// # Errors
    ///
    /// `Syntax`, `Depth` or `Number`, with the offset in bytes.
    pub fn parse(text: &[u8]) -> Result<Json, JsonError> {
        parse(text, DEPTH_MAX)
    }

    /// Parses a record that carries values: it may nest [`ENVELOPE_DEPTH`] containers more than a value.
    ///
    /// # Errors
    ///
    /// As [`Json::parse`].
    pub fn parse_envelope(text: &[u8]) -> Result<Json, JsonError> {
        parse(text, DEPTH_MAX + ENVELOPE_DEPTH)
    }
}

fn parse(text: &[u8], limit: u32) -> Result<Json, JsonError> {
    match std::str::from_utf8(text) {
        Ok(text) => parse_text(text, limit),
        Err(error) => Err(JsonError::at(JsonErrorKind::Syntax, error.valid_up_to(), "the text is not UTF-8; encode it as such")),
    }
}

/// Parses like [`Json::parse`].
impl FromStr for Json {
    type Err = JsonError;

    fn from_str(text: &str) -> Result<Json, JsonError> {
        parse_text(text, DEPTH_MAX)
    }
}

fn parse_text(text: &str, limit: u32) -> Result<Json, JsonError> {
    let mut parser = Parser { text, at: 0, limit, stack: Vec::new(), keys: Keys(vec![None; Keys::SLOTS]) };
    let value = parser.value()?;
    parser.skip_space();
    match parser.peek() {
        None => Ok(value),
        Some(_) => Err(parser.syntax("the end; send one value")),
    }
}

/// A container whose end was not seen yet. An object's key waits for its value.
enum Open {
    Array(Vec<Json>),
    Object(Vec<(Arc<str>, Json)>, Arc<str>),
}

/// Keys seen lately. Documents repeat their keys, so most objects share the text of theirs.
struct Keys(Vec<Option<Arc<str>>>);

impl Keys {
    /// Slots of the cache; a key takes the slot of its hash.
    const SLOTS: usize = 256;

    /// Longest key in bytes that is remembered. Longer ones are data rather than names.
    const LEN_MAX: usize = 64;

    fn get(&mut self, key: &str) -> Arc<str> {
        if key.len() > Keys::LEN_MAX {
            return Arc::from(key);
        }
        let hash = key.bytes().fold(key.len(), |hash, byte| hash.wrapping_mul(31).wrapping_add(usize::from(byte)));
        let slot = &mut self.0[hash % Keys::SLOTS];
        match slot {
            Some(known) if **known == *key => Arc::clone(known),
            _ => {
                let key: Arc<str> = Arc::from(key);
                *slot = Some(Arc::clone(&key));
                key
            }
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    /// Invariant: on a character boundary of `text`.
    at: usize,
    limit: u32,
    stack: Vec<Open>,
    keys: Keys,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Takes `byte`, an ASCII character, if it comes next.
    fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    /// An error at the current place.
    fn syntax(&self, expected: &str) -> JsonError {
        let detail = match self.text[self.at..].chars().next() {
            Some(found) => format!("expected {expected}, found {found:?}"),
            None => format!("expected {expected}, found the end of the text"),
        };
        JsonError::at(JsonErrorKind::Syntax, self.at, detail)
    }

    fn value(&mut self) -> Result<Json, JsonError> {
        loop {
            self.skip_space();
            let value = match self.peek() {
                Some(b'[') => match self.open_array()? {
                    Some(empty) => empty,
                    None => continue,
                },
                Some(b'{') => match self.open_object()? {
                    Some(empty) => empty,
                    None => continue,
                },
                Some(b'"') => Json::from(&*self.string()?),
                Some(b'-' | b'0'..=b'9') => self.number()?,
                Some(b'n') => self.literal("null", Json::null())?,
                Some(b't') => self.literal("true", Json::from(true))?,
                Some(b'f') => self.literal("false", Json::from(false))?,
                _ => return Err(self.syntax("a value")),
            };
            if let Some(whole) = self.place(value)? {
                return Ok(whole);
            }
        }
    }

    /// Puts a finished value into its container, and ends containers that end there. Gives the value when none is
    /// open; else another value must follow.
    fn place(&mut self, value: Json) -> Result<Option<Json>, JsonError> {
        let mut value = value;
        loop {
            self.skip_space();
            let next = self.peek();
            value = match (self.stack.pop(), next) {
                (None, _) => return Ok(Some(value)),
                (Some(Open::Array(mut items)), Some(b',')) => {
                    items.push(value);
                    self.at += 1;
                    self.stack.push(Open::Array(items));
                    return Ok(None);
                }
                (Some(Open::Array(mut items)), Some(b']')) => {
                    items.push(value);
                    self.at += 1;
                    Json(Repr::Array(Array::new(items)))
                }
                (Some(Open::Object(mut entries, key)), Some(b',')) => {
                    entries.push((key, value));
                    self.at += 1;
                    let key = self.key()?;
                    self.stack.push(Open::Object(entries, key));
                    return Ok(None);
                }
                (Some(Open::Object(mut entries, key)), Some(b'}')) => {
                    entries.push((key, value));
                    self.at += 1;
                    Json(Repr::Object(Object::new(entries)))
                }
                (Some(Open::Array(_)), _) => return Err(self.syntax("',' or ']'")),
                (Some(Open::Object(..)), _) => return Err(self.syntax("',' or '}'")),
            };
        }
    }

    fn open_array(&mut self) -> Result<Option<Json>, JsonError> {
        self.check_depth()?;
        self.at += 1;
        self.skip_space();
        if self.take(b']') {
            return Ok(Some(Json(Repr::Array(Array::new(Vec::new())))));
        }
        self.stack.push(Open::Array(Vec::new()));
        Ok(None)
    }

    fn open_object(&mut self) -> Result<Option<Json>, JsonError> {
        self.check_depth()?;
        self.at += 1;
        self.skip_space();
        if self.take(b'}') {
            return Ok(Some(Json(Repr::Object(Object::empty()))));
        }
        let key = self.key()?;
        self.stack.push(Open::Object(Vec::new(), key));
        Ok(None)
    }

    fn check_depth(&self) -> Result<(), JsonError> {
        if self.stack.len() < self.limit as usize { Ok(()) } else { Err(JsonError::depth(Some(self.at), self.limit)) }
    }

    /// A key and the colon behind it.
    fn key(&mut self) -> Result<Arc<str>, JsonError> {
        self.skip_space();
        if self.peek() != Some(b'"') {
            return Err(self.syntax("a key in quotes"));
        }
        let name = self.string()?;
        let key = self.keys.get(&name);
        self.skip_space();
        if self.take(b':') { Ok(key) } else { Err(self.syntax("':'")) }
    }

    fn literal(&mut self, word: &str, value: Json) -> Result<Json, JsonError> {
        if !self.text.as_bytes()[self.at..].starts_with(word.as_bytes()) {
            return Err(self.syntax("a value"));
        }
        self.at += word.len();
        Ok(value)
    }

    fn number(&mut self) -> Result<Json, JsonError> {
        let start = self.at;
        self.take(b'-');
        if !self.take(b'0') {
            self.digits()?;
        }
        if self.take(b'.') {
            self.digits()?;
        }
        if self.take(b'e') || self.take(b'E') {
            let _ = self.take(b'+') || self.take(b'-');
            self.digits()?;
        }
        let text = &self.text[start..self.at];
        Number::from_text(text).map(Json::from).ok_or_else(|| JsonError::number(Some(start), text))
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        if !matches!(self.peek(), Some(b'0'..=b'9')) {
            return Err(self.syntax("a digit"));
        }
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        Ok(())
    }

    /// A string whose opening quote comes next.
    fn string(&mut self) -> Result<Cow<'a, str>, JsonError> {
        self.at += 1;
        let plain = self.plain();
        if self.take(b'"') {
            return Ok(Cow::Borrowed(plain));
        }
        let mut whole = plain.to_owned();
        while !self.take(b'"') {
            whole.push(self.escape()?);
            whole.push_str(self.plain());
        }
        Ok(Cow::Owned(whole))
    }

    /// What comes before the next quote, escape or control character.
    fn plain(&mut self) -> &'a str {
        let rest = &self.text[self.at..];
        let len = rest.bytes().position(|byte| byte == b'"' || byte == b'\\' || byte < 0x20).unwrap_or(rest.len());
        self.at += len;
        &rest[..len]
    }

    fn escape(&mut self) -> Result<char, JsonError> {
        if !self.take(b'\\') {
            return Err(self.syntax("a closing quote or an escape"));
        }
        let start = self.at - 1;
        let c = match self.peek() {
            Some(b'u') => {
                self.at += 1;
                return self.unicode_escape(start);
            }
            Some(c @ (b'"' | b'\\' | b'/')) => char::from(c),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            _ => return Err(self.syntax("one of \"\\/bfnrtu after a backslash")),
        };
        self.at += 1;
        Ok(c)
    }

    /// The character of one escape, or of two that form a surrogate pair. `start` is where it began.
    fn unicode_escape(&mut self, start: usize) -> Result<char, JsonError> {
        let first = self.hex()?;
        let mut second = None;
        if (0xd800..0xdc00).contains(&first) && self.text.as_bytes()[self.at..].starts_with(b"\\u") {
            self.at += 2;
            second = Some(self.hex()?);
        }
        match char::decode_utf16([first].into_iter().chain(second)).next() {
            Some(Ok(c)) => Ok(c),
            _ => {
                let detail = format!("\\u{first:04x} is half of a surrogate pair; send whole characters");
                Err(JsonError::at(JsonErrorKind::Syntax, start, detail))
            }
        }
    }

    fn hex(&mut self) -> Result<u16, JsonError> {
        let mut unit = 0;
        for _ in 0..4 {
            let digit = self.peek().and_then(|byte| char::from(byte).to_digit(16));
            let Some(digit) = digit.and_then(|digit| u16::try_from(digit).ok()) else {
                return Err(self.syntax("four hexadecimal digits"));
            };
            unit = unit << 4 | digit;
            self.at += 1;
        }
        Ok(unit)
    }
}
