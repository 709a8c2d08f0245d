//! Messages as the API takes them.

use std::collections::HashSet;
use std::mem;

use picofleet_delta::Json;
use picofleet_session::message::{
    AssistantBlock, ImageContent, Message, SystemMessage, TextOrBlocks, ThinkingContent, ToolResultMessage, UserBlock, UserMessage,
};

use super::tools::Tools;
use crate::js;
use crate::transcript::render_system_message_update;

/// Stands before images of a tool result that has no text.
const SEE_IMAGE: &str = "(see attached image)";

/// Stands for the images of a failed result, which may hold text only.
const IMAGE_AFTER_RESULTS: &str = "(image attached after the tool results)";

/// Most UTF-16 units of a tool call's id.
const CALL_ID_MAX: usize = 64;

/// What a request says, one message after the other.
pub(super) struct Conversation<'a> {
    /// Thinking without a signature stays thinking, else it becomes text.
    pub(super) empty_signature: bool,
    /// Defines tools that are added later on; `None` when the top of the request has all of them.
    pub(super) tools_in_place: Option<&'a Tools<'a>>,
    /// Marks the end of what the server shall keep.
    pub(super) cache_control: Option<&'a Json>,
}

enum Content {
    Text(String),
    Blocks(Vec<Json>),
}

struct WireMessage {
    role: &'static str,
    content: Content,
}

impl WireMessage {
    fn blocks(role: &'static str, blocks: Vec<Json>) -> Self {
        Self { role, content: Content::Blocks(blocks) }
    }
}

/// The id of another provider's call in the form that the API takes.
pub(super) fn call_id(id: &str) -> String {
    let allowed = |unit: u16| u8::try_from(unit).ok().filter(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
    id.encode_utf16().take(CALL_ID_MAX).map(|unit| allowed(unit).map_or('_', char::from)).collect()
}

impl Conversation<'_> {
    /// The `messages` of a request. A system message is held back until the next answer or the end, so that it stands
    /// neither between a call and its result nor before a user message; an answer of which nothing is left is no answer.
    ///
    /// # Errors
    ///
    /// A tool that is added in place cannot be sent as it demands.
    pub(super) fn convert(&self, messages: &[Message]) -> Result<Json, String> {
        let mut out = Vec::new();
        let mut held_back = Vec::new();
        for (index, message) in messages.iter().enumerate() {
            match message {
                Message::System(system) => held_back.extend(self.system(system)?),
                Message::User(user) => out.extend(convert_user(user)),
                Message::Assistant(answer) => {
                    let blocks: Vec<Json> = answer.content.iter().filter_map(|block| self.answer_block(block)).collect();
                    if !blocks.is_empty() {
                        out.append(&mut held_back);
                        out.push(WireMessage::blocks("assistant", blocks));
                    }
                }
                Message::ToolResult(_) if index > 0 && is_result(&messages[index - 1]) => {}
                Message::ToolResult(_) => out.push(convert_results(&messages[index..])),
            }
        }
        out.append(&mut held_back);
        if let (Some(cache_control), Some(last)) = (self.cache_control, out.last_mut()) {
            mark_cached(last, cache_control);
        }
        Ok(out.into_iter().map(WireMessage::into_json).collect())
    }

    fn system(&self, message: &SystemMessage) -> Result<Option<WireMessage>, String> {
        let text = render_system_message_update(message);
        let mut blocks = Vec::new();
        if !text.is_empty() {
            blocks.push(text_block(&text));
        }
        if let Some(tools) = self.tools_in_place {
            let added = message.tools_added.as_deref().unwrap_or_default();
            let redefined: HashSet<&str> = added.iter().map(|tool| tool.name.as_str()).collect();
            let removed = message.tools_removed.iter().flatten().filter(|tool| !redefined.contains(tool.name.as_str()));
            blocks.extend(removed.map(|tool| tool_change("tool_removal", "tool_reference", "name", Json::from(&tool.name))));
            let definitions = tools.convert(added, None)?;
            blocks.extend(definitions.into_iter().map(|tool| tool_change("tool_addition", "tool_definition", "definition", tool)));
        }
        Ok((!blocks.is_empty()).then(|| WireMessage::blocks("system", blocks)))
    }

    fn answer_block(&self, block: &AssistantBlock) -> Option<Json> {
        match block {
            AssistantBlock::Text(text) => (!js::trim(&text.text).is_empty()).then(|| text_block(&text.text)),
            AssistantBlock::Thinking(thinking) => self.thinking(thinking),
            AssistantBlock::ToolCall(call) => Some(
                Json::build_object()
                    .with("type", "tool_use")
                    .with("id", &call.id)
                    .with("name", &call.name)
                    .with("input", &call.arguments)
                    .build(),
            ),
        }
    }

    fn thinking(&self, thinking: &ThinkingContent) -> Option<Json> {
        let typed = |kind: &str| Json::build_object().with("type", kind);
        if thinking.redacted == Some(true) {
            return Some(typed("redacted_thinking").with_some("data", thinking.thinking_signature.as_ref()).build());
        }
        let signature = thinking.thinking_signature.as_deref().filter(|signature| !js::trim(signature).is_empty());
        if signature.is_none() && js::trim(&thinking.thinking).is_empty() {
            return None;
        }
        match signature.or_else(|| self.empty_signature.then_some("")) {
            Some(signature) => Some(typed("thinking").with("thinking", &thinking.thinking).with("signature", signature).build()),
            None => Some(text_block(&thinking.thinking)),
        }
    }
}

