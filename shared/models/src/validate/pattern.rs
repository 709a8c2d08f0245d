//! Regular expressions of JavaScript, as schemas have them, for the crates `regex` and `fancy-regex`.
//!
//! The first needs time in proportion to the text, which a schema of a stranger must not exceed, and has neither look-around nor back
//! references; patterns with those go to the second, which gives up after so many steps back. What else differs is rewritten: classes
//! are those of ASCII, `[^]` and `[]` exist, a dot ends at four line ends, and escapes that mean themselves are allowed.

use regex::{Regex, RegexBuilder};

/// Largest compiled pattern, in bytes.
const SIZE_MAX: usize = 1 << 20;

/// How often a pattern with look-around or back references may step back: some milliseconds.
const BACKTRACKS_MAX: usize = 100_000;

/// A border of a word as JavaScript has it, written with look-around.
const BORDER: &str = "(?:(?<=[A-Za-z0-9_])(?![A-Za-z0-9_])|(?<![A-Za-z0-9_])(?=[A-Za-z0-9_]))";
const NO_BORDER: &str = "(?:(?<=[A-Za-z0-9_])(?=[A-Za-z0-9_])|(?<![A-Za-z0-9_])(?![A-Za-z0-9_]))";

/// A compiled pattern.
pub(super) enum Pattern {
    /// In time that is linear in the text.
    Linear(Regex),
    /// By steps back, of which there are only so many.
    Backtracking(Box<fancy_regex::Regex>),
}

/// What a text is to a pattern.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Match {
    Yes,
    No,
    /// The pattern is no regular expression that either crate takes.
    Unreadable,
    /// Whether it matches takes too long to find out.
    GivenUp,
}

impl Pattern {
    pub(super) fn matches(&self, text: &str) -> Match {
        let found = match self {
            Self::Linear(regex) => regex.is_match(text),
            Self::Backtracking(regex) => match regex.is_match(text) {
                Ok(found) => found,
                Err(_) => return Match::GivenUp,
            },
        };
        if found { Match::Yes } else { Match::No }
    }
}

/// JavaScript's white space, inside a class.
const SPACE: &str = r"\t-\r \u{a0}\u{1680}\u{2000}-\u{200a}\u{2028}\u{2029}\u{202f}\u{205f}\u{3000}\u{feff}";

/// The pattern, if one of the crates can express it.
pub(super) fn compile(pattern: &str) -> Option<Pattern> {
    let linear = translate(pattern);
    if let Ok(regex) = RegexBuilder::new(&linear).size_limit(SIZE_MAX).build() {
        return Some(Pattern::Linear(regex));
    }
    let written = linear.replace("(?-u:\\b)", BORDER).replace("(?-u:\\B)", NO_BORDER);
    let mut builder = fancy_regex::RegexBuilder::new(&written);
    let builder = builder.backtrack_limit(BACKTRACKS_MAX).delegate_size_limit(SIZE_MAX);
    builder.build().ok().map(|regex| Pattern::Backtracking(Box::new(regex)))
}

fn translate(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    let mut rest = pattern;
    let mut in_class = false;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match c {
            '\\' => rest = escape(rest, in_class, &mut out),
            '[' if in_class => out.push_str("\\["),
            '[' if rest.starts_with("^]") => {
                out.push_str(r"(?s:.)");
                rest = &rest[2..];
            }
            '[' if rest.starts_with(']') => {
                out.push_str(r"[^\u{0}-\u{10ffff}]");
                rest = &rest[1..];
            }
            '[' => {
                in_class = true;
                out.push('[');
                if let Some(after) = rest.strip_prefix('^') {
                    out.push('^');
                    rest = after;
                }
            }
            ']' if in_class => {
                in_class = false;
                out.push(']');
            }
            // The crate reads doubled signs in a class as operations on sets.
            '&' | '~' | '-' if in_class && rest.starts_with(c) => {
                out.push('\\');
                out.push(c);
            }
            '.' if !in_class => out.push_str(r"[^\n\r\u{2028}\u{2029}]"),
            '{' if !in_class && !is_quantifier(rest) => out.push_str("\\{"),
            _ => out.push(c),
        }
    }
    out
}

/// True when `rest`, which follows a brace, is a quantifier as JavaScript has it.
fn is_quantifier(rest: &str) -> bool {
    let Some((inner, _)) = rest.split_once('}') else { return false };
    let (least, most) = inner.split_once(',').unwrap_or((inner, ""));
    !least.is_empty() && least.bytes().chain(most.bytes()).all(|byte| byte.is_ascii_digit())
}

