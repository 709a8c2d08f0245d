//! JSON text and number text as JavaScript writes and reads them.
//!
//! [`Json`] keeps keys in the order they came in. A JavaScript object moves keys that are array indices to the front,
//! in ascending order. What pi-ai measures, compares or shows went through such objects, so it is written that way here.

use std::borrow::Cow;
use std::fmt;

use picofleet_delta::{ArrayIter, Json, JsonRef};

/// The entries of an object in JavaScript's order: array indices ascending, then the other keys as they stand.
pub fn entries(object: picofleet_delta::ObjectRef<'_>) -> Vec<(&str, &Json)> {
    let mut entries: Vec<(&str, &Json)> = object.iter().collect();
    if entries.iter().any(|(key, _)| array_index(key).is_some()) {
        entries.sort_by_key(|(key, _)| array_index(key).unwrap_or(u32::MAX));
    }
    entries
}

/// The number of a key that JavaScript takes for an array index: at most 2^32 - 2, in its canonical form.
fn array_index(key: &str) -> Option<u32> {
    let canonical = key == "0" || key.starts_with(|first: char| matches!(first, '1'..='9'));
    if !canonical || !key.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    key.parse().ok().filter(|index| *index != u32::MAX)
}

/// `Boolean(value)`.
pub fn truthy(value: &Json) -> bool {
    match value.as_ref() {
        JsonRef::Null => false,
        JsonRef::Bool(value) => value,
        JsonRef::Int(value) => value != 0,
        JsonRef::Float(value) => value != 0.0,
        JsonRef::String(text) => !text.is_empty(),
        JsonRef::Array(_) | JsonRef::Object(_) => true,
    }
}

/// `JSON.stringify(value)`.
pub fn stringify(value: &Json) -> String {
    let mut text = String::new();
    // Writing into a text cannot fail.
    let _ = write(value, None, &mut text);
    text
}

/// `JSON.stringify(value, null, 2)`.
pub fn stringify_pretty(value: &Json) -> String {
    let mut text = String::new();
    // Writing into a text cannot fail.
    let _ = write(value, Some(2), &mut text);
    text
}

/// `JSON.stringify(value).length`, without the text.
pub fn stringify_len(value: &Json) -> usize {
    let mut count = Utf16Count(0);
    // Counting cannot fail.
    let _ = write(value, None, &mut count);
    count.0
}

/// The length of a text in UTF-16 units: what JavaScript calls its length.
pub fn utf16_len(text: &str) -> usize {
    text.encode_utf16().count()
}

/// `text.trim()`.
pub fn trim(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// True for what JavaScript takes for white space or a line end.
pub(crate) fn is_space(c: char) -> bool {
    matches!(
        c,
        '\u{9}'..='\u{d}'
            | ' '
            | '\u{a0}'
            | '\u{1680}'
            | '\u{2000}'..='\u{200a}'
            | '\u{2028}'
            | '\u{2029}'
            | '\u{202f}'
            | '\u{205f}'
            | '\u{3000}'
            | '\u{feff}'
    )
}

/// `Number(text)` where it is finite: blank is 0, `0x`, `0o` and `0b` are read, white space around is skipped.
pub fn number(text: &str) -> Option<f64> {
    let text = trim(text);
    if text.is_empty() {
        return Some(0.0);
    }
    let radix = text.get(..2).and_then(|prefix| match prefix {
        "0x" | "0X" => Some(16),
        "0o" | "0O" => Some(8),
        "0b" | "0B" => Some(2),
        _ => None,
    });
    if let Some(radix) = radix {
        return digits(&text[2..], radix);
    }
    // Rust's own reader also takes words such as `inf`, which JavaScript spells in another way.
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'+' | b'-'));
    if !plain {
        return None;
    }
    text.parse().ok().filter(|value: &f64| value.is_finite())
}

/// Reads digits of a base that is a power of two. Rounds once per digit beyond 2^53, which is off by at most the last bit.
fn digits(text: &str, radix: u32) -> Option<f64> {
    if text.is_empty() {
        return None;
    }
    let value =
        text.chars().try_fold(0.0, |value: f64, c| c.to_digit(radix).map(|digit| value.mul_add(f64::from(radix), f64::from(digit))))?;
    value.is_finite().then_some(value)
}

