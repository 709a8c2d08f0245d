//! Where a value of the configuration came from.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::merge::Override;

/// The variable that set what a path names, or the line of the file where it stands. `None` for defaults.
pub(super) fn of(file: &str, text: &str, overrides: &[Override], path: &str) -> Option<String> {
    // The variable that names it, or the nearest table around it.
    let set = overrides.iter().filter(|own| below(path, &own.path)).max_by_key(|own| own.path.len());
    if let Some(own) = set {
        return Some(own.variable.clone());
    }
    let table = DeTable::parse(text).ok();
    if let Some(span) = table.and_then(|table| in_table(table.get_ref(), path)) {
        return Some(line(file, text, span.start));
    }
    let parts: Vec<&str> = overrides.iter().filter(|own| below(&own.path, path)).map(|own| own.variable.as_str()).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// The key whose value is at a place of a file.
pub(super) fn key(text: &str, at: usize) -> Option<String> {
    let table = DeTable::parse(text).ok()?;
    let mut path = Vec::new();
    key_in_table(table.get_ref(), at, &mut path);
    (!path.is_empty()).then(|| path.join("."))
}

fn key_in_table(table: &DeTable<'_>, at: usize, path: &mut Vec<String>) {
    // The parts of a table stand in several places, so that its own place says nothing: what is in it does.
    for (key, value) in table {
        let above = path.len();
        path.push(key.get_ref().to_string());
        if key.span().contains(&at) || key_in_value(value, at, path) {
            return;
        }
        path.truncate(above);
    }
}

fn key_in_value(value: &Spanned<DeValue<'_>>, at: usize, path: &mut Vec<String>) -> bool {
    let above = path.len();
    match value.get_ref() {
        DeValue::Table(table) => key_in_table(table, at, path),
        DeValue::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                path.push(index.to_string());
                if key_in_value(item, at, path) {
                    return true;
                }
                path.truncate(above);
            }
        }
        _ => {}
    }
    path.len() > above || value.span().contains(&at)
}

/// A place in a file as editors take it.
pub(super) fn line(file: &str, text: &str, at: usize) -> String {
    let lines = text.as_bytes().iter().take(at).filter(|byte| **byte == b'\n').count();
    format!("{file}:{}", lines + 1)
}

/// Whether a path is another one or below it.
fn below(path: &str, above: &str) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Where a path stands. Keys may have dots of their own, so every key that fits is followed.
fn in_table(table: &DeTable<'_>, path: &str) -> Option<Range<usize>> {
    table.iter().find_map(|(key, value)| match path.strip_prefix(key.get_ref().as_ref())? {
        "" => Some(key.span()),
        rest => in_value(value, rest.strip_prefix('.')?),
    })
}

fn in_value(value: &Spanned<DeValue<'_>>, path: &str) -> Option<Range<usize>> {
    match value.get_ref() {
        DeValue::Table(table) => in_table(table, path),
        DeValue::Array(items) => {
            let (index, rest) = path.split_once('.').unwrap_or((path, ""));
            let item = items.get(index.parse::<usize>().ok()?)?;
            if rest.is_empty() { Some(item.span()) } else { in_value(item, rest) }
        }
        _ => None,
    }
}
