//! Shows a conversation on a terminal as its frames come.

use std::io::Write as _;

use anyhow::Context as _;
use picofleet_harness::frame::Frame;
use picofleet_harness::live::{LIVE, LiveState, SlotStatus, ToolSlot};
use picofleet_harness::usage::{USAGE, UsageState, add};
use picofleet_harness::view::Mount;
use picofleet_session::message::{AssistantBlock, AssistantMessage, Message, Usage, UserBlock};
use picofleet_session::{ConversationId, EntryRecord, Json, ROOT_CONVERSATION_ID, SessionId};

use crate::output::colors;
use crate::terminal;
use crate::tool_output::ToolOutput;

/// How much of a message was shown: the bytes of each block.
#[derive(Default)]
struct Shown(Vec<usize>);

/// Shows text, thinking, calls with their output, and at the end what it cost.
pub(super) struct Printer {
    color: bool,
    /// Standard error shows colors.
    remark_color: bool,
    shown: Shown,
    /// The output of each call that was shown.
    output: ToolOutput,
    /// The cursor is behind text and not at the begin of a line.
    open_line: bool,
    before: Option<UsageState>,
    /// Why the last answer failed.
    failure: Option<String>,
}

/// Whether nothing runs in a conversation.
pub(super) fn idle(documents: &Mount) -> bool {
    documents.get(LIVE.kind).is_none_or(|live| live.get("run").is_none())
}

impl Printer {
    /// What stands in the documents now is not part of what the run costs.
    pub(super) fn new(documents: &Mount) -> Self {
        Self {
            color: colors(&std::io::stdout()),
            remark_color: colors(&std::io::stderr()),
            shown: Shown::default(),
            output: ToolOutput::default(),
            open_line: false,
            before: usage(documents),
            failure: None,
        }
    }

    pub(super) fn frame(&mut self, frame: &Frame, documents: &Mount) -> anyhow::Result<()> {
        let live: LiveState = documents.get(LIVE.kind).and_then(|live| live.to().ok()).unwrap_or_default();
        if let Some(message) = live.generation.as_ref().and_then(|generation| generation.message.as_ref()) {
            self.partial(message)?;
        }
        for entry in &frame.entries {
            self.entry(entry)?;
        }
        if let Some(retry) = live.generation.as_ref().and_then(|generation| generation.retry.as_ref()) {
            self.note(&format!("{}; trying again", retry.error))?;
        }
        for slot in live.tools.iter().flatten() {
            self.slot(slot)?;
        }
        Ok(())
    }

    /// What this run cost, and the session to go on with.
    pub(super) fn end(&mut self, documents: &Mount, session: SessionId, conversation: ConversationId) -> anyhow::Result<()> {
        self.close_line()?;
        let total = |state: Option<UsageState>| {
            let mut sum = Usage::default();
            state.into_iter().flat_map(|state| state.models.into_values()).for_each(|usage| add(&mut sum, &usage));
            sum
        };
        let (before, after) = (total(self.before.take()), total(usage(documents)));
        let (input, output) = (after.input.saturating_sub(before.input), after.output.saturating_sub(before.output));
        let cost = (after.cost.total - before.cost.total).max(0.0);
        let fork = if conversation == ROOT_CONVERSATION_ID { String::new() } else { format!(", conversation {conversation}") };
        self.note(&format!("{input} tokens in, {output} out, ${cost:.4}; session {session}{fork}"))
    }

    /// Why the last answer that was shown failed.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// A remark that is not the model's: to standard error, so that standard output has what was said and done and nothing else.
    pub(super) fn note(&mut self, text: &str) -> anyhow::Result<()> {
        self.close_line()?;
        let text = format!("[{}]\n", terminal::line(text));
        let text = if self.remark_color { format!("\x1b[2m{text}\x1b[0m") } else { text };
        std::io::stderr().write_all(text.as_bytes()).context("write to standard error")
    }

    fn partial(&mut self, message: &Json) -> anyhow::Result<()> {
        match message.to::<Message>() {
            Ok(Message::Assistant(message)) => self.message(&message),
            // A part that is no message yet.
            _ => Ok(()),
        }
    }

    fn message(&mut self, message: &AssistantMessage) -> anyhow::Result<()> {
        for (index, block) in message.content.iter().enumerate() {
            if self.shown.0.len() <= index {
                self.shown.0.resize(index + 1, 0);
            }
            let (text, thinking) = match block {
                AssistantBlock::Text(text) => (&text.text, false),
                AssistantBlock::Thinking(thinking) => (&thinking.thinking, true),
                AssistantBlock::ToolCall(_) => continue,
            };
            let Some(new) = text.get(self.shown.0[index]..).filter(|new| !new.is_empty()) else { continue };
            if self.shown.0[index] == 0 {
                // Each block on a line of its own.
                self.close_line()?;
            }
            self.shown.0[index] = text.len();
            let new = terminal::text(new);
            self.write(&if thinking { self.dim(&new) } else { new })?;
            self.open_line = !text.ends_with('\n');
        }
        Ok(())
    }

    fn entry(&mut self, entry: &EntryRecord) -> anyhow::Result<()> {
        match entry.model.as_ref().and_then(|model| model.first()) {
            Some(Message::Assistant(message)) => {
                self.message(message)?;
                self.failure.clone_from(&message.error_message);
                self.shown = Shown::default();
                self.close_line()?;
                for block in &message.content {
                    if let AssistantBlock::ToolCall(call) = block {
                        let (name, arguments) = (terminal::line(&call.name), terminal::line(&call.arguments.to_string()));
                        self.write(&format!("{} {} {arguments}\n", self.bold("*"), self.bold(&name)))?;
                    }
                }
            }
            Some(Message::ToolResult(result)) => {
                let text = result
                    .content
                    .iter()
                    .filter_map(|block| if let UserBlock::Text(text) = block { Some(text.text.as_str()) } else { None });
                let text: Vec<&str> = text.collect();
                let rest = self.output.end(&result.tool_call_id, &text.join("\n"), result.is_error);
                self.output_text(&rest)?;
                self.close_line()?;
            }
            _ => {}
        }
        Ok(())
    }

    fn slot(&mut self, slot: &ToolSlot) -> anyhow::Result<()> {
        if slot.status != SlotStatus::Running {
            return Ok(());
        }
        let new = self.output.more(&slot.call_id, slot.output.as_deref().unwrap_or_default());
        self.output_text(&new)
    }

    fn output_text(&mut self, text: &str) -> anyhow::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        self.open_line = !text.ends_with('\n');
        self.write(&self.dim(&terminal::text(text)))
    }

    fn close_line(&mut self) -> anyhow::Result<()> {
        if std::mem::take(&mut self.open_line) { self.write("\n") } else { Ok(()) }
    }

    fn dim(&self, text: &str) -> String {
        if self.color { format!("\x1b[2m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn bold(&self, text: &str) -> String {
        if self.color { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn write(&self, text: &str) -> anyhow::Result<()> {
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("write to the terminal")
    }
}

fn usage(documents: &Mount) -> Option<UsageState> {
    documents.get(USAGE.kind).and_then(|usage| usage.to().ok())
}
