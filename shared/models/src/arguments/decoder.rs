//! A JSON decoder that takes its text in pieces, without recursion, and shows what it has at any point.

use std::sync::Arc;

use picofleet_delta::{DEPTH_MAX, Json};

use super::halves::{Edges, Halves, PATH_MAX};

/// A text of a provider is not JSON.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("decode JSON at byte {offset}: {problem}")]
pub struct DecodeError {
    /// Where, in bytes from the start.
    pub offset: usize,
    /// What is wrong there, for people.
    pub problem: String,
}

/// What strings may hold.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Strings {
    /// What the grammar allows.
    Strict,
    /// Also raw control characters, and backslashes that escape nothing and stand for themselves.
    #[default]
    Repaired,
}

/// A container whose end was not seen yet.
enum Open {
    Array(Vec<Json>),
    /// The members, and the key that waits for its value.
    Object(Vec<(Arc<str>, Json)>, Option<Arc<str>>),
}

#[derive(Default)]
enum State {
    /// A value must follow.
    #[default]
    Value,
    /// `[` was read: a value or the end.
    ValueOrEnd,
    /// A key must follow.
    Key,
    /// `{` was read: a key or the end.
    KeyOrEnd,
    /// A key was read.
    Colon,
    /// A member or item was read.
    CommaOrEnd,
    /// Inside a string; true for a key.
    Text(Text, bool),
    /// Inside a number.
    Number(String),
    /// Inside `true`, `false` or `null`: its value, and what must follow.
    Word(Json, &'static str),
    /// The value is complete.
    Done(Json),
    /// An error was met where no value can be shown.
    Broken,
}

#[derive(Default)]
struct Text {
    text: String,
    escape: Escape,
    /// The first half of a pair, waiting for the second.
    high: Option<u16>,
    /// A unit was read.
    begun: bool,
    /// The first unit, if it is the second half of a pair.
    first: Option<u16>,
}

#[derive(Default)]
enum Escape {
    #[default]
    None,
    /// After a backslash.
    Start,
    /// After `\u`, with the digits so far.
    Unicode(String),
}

#[derive(Default)]
pub(super) struct Decoder {
    strings: Strings,
    stack: Vec<Open>,
    state: State,
    offset: usize,
    failed: Option<DecodeError>,
    halves: Halves,
}

/// What is wrong, before it has a place.
type Problem = String;

impl Decoder {
    pub(super) fn new(strings: Strings) -> Self {
        Self { strings, ..Self::default() }
    }

    /// Reads a piece. After an error nothing more is read.
    pub(super) fn push(&mut self, piece: &str) -> Result<(), DecodeError> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        let mut rest = piece;
        while let Some(first) = rest.chars().next() {
            let plain = self.push_plain(rest);
            let taken = if plain > 0 {
                plain
            } else if let Err(problem) = self.push_char(first) {
                let error = DecodeError { offset: self.offset, problem };
                self.failed = Some(error.clone());
                return Err(error);
            } else {
                first.len_utf8()
            };
            self.offset += taken;
            rest = &rest[taken..];
        }
        Ok(())
    }

    /// Takes the plain start of a text inside a string at once; gives its length.
    fn push_plain(&mut self, rest: &str) -> usize {
        let State::Text(Text { text, escape: Escape::None, high, begun, .. }, _) = &mut self.state else { return 0 };
        let plain = rest.bytes().position(|byte| byte < 0x20 || byte == b'"' || byte == b'\\').unwrap_or(rest.len());
        if plain > 0 {
            (*high, *begun) = (None, true);
            text.push_str(&rest[..plain]);
        }
        plain
    }

    fn push_char(&mut self, c: char) -> Result<(), Problem> {
        match &mut self.state {
            State::Text(..) => self.push_text(c),
            State::Number(digits) => {
                if matches!(c, '0'..='9' | '+' | '-' | '.' | 'e' | 'E') {
                    digits.push(c);
                    return Ok(());
                }
                let number = read_number(digits).ok_or_else(|| format!("{digits:?} is no number"))?;
                self.complete(number);
                self.push_char(c)
            }
            State::Word(value, rest) => {
                let Some(after) = rest.strip_prefix(c) else {
                    self.state = State::Broken;
                    return Err(unexpected(c));
                };
                if after.is_empty() {
                    let value = value.clone();
                    self.complete(value);
                } else {
                    *rest = after;
                }
                Ok(())
            }
            _ if matches!(c, ' ' | '\t' | '\n' | '\r') => Ok(()),
            _ => self.push_token(c),
        }
    }

