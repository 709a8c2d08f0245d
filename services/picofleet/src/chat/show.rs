//! Agent events as lines of text. A line is shown when it is whole, so that it never tears what is being typed.

use picofleet_harness::events::{AgentEvent, EventSnapshot, MessageChange, OutputChange};
use picofleet_session::message::{AssistantBlock, AssistantMessage, Message, TextOrBlocks, UserBlock};
use picofleet_session::{EntryId, EntryRecord, Json};

use crate::output::colors;
use crate::terminal;
use crate::tool_output::ToolOutput;
use crate::work::unanswered;

/// Longest line that waits for its end; a longer one is shown up to its last word.
const LINE_MAX: usize = 100;

/// How many of the newest entries show where a conversation was left.
const LAST_ENTRIES: usize = 6;

/// Shows a conversation.
pub(super) struct Show {
    color: bool,
    /// What is ready to be printed: whole lines.
    ready: String,
    /// The line that is not whole yet, and how it looks.
    open: String,
    style: Style,
    /// What was shown of the message that comes in: the bytes of each block. `None` where none comes in.
    coming: Option<Vec<usize>>,
    /// The output of each call that was shown.
    output: ToolOutput,
    /// The newest entry that was shown.
    newest: Option<EntryId>,
    /// What was typed here and is not to be repeated when it is placed.
    own: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    Plain,
    Dim,
    Bold,
}

impl Show {
    pub(super) fn new() -> Self {
        Self {
            color: colors(&std::io::stdout()),
            ready: String::new(),
            open: String::new(),
            style: Style::Plain,
            coming: None,
            output: ToolOutput::default(),
            newest: None,
            own: Vec::new(),
        }
    }

    /// What is ready to be printed.
    pub(super) fn take(&mut self) -> String {
        std::mem::take(&mut self.ready)
    }

    /// Text that was typed here.
    pub(super) fn typed(&mut self, text: &str) {
        self.own.push(text.to_owned());
    }

    /// Text that was typed here and refused.
    pub(super) fn refused(&mut self, text: &str) {
        if let Some(place) = self.own.iter().rposition(|own| own == text) {
            self.own.remove(place);
        }
    }

    /// A remark that is not the model's.
    pub(super) fn note(&mut self, text: &str) {
        self.line(Style::Dim, &format!("[{text}]"));
    }

    /// Text of the program itself.
    pub(super) fn text(&mut self, text: &str) {
        self.close();
        self.more(Style::Plain, text);
        self.close();
    }

    /// What a conversation is now, or the end of it: what was not shown before.
    pub(super) fn snapshot(&mut self, snapshot: &EventSnapshot) -> anyhow::Result<()> {
        let entries = snapshot.entries().map_err(anyhow::Error::msg)?;
        self.close();
        self.coming = None;
        let first = entries.len().saturating_sub(LAST_ENTRIES);
        let new = entries.iter().enumerate().filter(|(place, entry)| match self.newest {
            Some(newest) => entry.id > newest,
            None => *place >= first,
        });
        let new: Vec<&EntryRecord> = new.map(|(_, entry)| entry).collect();
        for entry in new {
            self.whole(entry);
        }
        Ok(())
    }

