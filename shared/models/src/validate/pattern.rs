//! Patterns of schemas, which are regular expressions of JavaScript.
//!
//! Nearly all of them work in an engine that needs time in proportion to the text. Those that look around or refer to a
//! group need one that goes back and tries again; it does so at most [`BACKTRACKS_MAX`] times, on at most [`LOOKED_AT_MAX`]
//! bytes. Where no answer comes out of that, the pattern is [`Undecided`], which is never taken for a match or for none.

mod translate;

use std::fmt;

use regex::RegexBuilder;

use translate::{Dialect, translate};

/// Sizes of a compiled pattern, in KiB. A pattern has the first one that it fits in; what is larger than the last is not
/// compiled. `^\p{L}{1,64}$` needs 4 MiB, since each letter of Unicode is in it 64 times.
const SIZES_KIB: [usize; 6] = [4, 16, 64, 256, 1024, 4096];

/// How often a pattern that looks around may go back. Looking at each place of the longest text takes one of them each.
const BACKTRACKS_MAX: usize = 10_000;

/// Longest text for a pattern that looks around, in bytes. It may look at all of the text from each place of it.
const LOOKED_AT_MAX: usize = 8 << 10;

/// What the linear engine does at the price of one step, in bytes of text times KiB of pattern. At its slowest, it needs time
/// in proportion to both.
const BYTE_KIB_PER_STEP: usize = 4;

/// What a pattern that looks around costs in steps however short the text is: it may go back often all the same.
const STEPS_MIN_LOOKING: usize = 64;

/// What an engine that looks around does at the price of one step, in pairs of bytes of text times KiB of pattern.
const PAIR_KIB_PER_STEP: usize = 4096;

const LINEAR: Dialect = Dialect {
    boundary: r"(?-u:\b)",
    no_boundary: r"(?-u:\B)",
    // This engine has none, so it refuses the pattern.
    reference: |_, escape, out| out.push_str(escape),
};

const LOOKING: Dialect = Dialect {
    boundary: "(?:(?<=[A-Za-z0-9_])(?![A-Za-z0-9_])|(?<![A-Za-z0-9_])(?=[A-Za-z0-9_]))",
    no_boundary: "(?:(?<=[A-Za-z0-9_])(?=[A-Za-z0-9_])|(?<![A-Za-z0-9_])(?![A-Za-z0-9_]))",
    // In JavaScript, a group that took no part matched the empty text.
    reference: |group, escape, out| out.extend(["(?(", group, ")", escape, "|)"]),
};

/// Why nobody can tell whether a text matches a pattern. The text of it follows the pattern.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Undecided {
    /// It is no regular expression, or one that no engine here knows.
    Unknown,
    /// It looks around, and the text is too long for that.
    TooLong,
    /// It goes back too often.
    TooHard,
}

impl fmt::Display for Undecided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("it is no regular expression that can be checked"),
            Self::TooLong => write!(f, "it looks around, for which a text of more than {LOOKED_AT_MAX} bytes is too long"),
            Self::TooHard => f.write_str("it tries too many ways to match this text"),
        }
    }
}

/// A compiled pattern.
#[derive(Debug)]
pub(super) struct Pattern {
    engine: Engine,
    size_kib: usize,
}

#[derive(Debug)]
enum Engine {
    Linear(regex::Regex),
    Looking(fancy_regex::Regex),
}

impl Pattern {
    /// Compiles the text of a pattern.
    pub(super) fn new(pattern: &str) -> Result<Self, Undecided> {
        let linear = translate(pattern, &LINEAR);
        let sized = |compile: &dyn Fn(usize) -> Option<Engine>| {
            SIZES_KIB.into_iter().find_map(|size_kib| Some(Self { engine: compile(size_kib << 10)?, size_kib }))
        };
        let compiled = sized(&|size| RegexBuilder::new(&linear).size_limit(size).build().ok().map(Engine::Linear));
        if let Some(compiled) = compiled {
            return Ok(compiled);
        }
        if !has_only_known_groups(pattern) {
            return Err(Undecided::Unknown);
        }
        let looking = translate(pattern, &LOOKING);
        let compiled = sized(&|size| {
            let mut builder = fancy_regex::RegexBuilder::new(&looking);
            builder.backtrack_limit(BACKTRACKS_MAX).delegate_size_limit(size).delegate_dfa_size_limit(size);
            builder.build().ok().map(Engine::Looking)
        });
        compiled.ok_or(Undecided::Unknown)
    }

    /// True when it matches some part of a text.
    pub(super) fn matches(&self, text: &str) -> Result<bool, Undecided> {
        match &self.engine {
            Engine::Linear(regex) => Ok(regex.is_match(text)),
            Engine::Looking(_) if text.len() > LOOKED_AT_MAX => Err(Undecided::TooLong),
            Engine::Looking(regex) => regex.is_match(text).map_err(|_| Undecided::TooHard),
        }
    }

    /// The steps that a text costs.
    pub(super) fn steps(&self, text: &str) -> u32 {
        let length = text.len();
        let steps = match &self.engine {
            Engine::Linear(_) => 1 + length.saturating_mul(self.size_kib) / BYTE_KIB_PER_STEP,
            Engine::Looking(_) if length > LOOKED_AT_MAX => 1,
            Engine::Looking(_) => STEPS_MIN_LOOKING + length.pow(2) * self.size_kib / PAIR_KIB_PER_STEP,
        };
        u32::try_from(steps).unwrap_or(u32::MAX)
    }
}

