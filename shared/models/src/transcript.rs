//! Replay of system messages: the system prompt, its sections and the tools at a point of a transcript.
//!
//! Functions over transcripts take what borrows as a [`Message`], so that callers need not copy shared messages.

use std::borrow::Borrow;
use std::sync::Arc;

use picofleet_delta::{Json, JsonError};
use picofleet_session::Millis;
use picofleet_session::message::{Message, SystemBlock, SystemMessage, TextOrBlocks, ToolDeclaration, ToolReference};
use serde::{Deserialize, Serialize};

use crate::js;

/// What a provider can take after the leading system message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ToolSupport {
    /// One list of tools for the whole request.
    None,
    /// More tools later on.
    Additions,
    /// Additions and removals.
    Changes,
}

/// Where the tools of a request go.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TranscriptTools {
    /// The tools at the top of the request.
    pub request_tools: Vec<ToolDeclaration>,
    /// How many system messages, from the start, have their tool changes in it; later ones are sent in place.
    pub folded_system_messages: usize,
}

/// The difference between two lists of tools, as a system message states it.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolStateChanges {
    /// New and changed tools, in the order of the current list.
    pub tools_added: Vec<ToolDeclaration>,
    /// Missing and changed tools, in the order of the previous list.
    pub tools_removed: Vec<ToolReference>,
}

/// What a caller asks a model, before it becomes one transcript.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Context {
    /// The system prompt.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub system_prompt: Option<String>,
    /// The messages.
    pub messages: Vec<Message>,
    /// The tools.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub tools: Option<Vec<ToolDeclaration>>,
}

/// Values by name in order. A name that is set again keeps its place; one that was removed and comes back goes last.
struct Ordered<T>(Vec<(String, T)>);

impl<T> Ordered<T> {
    fn set(&mut self, name: &str, value: T) {
        match self.0.iter_mut().find(|(own, _)| own == name) {
            Some((_, slot)) => *slot = value,
            None => self.0.push((name.to_owned(), value)),
        }
    }

    fn remove(&mut self, name: &str) {
        self.0.retain(|(own, _)| own != name);
    }

    fn into_values(self) -> Vec<T> {
        self.0.into_iter().map(|(_, value)| value).collect()
    }
}

/// The tools of one system message on those before it: its removals, then its additions.
fn replay_tools<'a>(tools: &mut Ordered<&'a ToolDeclaration>, message: &'a SystemMessage) {
    for removed in message.tools_removed.iter().flatten() {
        tools.remove(&removed.name);
    }
    for added in message.tools_added.iter().flatten() {
        tools.set(&added.name, added);
    }
}

fn system_messages<M: Borrow<Message>>(messages: &[M]) -> impl Iterator<Item = &SystemMessage> {
    messages.iter().filter_map(|message| match message.borrow() {
        Message::System(message) => Some(&**message),
        _ => None,
    })
}

fn tools_after<'a>(messages: impl Iterator<Item = &'a SystemMessage>) -> Vec<ToolDeclaration> {
    let mut tools = Ordered(Vec::new());
    messages.for_each(|message| replay_tools(&mut tools, message));
    tools.into_values().into_iter().cloned().collect()
}

/// The tools at the end of a transcript. A tool that is declared again without a removal keeps its place.
#[must_use]
pub fn get_current_tools<M: Borrow<Message>>(messages: &[M]) -> Vec<ToolDeclaration> {
    tools_after(system_messages(messages))
}

/// Every tool that a transcript ever declares, with its last definition, in the order of the first declarations.
#[must_use]
pub fn get_declared_tools<M: Borrow<Message>>(messages: &[M]) -> Vec<ToolDeclaration> {
    let mut tools = Ordered(Vec::new());
    for added in system_messages(messages).flat_map(|message| message.tools_added.iter().flatten()) {
        tools.set(&added.name, added);
    }
    tools.into_values().into_iter().cloned().collect()
}

/// All system messages of a transcript as one: the texts, the sections that stand, the current tools, the time of the
/// first. `None` when there is none.
#[must_use]
pub fn get_current_system_message<M: Borrow<Message>>(messages: &[M]) -> Option<SystemMessage> {
    let timestamp = system_messages(messages).next()?.timestamp;
    let mut sections = Ordered(Vec::new());
    for (name, text) in system_messages(messages).flat_map(section_entries) {
        if text.is_null() { sections.remove(name) } else { sections.set(name, text.clone()) }
    }
    let sections: Json = sections.0.into_iter().map(|(name, text)| (Arc::from(name), text)).collect();
    let tools = get_current_tools(messages);
    Some(SystemMessage {
        content: TextOrBlocks::Text(join_paragraphs(system_messages(messages).map(content_text))),
        sections: sections.as_object().is_some_and(|sections| !sections.is_empty()).then_some(sections),
        tools_added: (!tools.is_empty()).then_some(tools),
        tools_removed: None,
        timestamp,
    })
}

/// The system prompt at the end of a transcript; `""` when it has no system message.
#[must_use]
pub fn get_current_system_prompt<M: Borrow<Message>>(messages: &[M]) -> String {
    get_current_system_message(messages).map(|message| get_system_message_text(&message)).unwrap_or_default()
}

/// The content and the sections of a system message, as the leading one is sent.
#[must_use]
pub fn get_system_message_text(message: &SystemMessage) -> String {
    let sections = section_entries(message).filter_map(|(_, text)| text.as_str().map(std::borrow::Cow::into_owned));
    join_paragraphs(std::iter::once(content_text(message)).chain(sections))
}