/// The text of a number, `true`, `false` or `null`, as `String(value)` gives it; nothing for other values.
pub(crate) fn scalar_text(value: &Json) -> Option<Cow<'_, str>> {
    match value.as_ref() {
        JsonRef::Null => Some(Cow::Borrowed("null")),
        JsonRef::Bool(_) | JsonRef::Int(_) | JsonRef::Float(_) => Some(Cow::Owned(value.to_string())),
        JsonRef::String(text) => Some(text.to_cow()),
        JsonRef::Array(_) | JsonRef::Object(_) => None,
    }
}

struct Utf16Count(usize);

impl fmt::Write for Utf16Count {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 += utf16_len(text);
        Ok(())
    }
}

enum Frame<'a> {
    Array(ArrayIter<'a>),
    Object(std::vec::IntoIter<(&'a str, &'a Json)>),
}

/// Writes without recursion, like [`Json`] does itself.
fn write(value: &Json, indent: Option<usize>, out: &mut impl fmt::Write) -> fmt::Result {
    let mut stack = Vec::new();
    open(value, out, &mut stack)?;
    let mut first = true;
    while let Some(frame) = stack.last_mut() {
        let (next, end) = match frame {
            Frame::Array(items) => (items.next().map(|value| (None, value)), "]"),
            Frame::Object(entries) => (entries.next().map(|(key, value)| (Some(key), value)), "}"),
        };
        let Some((key, value)) = next else {
            stack.pop();
            if !first {
                new_line(indent, stack.len(), out)?;
            }
            out.write_str(end)?;
            first = false;
            continue;
        };
        if !first {
            out.write_str(",")?;
        }
        new_line(indent, stack.len(), out)?;
        if let Some(key) = key {
            write!(out, "{}", Json::from(key))?;
            out.write_str(if indent.is_some() { ": " } else { ":" })?;
        }
        let depth = stack.len();
        open(value, out, &mut stack)?;
        first = stack.len() > depth;
    }
    Ok(())
}

fn new_line(indent: Option<usize>, depth: usize, out: &mut impl fmt::Write) -> fmt::Result {
    match indent {
        Some(width) => write!(out, "\n{:1$}", "", width * depth),
        None => Ok(()),
    }
}

/// Writes a scalar, or the start of a container and queues its children.
fn open<'a>(value: &'a Json, out: &mut impl fmt::Write, stack: &mut Vec<Frame<'a>>) -> fmt::Result {
    match value.as_ref() {
        JsonRef::Array(items) => {
            stack.push(Frame::Array(items.iter()));
            out.write_str("[")
        }
        JsonRef::Object(object) => {
            stack.push(Frame::Object(entries(object).into_iter()));
            out.write_str("{")
        }
        _ => write!(out, "{value}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Json {
        text.parse().unwrap()
    }

    #[test]
    fn array_indices_come_first() {
        let value = json(r#"{"b":1,"10":2,"01":3,"9":4,"4294967295":5,"4294967294":6,"a":{"1":[],"0":{}}}"#);
        assert_eq!(stringify(&value), r#"{"9":4,"10":2,"4294967294":6,"b":1,"01":3,"4294967295":5,"a":{"0":{},"1":[]}}"#);
    }

    #[test]
    fn pretty_text_has_two_spaces_and_no_lines_in_empty_containers() {
        let value = json(r#"{"a":[1,[]],"b":{}}"#);
        assert_eq!(stringify_pretty(&value), "{\n  \"a\": [\n    1,\n    []\n  ],\n  \"b\": {}\n}");
    }

    #[test]
    fn lengths_are_utf16_units_of_the_text() {
        for text in [r#"{"a":"😀\n\u0001é","n":1e21,"m":1e-7,"k":100}"#, "[]", r#""日本""#] {
            let value = json(text);
            assert_eq!(stringify_len(&value), utf16_len(&stringify(&value)), "{text}");
        }
        assert_eq!(stringify_len(&json("[1e21,1e-7,100.0]")), "[1e+21,1e-7,100]".len());
    }

    #[test]
    fn numbers_are_read_as_javascript_reads_them() {
        for (text, expected) in [
            ("", Some(0.0)),
            (" \n\u{feff}", Some(0.0)),
            ("0x10", Some(16.0)),
            ("0b11", Some(3.0)),
            ("0o17", Some(15.0)),
            ("5.", Some(5.0)),
            (".5", Some(0.5)),
            ("+5e-1", Some(0.5)),
            ("-0x1", None),
            ("0x", None),
            ("1_0", None),
            ("1e400", None),
            ("inf", None),
            ("Infinity", None),
            ("nan", None),
            (".", None),
            ("e5", None),
            ("5 5", None),
            ("é", None),
        ] {
            assert_eq!(number(text), expected, "{text:?}");
        }
    }
}