    /// Something that happened.
    pub(super) fn event(&mut self, event: &AgentEvent) -> anyhow::Result<()> {
        match event {
            AgentEvent::Snapshot(snapshot) => {
                self.note("some of what happened was skipped");
                self.snapshot(snapshot)?;
            }
            AgentEvent::MessageStart { message } => self.begun(message),
            AgentEvent::MessageUpdate { changes, .. } => changes.iter().for_each(|change| self.changed(change)),
            AgentEvent::MessageEnd { entry } => self.ended(entry),
            AgentEvent::ToolExecutionUpdate { tool_call_id, output: Some(output), .. } => {
                let whole = match output {
                    OutputChange::Set { set } => set.clone(),
                    OutputChange::Slide { trim_start, append } => {
                        let kept = behind_units(self.output.shown(tool_call_id), trim_start.unwrap_or_default());
                        format!("{kept}{}", append.as_deref().unwrap_or_default())
                    }
                };
                let new = self.output.more(tool_call_id, &whole);
                self.more(Style::Dim, &new);
            }
            AgentEvent::ToolExecutionEnd { tool_name, entry: None, .. } => self.note(&format!("{tool_name} ended without a result")),
            AgentEvent::AutoRetryStart { attempt, error_message, .. } => {
                self.note(&format!("attempt {attempt} failed: {error_message}; trying again"));
            }
            AgentEvent::DeferredPoll { .. } => self.note("the answer comes later"),
            AgentEvent::CompactionStart { reason, .. } => self.note(&format!("compacting the context ({reason})")),
            AgentEvent::CompactionEnd { .. } => self.note("the compaction is over"),
            AgentEvent::TaskFailed { task_id, kind, message } => self.note(&format!("task {task_id} ({kind}) failed: {message}")),
            AgentEvent::Submission { record } => {
                if let Some(why) = unanswered(record) {
                    self.note(&format!("not answered, {why}"));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn begun(&mut self, message: &Json) {
        // Every other message comes whole with its entry.
        if let Ok(Message::Assistant(message)) = message.to::<Message>() {
            self.coming = Some(Vec::new());
            self.rest(&message);
        }
    }

    fn changed(&mut self, change: &MessageChange) {
        match change {
            MessageChange::TextStart { content_index, block } => self.part(*content_index, Style::Plain, block.get("text")),
            MessageChange::ThinkingStart { content_index, block } => self.part(*content_index, Style::Dim, block.get("thinking")),
            MessageChange::TextDelta { content_index, delta } => self.delta(*content_index, Style::Plain, delta),
            MessageChange::ThinkingDelta { content_index, delta } => self.delta(*content_index, Style::Dim, delta),
            // Calls are shown when the message is whole; what else changes is in its entry.
            _ => {}
        }
    }

    fn part(&mut self, index: usize, style: Style, text: Option<&Json>) {
        self.close();
        self.delta(index, style, &text.and_then(Json::as_str).unwrap_or_default());
    }

    /// More of a block of the message that comes in.
    fn delta(&mut self, index: usize, style: Style, text: &str) {
        let coming = self.coming.get_or_insert_default();
        if coming.len() <= index {
            coming.resize(index + 1, 0);
        }
        coming[index] += text.len();
        self.more(style, text);
    }

    fn ended(&mut self, entry: &EntryRecord) {
        if self.coming.is_none() {
            return self.whole(entry);
        }
        self.newest = self.newest.max(Some(entry.id));
        for message in entry.model.iter().flatten() {
            if let Message::Assistant(message) = message {
                // The end of a message is told by its entry alone.
                self.rest(message);
                self.close();
                self.calls(message);
            }
        }
        self.coming = None;
    }

    /// What was not shown yet of the blocks of a message that comes in.
    fn rest(&mut self, message: &AssistantMessage) {
        for (index, block) in message.content.iter().enumerate() {
            let (text, style) = match block {
                AssistantBlock::Text(text) => (&text.text, Style::Plain),
                AssistantBlock::Thinking(thinking) => (&thinking.thinking, Style::Dim),
                AssistantBlock::ToolCall(_) => continue,
            };
            let shown = self.coming.iter().flatten().nth(index).copied().unwrap_or_default();
            if shown == 0 {
                // Each block on a line of its own.
                self.close();
            }
            if let Some(new) = text.get(shown..) {
                self.delta(index, style, new);
            }
        }
    }

    /// An entry of which nothing was shown yet.
    fn whole(&mut self, entry: &EntryRecord) {
        self.newest = self.newest.max(Some(entry.id));
        for message in entry.model.iter().flatten() {
            match message {
                Message::User(user) => self.said(&user_text(&user.content)),
                Message::Assistant(message) => {
                    self.coming = None;
                    self.rest(message);
                    self.coming = None;
                    self.close();
                    self.calls(message);
                }
                Message::ToolResult(result) => {
                    let text: Vec<&str> = result.content.iter().filter_map(text_of).collect();
                    let rest = self.output.end(&result.tool_call_id, &text.join("\n"), result.is_error);
                    if result.is_error {
                        self.line(Style::Bold, &format!("! {} failed", result.tool_name));
                    }
                    self.more(Style::Dim, &rest);
                    self.close();
                }
                Message::System(_) => {}
            }
        }
    }

    fn said(&mut self, text: &str) {
        if let Some(place) = self.own.iter().position(|own| own == text) {
            self.own.remove(place);
            return;
        }
        self.close();
        self.more(Style::Bold, text);
        self.close();
    }

    fn calls(&mut self, message: &AssistantMessage) {
        for block in &message.content {
            if let AssistantBlock::ToolCall(call) = block {
                self.line(Style::Bold, &format!("* {} {}", call.name, call.arguments));
            }
        }
    }

    fn line(&mut self, style: Style, text: &str) {
        self.close();
        self.push(style, &terminal::line(text));
    }

    /// More text: whole lines are ready, the rest waits.
    fn more(&mut self, style: Style, text: &str) {
        if style != self.style {
            self.close();
            self.style = style;
        }
        self.open.push_str(text);
        while let Some(end) = self.open.find('\n') {
            let line: String = self.open.drain(..=end).collect();
            self.push(style, &terminal::text(line.trim_end_matches(['\n', '\r'])));
        }
        if self.open.chars().count() > LINE_MAX
            && let Some(end) = self.open.rfind(' ')
        {
            let line: String = self.open.drain(..=end).collect();
            self.push(style, &terminal::text(line.trim_end()));
        }
    }

    /// The open line is whole.
    fn close(&mut self) {
        if !self.open.is_empty() {
            let line = std::mem::take(&mut self.open);
            self.push(self.style, &terminal::text(&line));
        }
    }

    fn push(&mut self, style: Style, line: &str) {
        match style {
            Style::Dim if self.color => self.ready.push_str(&format!("\x1b[2m{line}\x1b[0m\n")),
            Style::Bold if self.color => self.ready.push_str(&format!("\x1b[1m{line}\x1b[0m\n")),
            _ => self.ready.push_str(&format!("{line}\n")),
        }
    }
}

/// What is left of a text without its first UTF-16 units.
fn behind_units(text: &str, units: usize) -> &str {
    let mut gone = 0;
    let cut = text.char_indices().find(|(_, letter)| {
        let over = gone >= units;
        gone += letter.len_utf16();
        over
    });
    cut.map_or("", |(at, _)| text.get(at..).unwrap_or_default())
}

const fn text_of(block: &UserBlock) -> Option<&str> {
    match block {
        UserBlock::Text(text) => Some(text.text.as_str()),
        UserBlock::Image(_) => None,
    }
}

fn user_text(content: &TextOrBlocks<UserBlock>) -> String {
    match content {
        TextOrBlocks::Text(text) => text.clone(),
        TextOrBlocks::Blocks(blocks) => blocks.iter().filter_map(text_of).collect::<Vec<_>>().join("\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(text: &str, error: bool) -> EntryRecord {
        let text = Json::from(text);
        let entry = format!(
            r#"{{"id":9,"conversationId":1,"kind":"pi.tool-result","model":[{{"role":"toolResult","toolCallId":"c","toolName":"bash",
            "content":[{{"type":"text","text":{text}}}],"isError":{error},"timestamp":0}}]}}"#
        );
        Json::parse(entry.as_bytes()).unwrap().to().unwrap()
    }