/// Writes what follows a backslash; gives the rest.
fn escape<'a>(rest: &'a str, in_class: bool, out: &mut String) -> &'a str {
    let Some(c) = rest.chars().next() else {
        // A lone backslash at the end is an error on both sides.
        out.push('\\');
        return rest;
    };
    let after = &rest[c.len_utf8()..];
    let class = |members: &str| if in_class { members.to_owned() } else { format!("[{members}]") };
    match c {
        'd' => out.push_str(&class("0-9")),
        'w' => out.push_str(&class("A-Za-z0-9_")),
        's' => out.push_str(&class(SPACE)),
        'D' => out.push_str("[^0-9]"),
        'W' => out.push_str("[^A-Za-z0-9_]"),
        'S' => {
            out.push_str("[^");
            out.push_str(SPACE);
            out.push(']');
        }
        'b' if in_class => out.push_str("\\x08"),
        'b' | 'B' => {
            out.push_str("(?-u:\\");
            out.push(c);
            out.push(')');
        }
        'u' | 'x' => return code_point(c, after, out),
        '0' => out.push_str("\\x00"),
        // A back reference, which the crate refuses.
        '1'..='9' => out.extend(['\\', c]),
        'p' | 'P' => {
            let (property, rest) = after.find('}').filter(|_| after.starts_with('{')).map_or(("", after), |end| after.split_at(end + 1));
            out.extend(['\\', c]);
            out.push_str(property);
            return rest;
        }
        'f' | 'n' | 'r' | 't' | 'v' | 'k' => out.extend(['\\', c]),
        _ if c.is_ascii_alphanumeric() => out.push(c),
        _ => out.push_str(&regex::escape(&c.to_string())),
    }
    // A hyphen after a class cannot begin a range; the crate wants it escaped.
    match after.strip_prefix('-') {
        Some(rest) if in_class && matches!(c, 'd' | 'D' | 'w' | 'W' | 's' | 'S') => {
            out.push_str("\\-");
            rest
        }
        _ => after,
    }
}

fn code_point<'a>(kind: char, after: &'a str, out: &mut String) -> &'a str {
    let braced = after.strip_prefix('{').filter(|_| kind == 'u').and_then(|inner| inner.split_once('}'));
    let length = if kind == 'u' { 4 } else { 2 };
    let (digits, rest) = match braced {
        Some(found) => found,
        None => match after.split_at_checked(length) {
            Some(found) => found,
            None => (after, ""),
        },
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        out.push(kind);
        return after;
    }
    out.push_str(&format!("\\u{{{digits}}}"));
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_what_they_mean_in_javascript() {
        for (pattern, text, expected) in [
            ("^.$", "😀", true),
            ("^.$", "\u{2028}", false),
            (r"^\w+$", "é", false),
            (r"^\d+$", "٣", false),
            (r"\u{61}\u0062\x63", "abc", true),
            ("^[^]$", "\n", true),
            ("[]", "a", false),
            ("a{,2}", "a{,2}", true),
            (r"^[\w-.]+$", "a-b.c", true),
            (r"\-\/\_", "-/_", true),
            ("^a{2,3}$", "aaa", true),
            (r"^[\s]$", "\u{feff}", true),
            (r"^[^\s\d]+$", "ab", true),
            ("^[[]$", "[", true),
            ("^(?<name>a|b)+$", "ab", true),
            (r"^\p{L}+$", "éa", true),
            (r"\bfoo\b", "a foo b", true),
            ("[a&&b]", "&", true),
            ("^{a}$", "{a}", true),
            ("(?<=a)b", "ab", true),
            ("(?<=a)b", "cb", false),
            ("^(a)\\1$", "aa", true),
            ("^(a)\\1$", "ab", false),
            (r"^(?!.*\bsecret\b).+$", "a secrets", true),
            (r"^(?!.*\bsecret\b).+$", "a secret!", false),
            (r"^(?=.*\d)(?=.*[a-z])\w{3,}$", "ab1", true),
            (r"^(?=.*\d)(?=.*[a-z])\w{3,}$", "abc", false),
            (r"(?<!\w)é\B.", "é!", true),
        ] {
            let expected = if expected { Match::Yes } else { Match::No };
            assert_eq!(compile(pattern).unwrap_or_else(|| panic!("{pattern}")).matches(text), expected, "{pattern} {text:?}");
        }
    }

    #[test]
    fn what_the_crates_cannot_express_is_none() {
        for pattern in ["(", "\\", "a(?!b", "*"] {
            assert!(compile(pattern).is_none(), "{pattern}");
        }
    }

    #[test]
    fn what_steps_back_for_ever_is_given_up() {
        let hostile = compile(r"^(a|b|ab)*\1(?<!x)c$").unwrap();
        assert_eq!(hostile.matches(&"ab".repeat(60)), Match::GivenUp);
    }
}
