//! One record of a session.

use anyhow::{Context as _, bail};
use picofleet_harness::inspection::TaskView;
use picofleet_session::storage::SessionReader;
use picofleet_session::{Id, Json, Point, TaskRecord, TaskState};
use serde::Serialize;

use super::view::Live;
use crate::failure::Failure;
use crate::output::{self, Format};
use crate::terminal;

/// A record with what is known about it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown {
    r#type: &'static str,
    /// The sequence of the commit that made an entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    seq: Option<i64>,
    /// Where a live task is.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<TaskView>,
    /// The same in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    record: Json,
}

impl Shown {
    fn new(r#type: &'static str, record: &impl Serialize) -> anyhow::Result<Self> {
        let record = Json::from_serde_envelope(record).context("write as JSON")?;
        Ok(Self { r#type, seq: None, state: None, why: None, record })
    }

    fn text(&self, number: i64) -> String {
        let mut text = format!("{}\n", output::bold(&format!("{} {number}", self.r#type)));
        if let Some(seq) = self.seq {
            text.push_str(&format!("made by commit {seq}\n"));
        }
        if let Some(why) = &self.why {
            text.push_str(&format!("{}\n", terminal::line(why)));
        }
        indented(&self.record, &mut text);
        text.push('\n');
        text
    }
}

pub(super) async fn show(reader: &dyn SessionReader, live: &Live, number: i64, format: Format) -> anyhow::Result<()> {
    let Some(shown) = find(reader, live, number).await? else {
        bail!(Failure::Usage(format!(
            "session {} has no record {number}; `picofleet inspect {}` shows its work",
            reader.id(),
            reader.id()
        )));
    };
    match format {
        Format::Json => output::json(&shown),
        Format::Table => output::data(&shown.text(number)),
    }
}

/// The record with this number: all kinds share one counter.
async fn find(reader: &dyn SessionReader, live: &Live, number: i64) -> anyhow::Result<Option<Shown>> {
    let bad = |_| Failure::Usage(format!("{number} is no number of a record; they begin with 1"));
    if let Some((entry, seq)) = reader.entry(None, Id::new(number).map_err(bad)?).await? {
        return Ok(Some(Shown { seq: Some(seq.0), ..Shown::new("entry", &entry)? }));
    }
    if let Some(task) = reader.task(Id::new(number).map_err(bad)?).await? {
        return task_shown(live, &task).map(Some);
    }
    if let Some(conversation) = reader.conversation(Id::new(number).map_err(bad)?).await? {
        return Shown::new("conversation", &conversation).map(Some);
    }
    if let Some(submission) = reader.submission(Id::new(number).map_err(bad)?).await? {
        return Shown::new("submission", &submission).map(Some);
    }
    let document = reader.document(Id::new(number).map_err(bad)?, Point::Current).await?;
    document.map(|document| Shown::new("document", &document)).transpose()
}

fn task_shown(live: &Live, task: &TaskRecord) -> anyhow::Result<Shown> {
    let shown = Shown::new("task", task)?;
    Ok(match &task.state {
        TaskState::Terminal { outcome } => Shown { why: Some(format!("over: {}", super::view::outcome_word(outcome))), ..shown },
        _ => Shown { state: Some(live.view(task)), why: Some(live.why(task)), ..shown },
    })
}

/// Where a value is written next.
enum Piece<'a> {
    Value(&'a Json, usize),
    Text(String),
}

/// JSON in lines. Without recursion, as deep as stored values are.
fn indented(json: &Json, to: &mut String) {
    let mut pieces = vec![Piece::Value(json, 0)];
    while let Some(piece) = pieces.pop() {
        match piece {
            Piece::Text(text) => to.push_str(&text),
            Piece::Value(value, depth) => {
                let inside = "  ".repeat(depth + 1);
                let mut next = Vec::new();
                if let Some(object) = value.as_object().filter(|object| object.iter().next().is_some()) {
                    for (key, member) in object.iter() {
                        let open = if next.is_empty() { "{" } else { "," };
                        next.push(Piece::Text(format!("{open}\n{inside}{}: ", terminal::json(&Json::from(key).to_string()))));
                        next.push(Piece::Value(member, depth + 1));
                    }
                    next.push(Piece::Text(format!("\n{}}}", "  ".repeat(depth))));
                } else if let Some(array) = value.as_array().filter(|array| !array.is_empty()) {
                    for item in array.iter() {
                        next.push(Piece::Text(format!("{}\n{inside}", if next.is_empty() { "[" } else { "," })));
                        next.push(Piece::Value(item, depth + 1));
                    }
                    next.push(Piece::Text(format!("\n{}]", "  ".repeat(depth))));
                } else {
                    next.push(Piece::Text(terminal::json(&value.to_string())));
                }
                pieces.extend(next.into_iter().rev());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_shown_in_lines() {
        let json = Json::parse(r#"{"a":[1,{"b":"x\u001by"}],"c":{},"d":[]}"#.as_bytes()).unwrap();
        let mut text = String::new();
        indented(&json, &mut text);
        let expected = "{\n  \"a\": [\n    1,\n    {\n      \"b\": \"x\\u001by\"\n    }\n  ],\n  \"c\": {},\n  \"d\": []\n}";
        assert_eq!(text, expected);
        assert_eq!(Json::parse(text.as_bytes()).unwrap(), json);
    }
}
