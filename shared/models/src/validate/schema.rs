//! A schema at work: its root for references, its compiled patterns, and the steps that are left.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use super::pattern::{Pattern, Undecided};
use super::{DEPTH_MAX, STEPS_MAX};
use picofleet_delta::{Json, JsonRef};

/// What is said of a value or schema that a limit cuts off.
pub(super) const TOO_LARGE: &str = "nests too deeply or is too large to be checked";

pub(super) struct Schema<'a> {
    pub(super) root: &'a Json,
    steps: Cell<u32>,
    patterns: RefCell<HashMap<String, Result<Rc<Pattern>, Undecided>>>,
}

impl<'a> Schema<'a> {
    pub(super) fn new(root: &'a Json) -> Self {
        Self { root, steps: Cell::new(STEPS_MAX), patterns: RefCell::default() }
    }

    /// Takes a step at a depth; false when there is none left.
    pub(super) fn step(&self, depth: u32) -> bool {
        self.spend(1) && depth < DEPTH_MAX
    }

    /// Takes some steps; false when there is none left after them.
    fn spend(&self, steps: u32) -> bool {
        let left = self.steps.get().saturating_sub(steps);
        self.steps.set(left);
        left > 0
    }

    /// The schema that a reference names: the root, a JSON pointer into it, or the same after the root's own `$id`.
    pub(super) fn resolve(&self, reference: &str) -> Option<&'a Json> {
        let (base, fragment) = reference.split_once('#')?;
        let id = text(self.root, "$id");
        if !base.is_empty() && id.as_deref() != Some(base) {
            return None;
        }
        if fragment.is_empty() {
            return Some(self.root);
        }
        fragment.strip_prefix('/')?.split('/').try_fold(self.root, |at, part| {
            let part = percent_decode(part).replace("~1", "/").replace("~0", "~");
            match at.as_ref() {
                JsonRef::Object(object) => object.get(&part),
                JsonRef::Array(items) => items.get(part.parse().ok()?),
                _ => None,
            }
        })
    }

    /// True when the text matches a pattern; a message when nobody can tell.
    pub(super) fn matches(&self, pattern: &str, text: &str) -> Result<bool, String> {
        let cannot = |why: Undecided| format!("cannot be checked against the pattern {pattern}: {why}");
        let compiled = self.compiled(pattern).map_err(cannot)?;
        if !self.spend(compiled.steps(text)) {
            return Err(TOO_LARGE.to_owned());
        }
        compiled.matches(text).map_err(|why| {
            // Such a pattern gets no more texts to hold the thread with.
            if why == Undecided::TooHard {
                self.patterns.borrow_mut().insert(pattern.to_owned(), Err(why));
            }
            cannot(why)
        })
    }

    fn compiled(&self, pattern: &str) -> Result<Rc<Pattern>, Undecided> {
        if let Some(compiled) = self.patterns.borrow().get(pattern) {
            return compiled.clone();
        }
        let compiled = Pattern::new(pattern).map(Rc::new);
        self.patterns.borrow_mut().insert(pattern.to_owned(), compiled.clone());
        compiled
    }
}

fn percent_decode(text: &str) -> Cow<'_, str> {
    if !text.contains('%') {
        return Cow::Borrowed(text);
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escaped = after.get(..2).filter(|_| *first == b'%').and_then(|hex| std::str::from_utf8(hex).ok());
        match escaped.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    Cow::Owned(String::from_utf8_lossy(&bytes).into_owned())
}

/// A keyword that is a text.
pub(super) fn text<'a>(schema: &'a Json, keyword: &str) -> Option<Cow<'a, str>> {
    schema.get(keyword)?.as_str()
}

/// The schemas of a keyword that is a list of them.
pub(super) fn list<'a>(schema: &'a Json, keyword: &str) -> Option<Vec<&'a Json>> {
    Some(schema.get(keyword)?.as_array()?.iter().collect())
}

/// The schemas of a keyword that names them.
pub(super) fn named<'a>(schema: &'a Json, keyword: &str) -> Vec<(&'a str, &'a Json)> {
    schema.get(keyword).and_then(Json::as_object).map(crate::js::entries).unwrap_or_default()
}

/// A keyword that is a schema: an object or a boolean.
pub(super) fn sub<'a>(schema: &'a Json, keyword: &str) -> Option<&'a Json> {
    schema.get(keyword).filter(|sub| is_schema(sub))
}

pub(super) fn is_schema(value: &Json) -> bool {
    value.as_object().is_some() || value.as_bool().is_some()
}

/// The texts of a keyword that is a list of texts.
pub(super) fn names(value: &Json) -> Vec<Cow<'_, str>> {
    value.as_array().map(|names| names.iter().filter_map(Json::as_str).collect()).unwrap_or_default()
}

pub(super) fn requires(schema: &Json, name: &str) -> bool {
    schema.get("required").is_some_and(|required| names(required).iter().any(|own| own == name))
}

/// The types that a schema names: one or more.
pub(super) fn types(schema: &Json) -> Option<Vec<Cow<'_, str>>> {
    let types = schema.get("type")?;
    match types.as_str() {
        Some(one) => Some(vec![one]),
        None => types.as_array().map(|_| names(types)),
    }
}

/// True when a value is of a type by its name.
pub(super) fn is_of_type(value: &Json, name: &str) -> bool {
    match value.as_ref() {
        JsonRef::Null => name == "null",
        JsonRef::Bool(_) => name == "boolean",
        JsonRef::Int(_) => matches!(name, "integer" | "number"),
        JsonRef::Float(number) => name == "number" || (name == "integer" && number.fract() == 0.0),
        JsonRef::String(_) => name == "string",
        JsonRef::Array(_) => name == "array",
        JsonRef::Object(_) => name == "object",
    }
}

/// The type of a value, for messages.
pub(super) fn type_name(value: &Json) -> &'static str {
    match value.as_ref() {
        JsonRef::Null => "null",
        JsonRef::Bool(_) => "boolean",
        JsonRef::Float(number) if number.fract() != 0.0 => "number",
        JsonRef::Int(_) | JsonRef::Float(_) => "integer",
        JsonRef::String(_) => "string",
        JsonRef::Array(_) => "array",
        JsonRef::Object(_) => "object",
    }
}

/// The schemas of the items of an array: those of the first places, and that of the rest.
pub(super) fn item_schemas(schema: &Json) -> (Vec<&Json>, Option<&Json>) {
    // Before 2020-12, a list in `items` had the first places and `additionalItems` the rest.
    if let Some(first) = list(schema, "items") {
        return (first, sub(schema, "additionalItems"));
    }
    (list(schema, "prefixItems").unwrap_or_default(), sub(schema, "items"))
}
