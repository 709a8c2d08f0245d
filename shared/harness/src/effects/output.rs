//! Bounded output of a tool (section 7.3): whole lines from the beginning or the end of the stream.

/// What of a tool's output is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutputLimits {
    /// Bytes.
    pub max_bytes: usize,
    /// Lines.
    pub max_lines: usize,
    /// Which end.
    pub retain: Retain,
}

/// Which end of the output is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Retain {
    /// The first lines.
    Head,
    /// The last lines.
    Tail,
}

impl Default for OutputLimits {
    fn default() -> Self {
        Self { max_bytes: 50 * 1024, max_lines: 2_000, retain: Retain::Head }
    }
}

/// A bounded stream of output. Memory stays within the limits and one chunk.
#[derive(Clone, Debug)]
pub struct OutputBuffer {
    limits: OutputLimits,
    kept: String,
    /// The begin of a character whose rest has not come.
    carry: Vec<u8>,
    dropped_bytes: u64,
    dropped_lines: u64,
    /// Head only: nothing is kept any more.
    full: bool,
    /// Head only: the dropped part ends in the middle of a line.
    inside_line: bool,
}

impl OutputBuffer {
    /// An empty buffer.
    #[must_use]
    pub const fn new(limits: OutputLimits) -> Self {
        Self { limits, kept: String::new(), carry: Vec::new(), dropped_bytes: 0, dropped_lines: 0, full: false, inside_line: false }
    }

    /// Takes a chunk. What is no UTF-8 becomes the replacement character.
    pub fn push(&mut self, chunk: &[u8]) {
        let mut bytes = std::mem::take(&mut self.carry);
        bytes.extend_from_slice(chunk);
        let whole = whole_characters(&bytes);
        self.carry = bytes.split_off(whole);
        let text = String::from_utf8_lossy(&bytes);
        match self.limits.retain {
            Retain::Head => self.push_head(&text),
            Retain::Tail => self.push_tail(&text),
        }
    }

    /// What is kept, without control characters other than tab and newline.
    #[must_use]
    pub fn text(&self) -> String {
        self.kept.chars().filter(|c| !c.is_control() || matches!(c, '\t' | '\n')).collect()
    }

    /// What is kept, as it came.
    pub(super) fn raw(self) -> String {
        self.kept
    }

    /// How many bytes and lines were dropped.
    #[must_use]
    pub const fn dropped(&self) -> (u64, u64) {
        (self.dropped_bytes, self.dropped_lines)
    }

    fn push_head(&mut self, text: &str) {
        if self.full {
            self.drop_text(text);
            return;
        }
        self.kept.push_str(text);
        let cut = self.head_end();
        if cut < self.kept.len() {
            let rest = self.kept.split_off(cut);
            self.full = true;
            // A line that is cut in its middle counts as kept and as dropped.
            self.drop_text(&rest);
        }
    }

    /// Where the kept head ends: behind the last whole line that fits, or within the first line where that alone is too long.
    fn head_end(&self) -> usize {
        let text = &self.kept;
        let lines_end = nth_line_end(text, self.limits.max_lines);
        if text.len() <= self.limits.max_bytes && lines_end == text.len() {
            return text.len();
        }
        let bytes_end = floor_char(text, self.limits.max_bytes);
        let end = lines_end.min(bytes_end);
        if end == text.len() || text[..end].ends_with('\n') {
            return end;
        }
        text[..end].rfind('\n').map_or(end, |newline| newline + 1)
    }

    fn drop_text(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        self.dropped_bytes += text.len() as u64;
        let breaks = text.matches('\n').count() as u64;
        let open = !text.ends_with('\n');
        // A line that began in an earlier chunk was counted there.
        self.dropped_lines += breaks + u64::from(open) - u64::from(self.inside_line);
        self.inside_line = open;
    }

    fn push_tail(&mut self, text: &str) {
        self.kept.push_str(text);
        let mut cut = 0;
        let mut lines = count_lines(&self.kept);
        while self.kept.len() - cut > self.limits.max_bytes || lines > self.limits.max_lines {
            match self.kept[cut..].find('\n').map(|newline| cut + newline + 1).filter(|next| *next < self.kept.len()) {
                Some(next) => {
                    cut = next;
                    lines -= 1;
                    self.dropped_lines += 1;
                }
                None => {
                    cut = ceil_char(&self.kept, self.kept.len() - self.limits.max_bytes.min(self.kept.len()));
                    break;
                }
            }
        }
        self.dropped_bytes += cut as u64;
        self.kept.drain(..cut);
    }
}