    fn push_token(&mut self, c: char) -> Result<(), Problem> {
        match (&self.state, c) {
            (State::ValueOrEnd, ']') | (State::KeyOrEnd, '}') => return self.close(c),
            (State::CommaOrEnd, ']' | '}') => return self.close(c),
            (State::CommaOrEnd, ',') => {
                self.state = if matches!(self.stack.last(), Some(Open::Array(_))) { State::Value } else { State::Key };
            }
            (State::Key | State::KeyOrEnd, '"') => self.state = State::Text(Text::default(), true),
            (State::Colon, ':') => self.state = State::Value,
            (State::Value | State::ValueOrEnd, _) => return self.begin_value(c),
            (State::Done(_), _) => return Err(format!("{c:?} follows the value")),
            _ => return Err(unexpected(c)),
        }
        Ok(())
    }

    fn begin_value(&mut self, c: char) -> Result<(), Problem> {
        self.state = match c {
            '"' => State::Text(Text::default(), false),
            '-' | '0'..='9' => State::Number(c.to_string()),
            't' => State::Word(Json::from(true), "rue"),
            'f' => State::Word(Json::from(false), "alse"),
            'n' => State::Word(Json::null(), "ull"),
            '[' | '{' if self.stack.len() >= DEPTH_MAX as usize => return Err(format!("it nests more than {DEPTH_MAX} containers")),
            '[' => {
                self.stack.push(Open::Array(Vec::new()));
                State::ValueOrEnd
            }
            '{' => {
                self.stack.push(Open::Object(Vec::new(), None));
                State::KeyOrEnd
            }
            _ => return Err(unexpected(c)),
        };
        Ok(())
    }

    fn close(&mut self, c: char) -> Result<(), Problem> {
        let fits = matches!((self.stack.last(), c), (Some(Open::Array(_)), ']') | (Some(Open::Object(..)), '}'));
        match self.stack.pop_if(|_| fits) {
            Some(Open::Array(items)) => self.complete(items.into_iter().collect()),
            Some(Open::Object(members, _)) => self.complete(members.into_iter().collect()),
            None => return Err(unexpected(c)),
        }
        Ok(())
    }

    /// Puts a complete value where it belongs.
    fn complete(&mut self, value: Json) {
        self.state = match self.stack.last_mut() {
            None => State::Done(value),
            Some(Open::Array(items)) => {
                items.push(value);
                State::CommaOrEnd
            }
            Some(Open::Object(members, key)) => {
                members.extend(key.take().map(|key| (key, value)));
                State::CommaOrEnd
            }
        };
    }

    fn push_text(&mut self, c: char) -> Result<(), Problem> {
        let State::Text(text, is_key) = &mut self.state else { return Ok(()) };
        let repair = self.strings == Strings::Repaired;
        match std::mem::take(&mut text.escape) {
            Escape::None if c == '"' => {
                let (text, is_key) = (std::mem::take(text), *is_key);
                self.end_text(text, is_key);
            }
            Escape::None if c == '\\' => text.escape = Escape::Start,
            Escape::None if c < ' ' && !repair => return Err(format!("{c:?} must be escaped in a string")),
            Escape::None => text.plain(c),
            Escape::Start => match unescape(c) {
                Some(plain) => text.plain(plain),
                None if c == 'u' => text.escape = Escape::Unicode(String::new()),
                None if repair => {
                    text.plain('\\');
                    return self.push_char(c);
                }
                None => return Err(format!("\\{c} is no escape")),
            },
            Escape::Unicode(mut digits) if c.is_ascii_hexdigit() => {
                digits.push(c);
                match u16::from_str_radix(&digits, 16) {
                    Ok(unit) if digits.len() == 4 => text.unit(unit),
                    _ => text.escape = Escape::Unicode(digits),
                }
            }
            Escape::Unicode(digits) if repair => {
                text.plain('\\');
                text.plain('u');
                text.text.push_str(&digits);
                return self.push_char(c);
            }
            Escape::Unicode(_) => return Err("\\u needs four hexadecimal digits".to_owned()),
        }
        Ok(())
    }

