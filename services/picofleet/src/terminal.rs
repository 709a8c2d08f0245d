//! What others wrote, for a terminal: it shows their texts and obeys none of them.

/// Whether a terminal would obey a character or show a text in another order, instead of showing it.
fn steers(c: char) -> bool {
    c.is_control() || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn escaped(text: &str, keeps: impl Fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if steers(c) && !keeps(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown
}

/// A text on one line: line breaks and escape sequences are shown as they are written in source text.
pub(crate) fn line(text: &str) -> String {
    escaped(text, |_| false)
}

/// A text that may have lines and tabs.
pub(crate) fn text(text: &str) -> String {
    escaped(text, |c| matches!(c, '\n' | '\t'))
}

/// A JSON text whose strings are escaped where a terminal would obey them; it means the same.
pub(crate) fn json(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if steers(c) && c != '\n' { shown.push_str(&format!("\\u{:04x}", u32::from(c))) } else { shown.push(c) }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_obeyed() {
        let hostile = "a\x1b[31mb\r\n\tc\u{9b}2J\u{7f}\u{8}\u{202e}\u{61c}d é😀";
        assert_eq!(line(hostile), "a\\u{1b}[31mb\\r\\n\\tc\\u{9b}2J\\u{7f}\\u{8}\\u{202e}\\u{61c}d é😀");
        assert_eq!(text(hostile), "a\\u{1b}[31mb\\r\n\tc\\u{9b}2J\\u{7f}\\u{8}\\u{202e}\\u{61c}d é😀");
    }

    #[test]
    fn json_means_the_same() {
        let shown = json("{\"a\":\"\u{9b}2J\u{202e}é\"}\n");
        assert_eq!(shown, "{\"a\":\"\\u009b2J\\u202eé\"}\n");
    }
}
