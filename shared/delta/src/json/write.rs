//! Compact JSON text, as ECMAScript writes it, without recursion.

use std::fmt;

use super::{Json, Number, Repr};
use crate::array::ArrayIter;
use crate::object::ObjectIter;
use crate::text::StrRef;

impl Json {
    /// Appends the compact JSON text. Numbers and escapes are written as `JSON.stringify` writes them.
    pub fn write(&self, out: &mut Vec<u8>) {
        // Writing into memory cannot fail.
        let _ = write(self, &mut Bytes(out));
    }

    /// The compact JSON text in a new buffer.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(&mut out);
        out
    }
}

struct Bytes<'a>(&'a mut Vec<u8>);

impl fmt::Write for Bytes<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

enum Frame<'a> {
    Array(ArrayIter<'a>),
    Object(ObjectIter<'a>),
}

pub(crate) fn write(value: &Json, out: &mut impl fmt::Write) -> fmt::Result {
    let mut stack = Vec::new();
    open(value, out, &mut stack)?;
    let mut first = true;
    while let Some(frame) = stack.last_mut() {
        let next = match frame {
            Frame::Array(items) => items.next().map(|value| (None, value)),
            Frame::Object(entries) => entries.next().map(|(key, value)| (Some(key), value)),
        };
        let Some((key, value)) = next else {
            out.write_str(if matches!(frame, Frame::Array(_)) { "]" } else { "}" })?;
            stack.pop();
            first = false;
            continue;
        };
        if !first {
            out.write_str(",")?;
        }
        if let Some(key) = key {
            out.write_str("\"")?;
            escape(key, out)?;
            out.write_str("\":")?;
        }
        let depth = stack.len();
        open(value, out, &mut stack)?;
        first = stack.len() > depth;
    }
    Ok(())
}

/// Writes a scalar, or the start of a container and queues its children.
fn open<'a>(value: &'a Json, out: &mut impl fmt::Write, stack: &mut Vec<Frame<'a>>) -> fmt::Result {
    match &value.0 {
        Repr::Null => out.write_str("null"),
        Repr::Bool(true) => out.write_str("true"),
        Repr::Bool(false) => out.write_str("false"),
        Repr::Number(Number::Int(value)) => write!(out, "{value}"),
        Repr::Number(Number::Float(value)) => out.write_str(ryu_js::Buffer::new().format_finite(*value)),
        Repr::Text(text) => write_text(text.as_ref(), out),
        Repr::Array(array) => {
            stack.push(Frame::Array(array.iter()));
            out.write_str("[")
        }
        Repr::Object(object) => {
            stack.push(Frame::Object(object.iter()));
            out.write_str("{")
        }
    }
}

fn write_text(text: StrRef<'_>, out: &mut impl fmt::Write) -> fmt::Result {
    out.write_str("\"")?;
    for chunk in text.chunks() {
        escape(chunk, out)?;
    }
    out.write_str("\"")
}

fn escape(text: &str, out: &mut impl fmt::Write) -> fmt::Result {
    let mut written = 0;
    for (at, byte) in text.bytes().enumerate() {
        // Every byte that needs an escape is a character of its own.
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.write_str(&text[written..at])?;
        match byte {
            b'"' => out.write_str("\\\"")?,
            b'\\' => out.write_str("\\\\")?,
            b'\n' => out.write_str("\\n")?,
            b'\r' => out.write_str("\\r")?,
            b'\t' => out.write_str("\\t")?,
            0x08 => out.write_str("\\b")?,
            0x0c => out.write_str("\\f")?,
            _ => write!(out, "\\u{byte:04x}")?,
        }
        written = at + 1;
    }
    out.write_str(&text[written..])
}
