//! Exact replacements in a text, with its own line ends. Pure.

use std::ops::Range;

use serde::Deserialize;

use super::hint;

/// How many places are counted of a text that is to stand once.
const PLACES_MAX: usize = 1_000;
/// How many places an error names.
const PLACES_TOLD: usize = 5;

/// One replacement. Line ends of both texts may be LF or CRLF.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Replacement {
    /// What stands there, exactly once.
    pub old_text: String,
    /// What is to stand there.
    pub new_text: String,
}

/// An edited text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Edited {
    /// The bytes of the file: outside of the replacements they are what they were.
    pub content: Vec<u8>,
    /// The text before, with LF as line end and without byte order mark.
    pub before: String,
    /// The text after, likewise.
    pub after: String,
    /// The first line that differs, counted from 1.
    pub first_changed_line: usize,
}

/// Does every replacement in the text as it is, or none.
///
/// New lines get the line end that most lines of the text have; every other byte stays.
///
/// # Errors
/// Everything that does not fit, one problem a line, for the model.
pub fn apply(content: &[u8], edits: &[Replacement]) -> Result<Edited, String> {
    let text = Text::new(content)?;
    let mut places = Vec::new();
    let mut problems = Vec::new();
    for (index, edit) in edits.iter().enumerate() {
        match place(&text.plain, edit) {
            Ok(range) => places.push((range, index)),
            Err(problem) => problems.push(format!("edit {}: {problem}", index + 1)),
        }
    }
    places.sort_by_key(|(range, index)| (range.start, *index));
    for pair in places.windows(2) {
        if pair[1].0.start < pair[0].0.end {
            let (one, other) = (pair[0].1.min(pair[1].1) + 1, pair[0].1.max(pair[1].1) + 1);
            problems.push(format!("edits {one} and {other} overlap; make one of them"));
        }
    }
    if edits.is_empty() {
        problems.push("there is no edit".to_owned());
    }
    if !problems.is_empty() {
        return Err(problems.join("\n"));
    }
    let places: Vec<(Range<usize>, String)> = places.into_iter().map(|(range, index)| (range, lf(&edits[index].new_text))).collect();
    let after = splice(&text.plain, places.iter().map(|(range, new)| (range.clone(), new.as_str())));
    let own: Vec<(Range<usize>, String)> = places.iter().map(|(range, new)| (text.own(range), text.with_ends(new))).collect();
    let content = splice(text.whole, own.iter().map(|(range, new)| (range.clone(), new.as_str())));
    let first_changed_line = first_difference(&text.plain, &after);
    Ok(Edited { content: content.into_bytes(), before: text.plain, after, first_changed_line })
}

/// The one place of a replacement.
fn place(plain: &str, edit: &Replacement) -> Result<Range<usize>, String> {
    let (old, new) = (lf(&edit.old_text), lf(&edit.new_text));
    if old.is_empty() {
        return Err("oldText is empty; say what is to be replaced, or use write for a whole file".to_owned());
    }
    if old == new {
        return Err("oldText and newText are the same".to_owned());
    }
    let starts = places(plain, &old);
    match starts[..] {
        [start] => Ok(start..start + old.len()),
        [] => {
            let near = hint::near(plain, &old).map(|near| format!("; {near}")).unwrap_or_default();
            Err(format!("oldText does not stand in the file{near}"))
        }
        _ => {
            let more = if starts.len() == PLACES_MAX { "at least " } else { "" };
            let lines: Vec<String> = starts.iter().take(PLACES_TOLD).map(|start| line_of(plain, *start).to_string()).collect();
            let rest = if starts.len() > PLACES_TOLD { ", ..." } else { "" };
            let (count, lines) = (starts.len(), lines.join(", "));
            Err(format!("oldText stands {more}{count} times in the file, in lines {lines}{rest}; take more of its surroundings"))
        }
    }
}

/// Where a text begins in another, overlapping places too, up to the most that are counted.
fn places(text: &str, part: &str) -> Vec<usize> {
    let step = part.chars().next().map_or(1, char::len_utf8);
    let mut starts = Vec::new();
    let mut from = 0;
    while let Some(found) = text[from..].find(part) {
        starts.push(from + found);
        from += found + step;
        if starts.len() == PLACES_MAX {
            break;
        }
    }
    starts
}

/// A text with its line ends.
struct Text<'a> {
    /// Everything, byte order mark included.
    whole: &'a str,
    /// Without the mark, with LF only.
    plain: String,
    mark: usize,
    /// Where in `plain` an LF stands that is a CRLF in the file, ascending.
    returns: Vec<usize>,
    crlf: bool,
}

impl<'a> Text<'a> {
    fn new(content: &'a [u8]) -> Result<Self, String> {
        let whole = std::str::from_utf8(content).ok().filter(|text| !text.contains('\0'));
        let whole = whole.ok_or_else(|| "it is no UTF-8 text; change it with bash".to_owned())?;
        let body = whole.strip_prefix('\u{feff}').unwrap_or(whole);
        let mut plain = String::with_capacity(body.len());
        let mut returns = Vec::new();
        for (index, part) in body.split("\r\n").enumerate() {
            if index > 0 {
                returns.push(plain.len());
                plain.push('\n');
            }
            plain.push_str(part);
        }
        let ends = plain.bytes().filter(|byte| *byte == b'\n').count();
        let crlf = returns.len() * 2 > ends;
        Ok(Self { whole, plain, mark: whole.len() - body.len(), returns, crlf })
    }

    /// A range of `plain` in `whole`. A CRLF is taken whole or not at all.
    fn own(&self, range: &Range<usize>) -> Range<usize> {
        let own = |index: usize| self.mark + index + self.returns.partition_point(|place| *place < index);
        own(range.start)..own(range.end)
    }

    fn with_ends(&self, text: &str) -> String {
        if self.crlf { text.replace('\n', "\r\n") } else { text.to_owned() }
    }
}

fn lf(text: &str) -> String {
    text.replace("\r\n", "\n")
}

/// Puts texts in place of ascending ranges.
fn splice<'a>(text: &str, places: impl Iterator<Item = (Range<usize>, &'a str)>) -> String {
    let mut spliced = String::with_capacity(text.len());
    let mut done = 0;
    for (range, new) in places {
        spliced.push_str(&text[done..range.start]);
        spliced.push_str(new);
        done = range.end;
    }
    spliced.push_str(&text[done..]);
    spliced
}

fn first_difference(before: &str, after: &str) -> usize {
    let same = before.bytes().zip(after.bytes()).take_while(|(one, other)| one == other).count();
    1 + after.as_bytes()[..same].iter().filter(|byte| **byte == b'\n').count()
}

fn line_of(text: &str, index: usize) -> usize {
    1 + text.as_bytes()[..index].iter().filter(|byte| **byte == b'\n').count()
}
