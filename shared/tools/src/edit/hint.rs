//! Where a text nearly stands. Pure.

/// The most of a file that a hint shows, in bytes.
const EXCERPT_BYTES_MAX: usize = 600;
/// The most lines that are compared: a file of equal lines has that many beginnings.
const STEPS_MAX: usize = 1_000_000;

/// Tells the place that is most like `part`, if there is one.
pub(super) fn near(text: &str, part: &str) -> Option<String> {
    let lines: Vec<&str> = text.lines().collect();
    let keys: Vec<String> = lines.iter().map(|line| key(line)).collect();
    let wanted: Vec<&str> = part.lines().skip_while(|line| line.trim().is_empty()).collect();
    let wanted_keys: Vec<String> = wanted.iter().map(|line| key(line)).collect();
    let first = wanted_keys.first()?;
    let (start, length) = longest_run(&keys, &wanted_keys);
    let number = start + 1;
    if length == 0 {
        let inside = keys.iter().position(|key| wanted.len() == 1 && key.contains(first.as_str()))?;
        let excerpt = excerpt(&lines[inside..=inside]);
        return Some(format!("line {} is the same but for blanks, quotes or dashes and reads:\n{excerpt}", inside + 1));
    }
    if length == wanted.len() {
        let excerpt = excerpt(&lines[start..start + length]);
        let which = if length == 1 { format!("line {number} is") } else { format!("lines {number} to {} are", start + length) };
        return Some(format!("{which} the same but for blanks, quotes or dashes and reads:\n{excerpt}"));
    }
    let which = if length == 1 { "its first line stands".to_owned() } else { format!("its first {length} lines stand") };
    let next = lines
        .get(start + length)
        .map_or_else(|| "there the file ends".to_owned(), |line| format!("line {} reads:\n{}", start + length + 1, excerpt(&[line])));
    let expected = excerpt(&wanted[length..=length]);
    Some(format!("{which} at line {number}, but then {next}\nwhere oldText has:\n{expected}"))
}

/// The beginning and length of the longest run of lines that begins like `wanted`.
fn longest_run(keys: &[String], wanted: &[String]) -> (usize, usize) {
    let mut best = (0, 0);
    let mut steps = 0;
    for start in 0..keys.len() {
        let run = keys[start..].iter().zip(wanted).take_while(|(key, wanted)| key == wanted).count();
        if run > best.1 {
            best = (start, run);
        }
        steps += run + 1;
        if steps > STEPS_MAX {
            break;
        }
    }
    best
}

/// A line without what is easily got wrong: blanks, quotes, dashes.
fn key(line: &str) -> String {
    let plain = |c: char| match c {
        '\u{2018}' | '\u{2019}' | '\u{201a}' | '\u{201b}' => '\'',
        '\u{201c}' | '\u{201d}' | '\u{201e}' | '\u{201f}' => '"',
        '\u{2010}'..='\u{2015}' | '\u{2212}' => '-',
        other => other,
    };
    line.chars().filter(|c| !c.is_whitespace() && *c != '\u{feff}').map(plain).collect()
}

fn excerpt(lines: &[&str]) -> String {
    let text = lines.join("\n");
    let end = text.floor_char_boundary(EXCERPT_BYTES_MAX);
    if end == text.len() { text } else { format!("{}...", &text[..end]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "fn main() {\n    let a = \u{201c}x\u{201d};\n    run(a);\n}\n";

    #[test]
    fn blanks_and_quotes() {
        let hint = near(FILE, "let a = \"x\";\nrun(a);").unwrap();
        assert!(hint.starts_with("lines 2 to 3 are the same but for blanks"), "{hint}");
        assert!(hint.ends_with("    let a = \u{201c}x\u{201d};\n    run(a);"), "{hint}");
        assert!(near(FILE, "run( a )").unwrap().starts_with("line 3 is the same"));
    }

    #[test]
    fn a_beginning_that_fits() {
        let hint = near(FILE, "    run(a);\n    stop();\n").unwrap();
        assert_eq!(hint, "its first line stands at line 3, but then line 4 reads:\n}\nwhere oldText has:\n    stop();");
        assert!(near(FILE, "run(a);\n}\nmore\n").unwrap().contains("there the file ends"));
    }

    #[test]
    fn nothing_alike() {
        assert_eq!(near(FILE, "something else"), None);
        assert_eq!(near(FILE, "\n \n"), None);
        assert_eq!(near("", "a"), None);
    }
}