/// True when every group begins as one of JavaScript does. The engine that looks around knows others, recursion among them.
fn has_only_known_groups(pattern: &str) -> bool {
    let (mut rest, mut in_class) = (pattern.chars(), false);
    while let Some(c) = rest.next() {
        match c {
            '\\' => drop(rest.next()),
            '[' => in_class = true,
            ']' => in_class = false,
            '(' if !in_class && !is_known_group(rest.as_str()) => return false,
            _ => {}
        }
    }
    true
}

fn is_known_group(rest: &str) -> bool {
    match rest.strip_prefix('?') {
        Some(kind) => [":", "=", "!", "<"].iter().any(|start| kind.starts_with(start)),
        None => !rest.starts_with('*'),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_match(pattern: &str, text: &str) -> bool {
        Pattern::new(pattern).and_then(|pattern| pattern.matches(text)).unwrap_or_else(|why| panic!("{pattern} {text:?}: {why}"))
    }

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
            (r"\bé\b", "é", false),
            (r"\Bé\B", "é", true),
            (r"\(?[?(]", "(", true),
            ("[a&&b]", "&", true),
            ("^{a}$", "{a}", true),
            ("^a$", "a\n", false),
        ] {
            assert!(matches!(Pattern::new(pattern), Ok(Pattern { engine: Engine::Linear(_), .. })), "{pattern}");
            assert_eq!(is_match(pattern, text), expected, "{pattern} {text:?}");
            // The other engine agrees: what stands before always matches.
            assert_eq!(is_match(&format!("(?:(?=)(?:{pattern}))"), text), expected, "{pattern} {text:?}");
        }
    }

    #[test]
    fn large_patterns_cost_more() {
        let steps = |pattern: &str, length: usize| Pattern::new(pattern).unwrap().steps(&"a".repeat(length));
        assert_eq!(steps("^[a-z]+$", 100), 101);
        assert_eq!(steps("(?:[ab]?){3000}c", 100), 1 + 100 * 256);
        assert_eq!(steps(r"^\p{L}{1,64}$", 10), 1 + 10 * 1024);
        assert!(Pattern::new(r"\p{L}{1,10000}").is_err());
        assert_eq!((steps("(?=b)c", 0), steps("(?=b)c", 8192), steps("(?=b)c", 8193)), (64, 64 + 65_536, 1));
    }

    #[test]
    fn patterns_look_around_and_refer_to_groups() {
        for (pattern, text, expected) in [
            (r"^(?!.*\.\.)[a-z.]+$", "a.b", true),
            (r"^(?!.*\.\.)[a-z.]+$", "a..b", false),
            (r"^(?=.*[A-Z])(?=.*\d).{8,}$", "abcdefG8", true),
            (r"^(?=.*[A-Z])(?=.*\d).{8,}$", "abcdefgh", false),
            ("(?<=a)b", "ab", true),
            ("(?<=a)b", "cb", false),
            ("(?<!a{1,3})b", "aab", false),
            (r"^(['\x22])\w+\1$", "'a'", true),
            (r"^(['\x22])\w+\1$", "'a\"", false),
            (r"^(?<q>a|b)\k<q>+$", "aaa", true),
            (r"^(?<q>a|b)\k<q>+$", "ab", false),
            (r"^(?:(a)|b)\1$", "b", true),
            (r"^\1(a)$", "a", true),
            (r"^(?=\(?)[(?*]\(?\)$", "()", true),
            (r"^(?=\bé)", "é", false),
        ] {
            assert!(matches!(Pattern::new(pattern), Ok(Pattern { engine: Engine::Looking(_), .. })), "{pattern}");
            assert_eq!(is_match(pattern, text), expected, "{pattern} {text:?}");
        }
    }

    #[test]
    fn what_no_engine_knows_is_undecided() {
        let deep = "(?=".repeat(10_000);
        let large = r"(?=(?:\p{L}{1000}){1000})(a)\1";
        for pattern in
            ["(", "\\", "(a)\\2", r"(?=a)[\1]", "(?=a)(?R)", "(?=a)(?>b)", "(?=a)(?(1)b)(c)", "(?=a)(*FAIL)", r"\k<a>", &deep, large]
        {
            assert_eq!(Pattern::new(pattern).err(), Some(Undecided::Unknown), "{}", &pattern[..pattern.len().min(40)]);
        }
    }

    /// Only a limit ends each of them.
    #[test]
    fn patterns_that_go_back_for_ever_are_undecided() {
        for pattern in [r"(a+)+(?!a)\1b", r"(.*)\1x", "^(?:(.*)(?=x)|a)*$", r"(.*)(.*)(.*)\1\2\3x"] {
            let pattern = Pattern::new(pattern).unwrap();
            assert_eq!(pattern.matches(&"a".repeat(LOOKED_AT_MAX)), Err(Undecided::TooHard), "{pattern:?}");
            assert_eq!(pattern.matches(&"a".repeat(LOOKED_AT_MAX + 1)), Err(Undecided::TooLong), "{pattern:?}");
        }
        // A pattern that looks at each place once is below the limit.
        assert_eq!(Pattern::new("(?<=b)a").unwrap().matches(&"a".repeat(LOOKED_AT_MAX)), Ok(false));
    }
}