    fn update(output: OutputChange) -> AgentEvent {
        AgentEvent::ToolExecutionUpdate {
            tool_call_id: "c".to_owned(),
            tool_name: "bash".to_owned(),
            output: Some(output),
            details: None,
            diagnostics: None,
        }
    }

    #[test]
    fn output_of_a_tool_is_shown_whole_and_once_whatever_came_before_its_end() {
        let mut show = Show { color: false, ..Show::new() };
        show.event(&update(OutputChange::Set { set: "abc".to_owned() })).unwrap();
        show.event(&AgentEvent::MessageEnd { entry: result("abc1\n2\n", false).into() }).unwrap();
        assert_eq!(show.take(), "abc1\n2\n");
        // Nothing came before the end.
        show.event(&AgentEvent::MessageEnd { entry: result("Created a.txt", false).into() }).unwrap();
        assert_eq!(show.take(), "Created a.txt\n");
        // The first line fell away meanwhile.
        show.event(&update(OutputChange::Set { set: "ä\n1\n".to_owned() })).unwrap();
        show.event(&update(OutputChange::Slide { trim_start: Some(2), append: Some("2\n".to_owned()) })).unwrap();
        show.event(&AgentEvent::MessageEnd { entry: result("1\n2\n3\n", true).into() }).unwrap();
        assert_eq!(show.take(), "ä\n1\n2\n! bash failed\n3\n");
    }
}
