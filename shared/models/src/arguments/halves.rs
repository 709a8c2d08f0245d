//! Characters whose two UTF-16 units come in different events of a stream.
//!
//! A server that cuts its texts by UTF-16 units may end one text with the first half of a pair and begin the next one with the
//! second. JavaScript puts them together by appending; a Rust text cannot hold either half. So the decoder notes the halves at
//! the ends of texts, and [`Joined`] makes the character of them. A half that stays alone is dropped, as everywhere.

use std::borrow::Cow;
use std::fmt;

/// Longest path that is noted, in bytes. Texts that are continued lie near the top of their events.
pub(super) const PATH_MAX: usize = 128;

/// Most texts of one event that are noted.
const NOTED_MAX: usize = 256;

/// The halves without a partner at the ends of a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Edges {
    /// The second half of a pair, as the first unit.
    pub(super) first: Option<u16>,
    /// The first half of a pair, as the last unit.
    pub(super) last: Option<u16>,
}

impl Edges {
    /// True when there is one: the text is not empty then, even if nothing of it can be shown.
    pub(crate) fn any(self) -> bool {
        self.first.is_some() || self.last.is_some()
    }
}

/// The edges of the texts of one value, by their paths: keys and indices, joined by slashes.
#[derive(Default)]
pub(crate) struct Halves(Vec<(String, Edges)>);

impl Halves {
    /// Notes the edges of a text.
    pub(super) fn note(&mut self, path: String, edges: Edges) {
        if self.0.len() < NOTED_MAX {
            self.0.push((path, edges));
        }
    }

    /// The edges of the text at a path. As with the value itself, a key that comes again replaces the earlier one.
    pub(crate) fn at(&self, path: fmt::Arguments<'_>) -> Edges {
        if self.0.is_empty() {
            return Edges::default();
        }
        let path = path.to_string();
        self.0.iter().rfind(|(own, _)| *own == path).map(|(_, edges)| *edges).unwrap_or_default()
    }
}

/// Where a text that comes in pieces stands: the half that waits for the other one.
#[derive(Default)]
pub(crate) struct Joined(Option<u16>);

impl Joined {
    /// What a piece adds to the text: itself, after the character that its first unit completes.
    pub(crate) fn push<'a>(&mut self, piece: impl Into<Cow<'a, str>>, edges: Edges) -> Cow<'a, str> {
        let piece = piece.into();
        if piece.is_empty() && !edges.any() {
            return piece;
        }
        let waiting = std::mem::replace(&mut self.0, edges.last);
        let pair = waiting.zip(edges.first).and_then(|(high, low)| char::decode_utf16([high, low]).next()?.ok());
        match pair {
            Some(whole) => Cow::Owned(format!("{whole}{piece}")),
            None => piece,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::decode_with_halves;
    use super::*;

    /// The pieces, each the text of a JSON value, joined.
    fn joined(pieces: &[&str]) -> String {
        let mut joined = Joined::default();
        let piece = |text: &&str| {
            let (value, halves) = decode_with_halves(&format!("{{\"a\":[0,\"{text}\"]}}")).unwrap();
            let text = value.get("a").and_then(|list| list.as_array()?.iter().nth(1)?.as_str()).unwrap().into_owned();
            joined.push(text, halves.at(format_args!("a/{}", 1))).into_owned()
        };
        pieces.iter().map(piece).collect()
    }

    #[test]
    fn halves_of_neighbours_become_a_character() {
        for (pieces, expected) in [
            (&["a\\ud83d", "\\ude00b"][..], "a😀b"),
            (&["\\ud83d", "\\ude00"], "😀"),
            (&["\\ud83d", "", "\\ude00"], "😀"),
            (&["\\ud83d", "\\ude00\\ud83d", "\\ude00"], "😀😀"),
            (&["\\ud83d\\ud83d", "\\ude00\\ude00"], "😀"),
            (&["\\ud83d", "x", "\\ude00"], "x"),
            (&["\\ud83dx", "\\ude00"], "x"),
            (&["\\ud83d", "x\\ude00"], "x"),
            (&["\\ud83d", "\\n\\ude00"], "\n"),
            (&["\\ud83d\\ude00", "\\ude00"], "😀"),
            (&["\\ude00", "\\ud83d"], ""),
        ] {
            assert_eq!(joined(pieces), expected, "{pieces:?}");
        }
    }

    #[test]
    fn what_is_noted_is_bounded() {
        let noted = |text: &str| decode_with_halves(text).unwrap().1.0.len();
        assert_eq!(noted(&format!("[{}0]", "\"\\ud83d\",".repeat(1000))), NOTED_MAX);
        assert_eq!(noted(&format!("{{\"{}\":\"\\ud83d\"}}", "k".repeat(PATH_MAX))), 1);
        assert_eq!(noted(&format!("{{\"{}\":\"\\ud83d\"}}", "k".repeat(PATH_MAX + 1))), 0);
        assert_eq!(noted("{\"\\ud83d\":\"a\\ud83db\"}"), 0);
    }

    #[test]
    fn a_key_that_comes_again_replaces_the_earlier_one() {
        let (_, halves) = decode_with_halves(r#"{"a":"\ud83d","a":"\ude00"}"#).unwrap();
        assert_eq!(halves.at(format_args!("a")), Edges { first: Some(0xde00), last: None });
    }
}