/// A later system message as it is sent in place: its content, then what it does to each section.
#[must_use]
pub fn render_system_message_update(message: &SystemMessage) -> String {
    let sections = section_entries(message).map(|(name, text)| match text.as_str() {
        Some(text) => format!("Updated system prompt section \"{name}\":\n\n{text}"),
        None => format!("Removed system prompt section \"{name}\"."),
    });
    join_paragraphs(std::iter::once(content_text(message)).chain(sections))
}

fn section_entries(message: &SystemMessage) -> impl Iterator<Item = (&str, &Json)> {
    message.sections.iter().filter_map(Json::as_object).flat_map(js::entries)
}

fn content_text(message: &SystemMessage) -> String {
    match &message.content {
        TextOrBlocks::Text(text) => text.clone(),
        TextOrBlocks::Blocks(blocks) => join_lines(blocks),
    }
}

fn join_lines(blocks: &[SystemBlock]) -> String {
    blocks.iter().map(|SystemBlock::Text(text)| text.text.as_str()).collect::<Vec<_>>().join("\n")
}

/// The parts that are not empty, with blank lines between.
fn join_paragraphs(parts: impl Iterator<Item = String>) -> String {
    parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n\n")
}

/// A tool's declaration out of a value that may have more members.
///
/// # Errors
///
/// `Data` when a member is missing or of another type.
pub fn to_tool_declaration(tool: &Json) -> Result<ToolDeclaration, JsonError> {
    tool.to()
}

/// True when both have the same JSON text, so the order of keys in `parameters` counts and `constrainedSampling: false`
/// differs from its absence.
#[must_use]
pub fn declarations_equal(left: &ToolDeclaration, right: &ToolDeclaration) -> bool {
    let text = |value: &Json| js::stringify(value);
    left.name == right.name
        && left.description == right.description
        && text(&left.parameters) == text(&right.parameters)
        && left.constrained_sampling.as_ref().map(text) == right.constrained_sampling.as_ref().map(text)
}

/// What leads from one list of tools to another. A changed tool is removed and added.
#[must_use]
pub fn get_tool_state_changes(previous: &[ToolDeclaration], current: &[ToolDeclaration]) -> ToolStateChanges {
    let same_in = |list: &[ToolDeclaration], tool: &ToolDeclaration| {
        list.iter().rfind(|other| other.name == tool.name).is_some_and(|other| declarations_equal(tool, other))
    };
    let added = current.iter().filter(|tool| !same_in(previous, tool)).cloned().collect();
    let removed = previous.iter().filter(|tool| !same_in(current, tool)).map(|tool| ToolReference { name: tool.name.clone() }).collect();
    ToolStateChanges { tools_added: added, tools_removed: removed }
}

/// True when a system message removes a tool, or declares one that is there already.
#[must_use]
pub fn has_non_additive_tool_changes<M: Borrow<Message>>(messages: &[M]) -> bool {
    last_non_additive(messages) > 0
}

/// How many system messages there are up to the last one that removes a tool or declares one again; 0 for no such one.
fn last_non_additive<M: Borrow<Message>>(messages: &[M]) -> usize {
    let mut tools = Ordered(Vec::new());
    let mut last = 0;
    for (index, message) in system_messages(messages).enumerate() {
        let removes = message.tools_removed.as_ref().is_some_and(|removed| !removed.is_empty());
        let before = tools.0.len();
        replay_tools(&mut tools, message);
        let added = message.tools_added.as_ref().map_or(0, Vec::len);
        if removes || tools.0.len() < before + added {
            last = index + 1;
        }
    }
    last
}

/// 1 when the transcript opens with a system message, else 0.
fn leading_count<M: Borrow<Message>>(messages: &[M]) -> usize {
    usize::from(messages.first().is_some_and(|message| matches!(message.borrow(), Message::System(_))))
}

/// Splits the tools of a transcript between the top of the request and the places where they change.
///
/// Without support all of them go to the top; with changes none do. With additions only, the top has the state after the
/// last message that removes or redeclares a tool, at least after the leading one.
#[must_use]
pub fn resolve_transcript_tools<M: Borrow<Message>>(messages: &[M], support: ToolSupport) -> TranscriptTools {
    let folded_system_messages = match support {
        ToolSupport::None => system_messages(messages).count(),
        ToolSupport::Changes => 0,
        ToolSupport::Additions => last_non_additive(messages).max(leading_count(messages)),
    };
    let request_tools = tools_after(system_messages(messages).take(folded_system_messages));
    TranscriptTools { request_tools, folded_system_messages }
}

/// The transcript with all system messages as one in front, for providers that take none later on.
#[must_use]
pub fn collapse_system_messages<M: Borrow<Message>>(messages: &[M]) -> Vec<Message> {
    let system = get_current_system_message(messages).map(Message::from);
    let others = messages.iter().map(Borrow::borrow).filter(|message| !matches!(message, Message::System(_))).cloned();
    system.into_iter().chain(others).collect()
}

/// The transcript of a context: a system prompt and tools become a leading system message of time 0.
#[must_use]
pub fn normalize_context(context: Context) -> Vec<Message> {
    let prompt = context.system_prompt.unwrap_or_default();
    let tools = context.tools.filter(|tools| !tools.is_empty());
    let mut messages = context.messages;
    if !prompt.is_empty() || tools.is_some() {
        let system = SystemMessage {
            content: TextOrBlocks::Text(prompt),
            sections: None,
            tools_added: tools,
            tools_removed: None,
            timestamp: Millis(0),
        };
        messages.insert(0, Message::from(system));
    }
    messages
}
