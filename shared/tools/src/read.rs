//! The tool `read`.

use std::borrow::Cow;

use futures::future::BoxFuture;
use picofleet_harness::effects::OutputLimits;
use picofleet_harness::live::{Severity, ToolDiagnostic};
use picofleet_harness::tool::Replay;
use picofleet_harness::tools::{EnvError, Tool, ToolApi, ToolError, ToolResult, ToolSpec, Unsuitable};
use picofleet_session::Json;
use serde::Deserialize;

use crate::FILE_BYTES_MAX;
use crate::arguments::{self, counted, grouped};

const DESCRIPTION: &str = "Read a text file of the workspace. The text comes as it is, without line numbers and with LF as line end; \
at most 2,000 lines or 50 KiB at once. A remark tells which lines they are where that is not the whole file: go on with offset.";

/// `read {path, offset?, limit?}`: lines of a text file. Safe to repeat.
pub struct Read {
    spec: ToolSpec,
}

#[derive(Deserialize)]
struct Arguments {
    path: String,
    offset: Option<usize>,
    limit: Option<usize>,
}

impl Read {
    /// The tool.
    #[must_use]
    pub fn new() -> Self {
        let lines = |about: &str| Json::build_object().with("type", "integer").with("minimum", 1).with("description", about).build();
        let properties = Json::build_object()
            .with("path", arguments::property("string", "The file: relative to the workspace, or absolute and inside it."))
            .with("offset", lines("The first line, counted from 1."))
            .with("limit", lines("The most lines."))
            .build();
        let mut spec = ToolSpec::new("read", DESCRIPTION, arguments::schema(properties, &["path"]));
        spec.replay = Replay::Safe;
        Self { spec }
    }
}

impl Default for Read {
    fn default() -> Self {
        Self::new()
    }
}

impl Tool for Read {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn prepare_arguments(&self, arguments: Json) -> Result<Json, ToolError> {
        Ok(arguments::with_path(arguments))
    }

    fn execute<'a>(&'a self, arguments: Json, api: ToolApi) -> BoxFuture<'a, Result<ToolResult, ToolError>> {
        Box::pin(async move {
            let Arguments { path, offset, limit } = arguments::read(&arguments)?;
            let content = match api.env()?.read(&path, FILE_BYTES_MAX).await {
                Ok(content) => content,
                Err(EnvError::Unsuitable { path, kind, why }) => return Err(ToolError::new(format!("{path} {why}{}", advice(kind)))),
                Err(error) => return Err(error.into()),
            };
            let limits = self.spec.output;
            let show = move || Shown::of(&path, &content, offset.unwrap_or(1), limit.unwrap_or(usize::MAX), limits);
            let shown = tokio::task::spawn_blocking(show).await;
            let Shown { text, remarks } = shown.map_err(|error| ToolError::new(format!("reading broke off: {error}")))??;
            let result =
                if text.is_empty() { ToolResult { content: Some(Vec::new()), ..ToolResult::default() } } else { ToolResult::text(text) };
            Ok(ToolResult { diagnostics: remarks, ..result })
        })
    }
}

const fn advice(kind: Unsuitable) -> &'static str {
    match kind {
        Unsuitable::Directory => "; list it with bash",
        Unsuitable::TooLarge => "; look at a part of it with bash: head, tail, sed -n or grep",
        _ => "",
    }
}

/// What the model sees of a file.
#[derive(Debug, PartialEq)]
struct Shown {
    text: String,
    remarks: Vec<ToolDiagnostic>,
}