    fn end_text(&mut self, text: Text, is_key: bool) {
        let edges = Edges { first: text.first, last: text.high };
        match self.stack.last_mut() {
            Some(Open::Object(_, key)) if is_key => {
                *key = Some(Arc::from(text.text));
                self.state = State::Colon;
                return;
            }
            _ if edges.any() => {
                if let Some(path) = self.path() {
                    self.halves.note(path, edges);
                }
            }
            _ => {}
        }
        self.complete(Json::from(text.text));
    }

    /// Where the value is that is read now; nothing where it is too deep to be of interest.
    fn path(&self) -> Option<String> {
        let mut path = String::new();
        for (depth, open) in self.stack.iter().enumerate() {
            if depth > 0 {
                path.push('/');
            }
            match open {
                Open::Array(items) => path.push_str(&items.len().to_string()),
                // Before it is copied: keys may be long.
                Open::Object(_, Some(key)) if path.len() + key.len() <= PATH_MAX => path.push_str(key),
                Open::Object(..) => return None,
            }
            if path.len() > PATH_MAX {
                return None;
            }
        }
        Some(path)
    }

    /// The halves of characters at the ends of texts so far.
    pub(super) fn take_halves(&mut self) -> Halves {
        std::mem::take(&mut self.halves)
    }

    /// The value, now that the text is complete.
    pub(super) fn finish(mut self) -> Result<Json, DecodeError> {
        if let State::Number(digits) = &self.state
            && let Some(number) = read_number(digits)
        {
            self.complete(number);
        }
        match self.state {
            State::Done(value) => Ok(value),
            _ => Err(DecodeError { offset: self.offset, problem: "the text ends too early".to_owned() }),
        }
    }

    /// The value so far; nothing when none has begun.
    pub(super) fn partial(&self) -> Option<Json> {
        let current = match &self.state {
            State::Text(text, false) => Some(Json::from(text.text.as_str())),
            State::Number(digits) => read_number(digits).or_else(|| {
                let (mantissa, _) = digits.rsplit_once(['e', 'E'])?;
                read_number(mantissa)
            }),
            // A word alone is no argument, so it is not guessed before it is complete.
            State::Word(value, _) if !self.stack.is_empty() => Some(value.clone()),
            State::Done(value) => Some(value.clone()),
            _ => None,
        };
        self.stack.iter().rev().fold(current, |inner, open| {
            Some(match open {
                Open::Array(items) => items.iter().cloned().chain(inner).collect(),
                Open::Object(members, key) => {
                    let last = key.clone().zip(inner);
                    members.iter().cloned().chain(last).collect()
                }
            })
        })
    }
}

impl Text {
    fn plain(&mut self, c: char) {
        (self.high, self.begun) = (None, true);
        self.text.push(c);
    }

    /// Takes a UTF-16 unit; a half without its partner is dropped.
    fn unit(&mut self, unit: u16) {
        let (high, begun) = (self.high.take(), std::mem::replace(&mut self.begun, true));
        let pair = high.filter(|_| (0xdc00..0xe000).contains(&unit)).map(|high| [high, unit]);
        let units = pair.into_iter().flatten().chain(pair.is_none().then_some(unit));
        match char::decode_utf16(units).next() {
            Some(Ok(c)) => self.text.push(c),
            _ if (0xd800..0xdc00).contains(&unit) => self.high = Some(unit),
            _ if !begun => self.first = Some(unit),
            _ => {}
        }
    }
}

fn unescape(c: char) -> Option<char> {
    Some(match c {
        '"' | '\\' | '/' => c,
        'b' => '\u{8}',
        'f' => '\u{c}',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        _ => return None,
    })
}

fn unexpected(c: char) -> Problem {
    format!("{c:?} is not expected here")
}

/// A number of JSON's grammar; one beyond a double is `null`.
fn read_number(text: &str) -> Option<Json> {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let whole = text.strip_prefix('-').unwrap_or(text);
    let length = digits(whole);
    if length == 0 || (length > 1 && whole.starts_with('0')) {
        return None;
    }
    let mut rest = &whole[length..];
    if let Some(fraction) = rest.strip_prefix('.') {
        let length = digits(fraction);
        if length == 0 {
            return None;
        }
        rest = &fraction[length..];
    }
    if let Some(exponent) = rest.strip_prefix(['e', 'E']) {
        let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        let length = digits(exponent);
        if length == 0 {
            return None;
        }
        rest = &exponent[length..];
    }
    if !rest.is_empty() {
        return None;
    }
    let value: f64 = text.parse().ok()?;
    Some(Json::try_from(value).unwrap_or_else(|_| Json::null()))
}