impl WireMessage {
    fn into_json(self) -> Json {
        let content = match self.content {
            Content::Text(text) => Json::from(text),
            Content::Blocks(blocks) => Json::from(blocks),
        };
        Json::build_object().with("role", self.role).with("content", content).build()
    }
}

/// Marks the last block of the last message, unless it is an answer.
fn mark_cached(last: &mut WireMessage, cache_control: &Json) {
    if last.role == "assistant" {
        return;
    }
    let mut blocks = match mem::replace(&mut last.content, Content::Blocks(Vec::new())) {
        Content::Text(text) => vec![text_block(&text)],
        Content::Blocks(blocks) => blocks,
    };
    if let Some(block) = blocks.last_mut() {
        *block = with_member(block, "cache_control", cache_control);
    }
    last.content = Content::Blocks(blocks);
}

/// The object with one more member.
pub(super) fn with_member(object: &Json, key: &str, value: &Json) -> Json {
    let members = object.as_object().into_iter().flat_map(|object| object.iter());
    Json::object(members.chain([(key, value)]))
}

pub(super) fn text_block(text: &str) -> Json {
    Json::build_object().with("type", "text").with("text", text).build()
}

fn tool_change(kind: &str, tool_kind: &str, member: &str, value: Json) -> Json {
    let tool = Json::build_object().with("type", tool_kind).with(member, value);
    Json::build_object().with("type", kind).with("tool", tool).build()
}

fn image_block(image: &ImageContent) -> Json {
    let source = Json::build_object().with("type", "base64").with("media_type", &image.mime_type).with("data", &image.data);
    Json::build_object().with("type", "image").with("source", source).build()
}

fn user_block(block: &UserBlock) -> Json {
    match block {
        UserBlock::Text(text) => text_block(&text.text),
        UserBlock::Image(image) => image_block(image),
    }
}

fn convert_user(user: &UserMessage) -> Option<WireMessage> {
    let blank = |text: &str| js::trim(text).is_empty();
    match &user.content {
        TextOrBlocks::Text(text) => (!blank(text)).then(|| WireMessage { role: "user", content: Content::Text(text.clone()) }),
        TextOrBlocks::Blocks(blocks) => {
            let kept = blocks.iter().filter(|block| !matches!(block, UserBlock::Text(text) if blank(&text.text)));
            let kept: Vec<Json> = kept.map(user_block).collect();
            (!kept.is_empty()).then(|| WireMessage::blocks("user", kept))
        }
    }
}

fn is_result(message: &Message) -> bool {
    matches!(message, Message::ToolResult(_))
}

/// One message of the results that the messages begin with. Images of failed results follow all of them.
fn convert_results(messages: &[Message]) -> WireMessage {
    let mut blocks = Vec::new();
    let mut images = Vec::new();
    for message in messages {
        let Message::ToolResult(result) = message else { break };
        blocks.push(convert_result(result));
        let before = images.len();
        images.extend(failed_images(result).map(image_block));
        if images.len() > before {
            let (id, name) = (&result.tool_call_id, &result.tool_name);
            images.insert(before, text_block(&format!("Images from the error result of tool call {id} ({name}):")));
        }
    }
    blocks.append(&mut images);
    WireMessage::blocks("user", blocks)
}

fn failed_images(result: &ToolResultMessage) -> impl Iterator<Item = &ImageContent> {
    result.content.iter().filter(|_| result.is_error).filter_map(|block| match block {
        UserBlock::Image(image) => Some(image),
        UserBlock::Text(_) => None,
    })
}

fn convert_result(result: &ToolResultMessage) -> Json {
    let images = !result.is_error && result.content.iter().any(|block| matches!(block, UserBlock::Image(_)));
    let content = if images { result_blocks(&result.content) } else { Json::from(result_text(&result.content)) };
    Json::build_object()
        .with("type", "tool_result")
        .with("tool_use_id", &result.tool_call_id)
        .with("content", content)
        .with("is_error", result.is_error)
        .build()
}

fn result_blocks(content: &[UserBlock]) -> Json {
    let has_text = content.iter().any(|block| matches!(block, UserBlock::Text(_)));
    let placeholder = (!has_text).then(|| text_block(SEE_IMAGE));
    placeholder.into_iter().chain(content.iter().map(user_block)).collect()
}

/// The texts in lines; each run of images is one line that says where they are.
fn result_text(content: &[UserBlock]) -> String {
    let mut lines: Vec<&str> = Vec::with_capacity(content.len());
    for block in content {
        match block {
            UserBlock::Image(_) if lines.last() == Some(&IMAGE_AFTER_RESULTS) => {}
            UserBlock::Image(_) => lines.push(IMAGE_AFTER_RESULTS),
            UserBlock::Text(text) => lines.push(&text.text),
        }
    }
    lines.join("\n")
}