/// How many bytes at the beginning are whole characters; what is no UTF-8 at all counts as whole.
fn whole_characters(bytes: &[u8]) -> usize {
    let from = bytes.len().saturating_sub(3);
    let start = (from..bytes.len()).rev().find(|index| bytes[*index] >= 0xc0);
    match start.map(|start| (start, std::str::from_utf8(&bytes[start..]))) {
        Some((start, Err(error))) if error.error_len().is_none() => start,
        _ => bytes.len(),
    }
}

/// Behind the `n`th line, or the end.
fn nth_line_end(text: &str, n: usize) -> usize {
    if n == 0 {
        return 0;
    }
    text.match_indices('\n').nth(n - 1).map_or(text.len(), |(index, _)| index + 1)
}

fn count_lines(text: &str) -> usize {
    text.matches('\n').count() + usize::from(!text.is_empty() && !text.ends_with('\n'))
}

fn floor_char(text: &str, index: usize) -> usize {
    let mut index = index.min(text.len());
    while !text.is_char_boundary(index) {
        index -= 1;
    }
    index
}

fn ceil_char(text: &str, index: usize) -> usize {
    let mut index = index.min(text.len());
    while !text.is_char_boundary(index) {
        index += 1;
    }
    index
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(max_bytes: usize, max_lines: usize, retain: Retain) -> OutputLimits {
        OutputLimits { max_bytes, max_lines, retain }
    }

    /// The result must not depend on how the stream was cut into chunks.
    fn push(limits: OutputLimits, bytes: &[u8]) -> (String, (u64, u64)) {
        let mut whole = OutputBuffer::new(limits);
        whole.push(bytes);
        for size in [1, 2, 3, 7] {
            let mut cut = OutputBuffer::new(limits);
            bytes.chunks(size).for_each(|chunk| cut.push(chunk));
            assert_eq!((cut.text(), cut.dropped()), (whole.text(), whole.dropped()), "in chunks of {size}");
        }
        (whole.text(), whole.dropped())
    }

    #[test]
    fn s143_the_first_2000_of_2500_lines() {
        let lines: String = (1..=2_500).map(|n| format!("{n:04}\n")).collect();
        let (text, dropped) = push(OutputLimits::default(), lines.as_bytes());
        assert!(text.starts_with("0001\n") && text.ends_with("2000\n"));
        assert_eq!(dropped, (2_500, 500));
    }

    #[test]
    fn the_head_keeps_whole_lines_and_cuts_a_single_long_one() {
        assert_eq!(push(limits(8, 9, Retain::Head), b"abc\ndefgh\n"), ("abc\n".to_owned(), (6, 1)));
        assert_eq!(push(limits(4, 9, Retain::Head), "aäöü".as_bytes()).0, "aä");
        assert_eq!(push(limits(9, 9, Retain::Head), b"abc"), ("abc".to_owned(), (0, 0)));
    }

    #[test]
    fn the_tail_keeps_the_last_lines() {
        assert_eq!(push(limits(99, 2, Retain::Tail), b"a\nb\nc\nd"), ("c\nd".to_owned(), (4, 2)));
        assert_eq!(push(limits(6, 9, Retain::Tail), b"abc\ndefg\n"), ("defg\n".to_owned(), (4, 1)));
        assert_eq!(push(limits(3, 9, Retain::Tail), "aäöü".as_bytes()).0, "ü");
    }

    #[test]
    fn control_characters_go_and_split_characters_come_together() {
        assert_eq!(push(limits(99, 9, Retain::Head), b"a\x1b[1m\tb\r\n").0, "a[1m\tb\n");
        assert_eq!(push(limits(99, 9, Retain::Head), "🔑ok".as_bytes()).0, "🔑ok");
        assert_eq!(push(limits(99, 9, Retain::Head), b"\xffok").0, "\u{fffd}ok");
    }
}