impl Shown {
    /// The lines from `first` on, whole ones as far as the limits go.
    fn of(path: &str, content: &[u8], first: usize, most: usize, limits: OutputLimits) -> Result<Self, ToolError> {
        if content.contains(&0) {
            let size = grouped(content.len() as u64);
            return Err(ToolError::new(format!("{path} is no text: it has zero bytes among its {size}; look at it with bash")));
        }
        let mut remarks = Vec::new();
        let mut remark = |severity, code: &str, message| remarks.push(ToolDiagnostic { severity, message, code: Some(code.to_owned()) });
        let content = content.strip_prefix("\u{feff}".as_bytes()).unwrap_or(content);
        let text = String::from_utf8_lossy(content);
        if matches!(text, Cow::Owned(_)) {
            remark(
                Severity::Warn,
                "encoding",
                format!("{path} is no UTF-8; what could not be read is shown as \u{fffd}, and edit refuses it"),
            );
        }
        if text.contains("\r\n") {
            remark(Severity::Info, "crlf", format!("{path} has CRLF line ends; edit takes LF and keeps them"));
        }
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        if lines.is_empty() {
            remark(Severity::Info, "empty", format!("{path} is empty"));
            return Ok(Self { text: String::new(), remarks });
        }
        if first > lines.len() {
            return Err(ToolError::new(format!("{path} has {}; there is no line {first}", counted(lines.len(), "line"))));
        }
        let mut shown = String::new();
        let mut taken = 0;
        for line in lines[first - 1..].iter().take(most.min(limits.max_lines)) {
            let line = line.strip_suffix("\r\n").map_or(Cow::Borrowed(*line), |line| Cow::Owned(format!("{line}\n")));
            if shown.len() + line.len() > limits.max_bytes {
                if taken == 0 {
                    shown.push_str(&line[..line.floor_char_boundary(limits.max_bytes)]);
                    let (whole, part) = (grouped(line.len() as u64), grouped(shown.len() as u64));
                    let message =
                        format!("line {first} has {whole} bytes, of which the first {part} are shown; see the rest with bash: cut -c");
                    remark(Severity::Warn, "long_line", message);
                    taken = 1;
                }
                break;
            }
            shown.push_str(&line);
            taken += 1;
        }
        if taken < lines.len() {
            let last = first + taken - 1;
            let all = grouped(lines.len() as u64);
            remark(Severity::Info, "part", format!("lines {first} to {last} of {all} are shown"));
        }
        Ok(Self { text: shown, remarks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(content: &[u8], first: usize, most: usize) -> (String, Vec<String>) {
        let limits = OutputLimits { max_bytes: 10, max_lines: 3, ..OutputLimits::default() };
        let shown = Shown::of("f", content, first, most, limits).unwrap();
        (shown.text, shown.remarks.into_iter().map(|remark| remark.message).collect())
    }

    #[test]
    fn whole_lines_within_every_limit() {
        assert_eq!(shown(b"a\nb\nc", 1, 9), ("a\nb\nc".to_owned(), vec![]));
        assert_eq!(shown(b"a\nb\nc\nd\n", 1, 9), ("a\nb\nc\n".to_owned(), vec!["lines 1 to 3 of 4 are shown".to_owned()]));
        assert_eq!(shown(b"a\nb\nc\nd\n", 2, 1), ("b\n".to_owned(), vec!["lines 2 to 2 of 4 are shown".to_owned()]));
        assert_eq!(shown(b"aaaa\nbbbb\ncccc\n", 1, 9).0, "aaaa\nbbbb\n");
        assert_eq!(shown(b"", 1, 9), (String::new(), vec!["f is empty".to_owned()]));
    }

    #[test]
    fn a_line_beyond_the_limit_is_cut_on_a_character() {
        let (text, remarks) = shown("aaaaaaaaaö\nb".as_bytes(), 1, 9);
        assert_eq!(text, "aaaaaaaaa");
        assert!(remarks[0].contains("line 1 has 12 bytes, of which the first 9"), "{remarks:?}");
        assert_eq!(remarks[1], "lines 1 to 1 of 2 are shown");
    }

    #[test]
    fn line_ends_and_marks_are_not_shown_and_told() {
        let (text, remarks) = shown("\u{feff}a\r\nb\rc\r\n".as_bytes(), 1, 9);
        assert_eq!(text, "a\nb\rc\n");
        assert_eq!(remarks, ["f has CRLF line ends; edit takes LF and keeps them"]);
        assert_eq!(shown(b"a\xff\n", 1, 9).0, "a\u{fffd}\n");
    }

    #[test]
    fn beyond_the_end_and_no_text_are_errors() {
        let of = |content: &[u8], first| Shown::of("f", content, first, 9, OutputLimits::default()).unwrap_err().0;
        assert_eq!(of(b"a\nb\n", 3), "f has 2 lines; there is no line 3");
        assert_eq!(of(b"a\0b", 1), "f is no text: it has zero bytes among its 3; look at it with bash");
    }
}
