//! Regular expressions of JavaScript in the words of the engines.
//!
//! What differs is rewritten: classes are those of ASCII, `[^]` and `[]` exist, a dot ends at four line ends, and escapes
//! that mean themselves are allowed.

/// How an engine says what not all say alike.
pub(super) struct Dialect {
    /// A boundary between a word and what is no word.
    pub(super) boundary: &'static str,
    /// A place that is no such boundary.
    pub(super) no_boundary: &'static str,
    /// Writes a reference to what a group matched: the group by number or name, and the escape that JavaScript has for it.
    pub(super) reference: fn(group: &str, escape: &str, out: &mut String),
}

/// JavaScript's white space, inside a class.
const SPACE: &str = r"\t-\r \u{a0}\u{1680}\u{2000}-\u{200a}\u{2028}\u{2029}\u{202f}\u{205f}\u{3000}\u{feff}";

/// A pattern in a dialect.
pub(super) fn translate(pattern: &str, dialect: &Dialect) -> String {
    let mut out = String::with_capacity(pattern.len());
    let mut rest = pattern;
    let mut in_class = false;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match c {
            '\\' => rest = escape(rest, in_class, dialect, &mut out),
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
fn escape<'a>(rest: &'a str, in_class: bool, dialect: &Dialect, out: &mut String) -> &'a str {
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
        'b' => out.push_str(dialect.boundary),
        'B' if !in_class => out.push_str(dialect.no_boundary),
        'u' | 'x' => return code_point(c, after, out),
        '0' => out.push_str("\\x00"),
        '1'..='9' if !in_class => {
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            let (group, rest) = rest.split_at(end);
            (dialect.reference)(group, &format!("\\{group}"), out);
            return rest;
        }
        // No engine takes it.
        '1'..='9' => out.extend(['\\', c]),
        'k' if !in_class => {
            let end = after.find('>').map_or(0, |end| end + 1);
            let (group, rest) = after.split_at(end);
            (dialect.reference)(group, &format!("\\k{group}"), out);
            return rest;
        }
        'p' | 'P' => {
            let (property, rest) = after.find('}').filter(|_| after.starts_with('{')).map_or(("", after), |end| after.split_at(end + 1));
            out.extend(['\\', c]);
            out.push_str(property);
            return rest;
        }
        'f' | 'n' | 'r' | 't' | 'v' => out.extend(['\\', c]),
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
