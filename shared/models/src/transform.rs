//! Messages made fit for one model, before every provider.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use picofleet_session::Millis;
use picofleet_session::message::{
    AssistantBlock, AssistantMessage, Message, StopReason, TextContent, TextOrBlocks, ThinkingContent, ToolResultMessage, UserBlock,
};

use crate::js;
use crate::model::Model;

/// Stands for images of a user that the model cannot take.
pub const USER_IMAGE_OMITTED: &str = "(image omitted: model does not support images)";

/// Stands for images of a tool result that the model cannot take.
pub const TOOL_IMAGE_OMITTED: &str = "(tool image omitted: model does not support images)";

/// The text of a result that a call without one gets.
pub const NO_RESULT: &str = "No result provided";

/// The messages as `model` can take them.
///
/// - Images that it cannot take become a text, one for a run of them.
/// - Answers of other models lose thinking and signatures; `rename_id` gives the ids of their tool calls, and of the
///   results, the form that the provider accepts.
/// - Answers of the same model lose thinking that is blank, not redacted and not signed.
/// - Failed and cancelled answers go; the results of their calls stay.
/// - A call without a result before the next answer, user message or the end gets one with the time `now`. System messages
///   between calls and results move behind the results.
pub fn transform_messages<M: Borrow<Message>>(
    messages: &[M],
    model: &Model,
    now: Millis,
    rename_id: impl Fn(&str, &AssistantMessage) -> String,
) -> Vec<Message> {
    let mut renamed = HashMap::new();
    let fitted: Vec<Message> = messages
        .iter()
        .map(|message| match message.borrow() {
            Message::Assistant(answer) => Message::from(fit_answer(answer, model, &rename_id, &mut renamed)),
            Message::ToolResult(result) => Message::from(fit_result(result, model, &renamed)),
            Message::User(user) => {
                let mut user = user.clone();
                if !model.takes_images()
                    && let TextOrBlocks::Blocks(blocks) = &mut Arc::make_mut(&mut user).content
                {
                    replace_images(blocks, USER_IMAGE_OMITTED);
                }
                Message::User(user)
            }
            system @ Message::System(_) => system.clone(),
        })
        .collect();
    complete_calls(fitted, now)
}

fn fit_result(result: &ToolResultMessage, model: &Model, renamed: &HashMap<String, String>) -> ToolResultMessage {
    let mut result = result.clone();
    if !model.takes_images() {
        replace_images(&mut result.content, TOOL_IMAGE_OMITTED);
    }
    if let Some(id) = renamed.get(&result.tool_call_id) {
        result.tool_call_id.clone_from(id);
    }
    result
}

/// Puts one text in the place of each run of images.
fn replace_images(blocks: &mut Vec<UserBlock>, placeholder: &str) {
    let mut kept: Vec<UserBlock> = Vec::with_capacity(blocks.len());
    for block in blocks.drain(..) {
        match block {
            UserBlock::Image(_) if matches!(kept.last(), Some(UserBlock::Text(last)) if last.text == placeholder) => {}
            UserBlock::Image(_) => kept.push(UserBlock::Text(TextContent::new(placeholder))),
            text @ UserBlock::Text(_) => kept.push(text),
        }
    }
    *blocks = kept;
}

fn fit_answer(
    answer: &AssistantMessage,
    model: &Model,
    rename_id: &impl Fn(&str, &AssistantMessage) -> String,
    renamed: &mut HashMap<String, String>,
) -> AssistantMessage {
    let own = answer.provider == model.provider && answer.api == model.api && answer.model == model.id;
    let content = answer.content.iter().filter_map(|block| match block {
        AssistantBlock::Thinking(thinking) => (own && worth_keeping(thinking)).then(|| block.clone()),
        _ if own => Some(block.clone()),
        AssistantBlock::Text(text) => Some(AssistantBlock::Text(TextContent::new(text.text.clone()))),
        AssistantBlock::ToolCall(call) => {
            let mut call = call.clone();
            call.thought_signature = None;
            let id = rename_id(&call.id, answer);
            if id != call.id {
                renamed.insert(std::mem::replace(&mut call.id, id.clone()), id);
            }
            Some(AssistantBlock::ToolCall(call))
        }
    });
    AssistantMessage { content: content.collect(), ..answer.clone() }
}

fn worth_keeping(thinking: &ThinkingContent) -> bool {
    thinking.redacted == Some(true)
        || thinking.thinking_signature.as_ref().is_some_and(|signature| !signature.is_empty())
        || !js::trim(&thinking.thinking).is_empty()
}

/// The calls of the last answer that still wait for results, and what must not stand between them.
#[derive(Default)]
struct Open {
    calls: Vec<(String, String)>,
    answered: HashSet<String>,
    held_back: Vec<Message>,
}

impl Open {
    /// Writes the missing results and what was held back.
    fn close(&mut self, now: Millis, out: &mut Vec<Message>) {
        let open = std::mem::take(self);
        let missing = open.calls.into_iter().filter(|(id, _)| !open.answered.contains(id));
        out.extend(missing.map(|(id, name)| Message::from(no_result(id, name, now))));
        out.extend(open.held_back);
    }
}

fn no_result(tool_call_id: String, tool_name: String, now: Millis) -> ToolResultMessage {
    ToolResultMessage {
        tool_call_id,
        tool_name,
        content: vec![UserBlock::Text(TextContent::new(NO_RESULT))],
        details: None,
        usage: None,
        nested_calls: None,
        is_error: true,
        timestamp: now,
        duration_ms: None,
    }
}

/// Drops failed answers and gives every call a result.
fn complete_calls(messages: Vec<Message>, now: Millis) -> Vec<Message> {
    let mut out = Vec::with_capacity(messages.len());
    let mut open = Open::default();
    for message in messages {
        match &message {
            Message::Assistant(answer) => {
                open.close(now, &mut out);
                if matches!(answer.stop_reason, StopReason::Error | StopReason::Aborted) {
                    continue;
                }
                open.calls.extend(answer.content.iter().filter_map(|block| match block {
                    AssistantBlock::ToolCall(call) => Some((call.id.clone(), call.name.clone())),
                    _ => None,
                }));
            }
            Message::ToolResult(result) => {
                open.answered.insert(result.tool_call_id.clone());
            }
            Message::User(_) => open.close(now, &mut out),
            Message::System(_) if !open.calls.is_empty() => {
                open.held_back.push(message);
                continue;
            }
            Message::System(_) => {}
        }
        out.push(message);
    }
    open.close(now, &mut out);
    out
}
