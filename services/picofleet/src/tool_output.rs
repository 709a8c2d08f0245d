//! What of the output of calls was shown, so that nothing is shown twice.

use std::collections::HashMap;

/// Most lines that are shown of a result that did not come piece by piece, such as a file that was read.
const RESULT_LINES: usize = 20;

/// The output of the calls at work, as far as it was shown.
#[derive(Default)]
pub(crate) struct ToolOutput(HashMap<String, String>);

impl ToolOutput {
    /// What is new in the running output of a call.
    pub(crate) fn more(&mut self, call: &str, output: &str) -> String {
        let shown = self.0.entry(call.to_owned()).or_default();
        let new = behind(shown, output).to_owned();
        output.clone_into(shown);
        new
    }

    /// The running output of a call as it was shown.
    pub(crate) fn shown(&self, call: &str) -> &str {
        self.0.get(call).map_or("", String::as_str)
    }

    /// What is new in the result of a call, which is over then. The result of a call that showed nothing may be any text; unless it is an
    /// error, its first lines do.
    pub(crate) fn end(&mut self, call: &str, result: &str, error: bool) -> String {
        let shown = self.0.remove(call).unwrap_or_default();
        let new = behind(&shown, result);
        let lines = new.lines().count();
        if error || !shown.is_empty() || lines <= RESULT_LINES {
            return new.to_owned();
        }
        let first: String = new.split_inclusive('\n').take(RESULT_LINES).collect();
        format!("{first}... {} more lines\n", lines - RESULT_LINES)
    }
}

/// What of a text comes behind what was shown. The begin of what was shown may be gone: of long output the end is kept.
fn behind<'a>(shown: &str, text: &'a str) -> &'a str {
    // Output that is shown ends with its last line; a result may lack that line's end.
    if let Some(rest) = text.strip_prefix(shown).or_else(|| text.strip_prefix(shown.trim_end())) {
        return rest;
    }
    let starts = shown.match_indices('\n').map(|(at, _)| at + 1).filter(|start| *start < shown.len());
    starts.filter_map(|start| text.strip_prefix(&shown[start..])).next().unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_output_is_shown_once() {
        let mut output = ToolOutput::default();
        assert_eq!(output.more("a", "one\n"), "one\n");
        assert_eq!(output.more("b", "other\n"), "other\n");
        assert_eq!(output.more("a", "one\ntwo\n"), "two\n");
        assert_eq!(output.more("a", "one\ntwo\n"), "");
        // The first line was dropped.
        assert_eq!(output.more("a", "two\nthree\n"), "three\n");
        assert_eq!(output.end("a", "two\nthree\nfour", false), "four");
        assert_eq!(output.end("b", "other", true), "");
    }

    #[test]
    fn a_result_that_was_not_running_output_is_shown_as_far_as_it_is_short() {
        let mut output = ToolOutput::default();
        let long: String = (0..30).map(|line| format!("{line}\n")).collect();
        let shown = output.end("a", &long, false);
        assert!(shown.ends_with("\n19\n... 10 more lines\n"), "{shown}");
        assert_eq!(output.end("a", &long, true), long);
        assert_eq!(output.end("a", "short", false), "short");
    }
}
