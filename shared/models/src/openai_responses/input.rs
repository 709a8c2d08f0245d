//! The transcript as the items of `input`.

use std::borrow::Cow;
use std::collections::HashSet;

use picofleet_delta::Json;
use picofleet_session::Millis;
use picofleet_session::message::{
    AssistantBlock, AssistantMessage, ImageContent, Message, SystemMessage, TextContent, TextOrBlocks, ToolCall, ToolResultMessage,
    UserBlock, UserMessage,
};

use super::BuildError;
use super::compat::Compat;
use super::tools::tools;
use crate::arguments::decode;
use crate::hash::short_hash;
use crate::js;
use crate::model::Model;
use crate::transcript::{ToolSupport, get_system_message_text, render_system_message_update, resolve_transcript_tools};
use crate::transform::transform_messages;

/// The longest id that the API takes.
const ID_MAX: usize = 64;

/// Providers that pair the ids of calls with those of their items.
const PAIRED_ID_PROVIDERS: [&str; 3] = ["openai", "openai-codex", "opencode"];

/// What stands for a result without text or images.
const NO_OUTPUT: &str = "(no tool output)";

/// Said before every list of tools but the first. Without it models take the latest list for all tools.
const TOOLS_UPDATE: &str = "This is an incremental tools update. Previously declared tools remain available unless explicitly \
     marked unavailable. A tool declared again here is available again, and its latest definition replaces the earlier one.";

/// The items of a transcript that has its system messages where the provider takes them.
pub(super) fn input(model: &Model, messages: &[Message], compat: Compat) -> Result<Vec<Json>, BuildError> {
    let transformed = transform_messages(messages, model, Millis(0), |id, source| fitting_id(id, model, source));
    let support = compat.tool_support();
    let mut input = Input {
        model,
        compat,
        support,
        folded: resolve_transcript_tools(messages, support).folded_system_messages,
        instruction_role: if model.reasoning && compat.developer_role { "developer" } else { "system" },
        items: Vec::new(),
        number: 0,
        systems: 0,
        tools_declared: false,
        unavailable: Vec::new(),
    };
    for (place, message) in transformed.iter().enumerate() {
        let counts = match message {
            Message::System(system) => input.system(system, place == 0)?,
            Message::User(user) => input.user(user),
            Message::Assistant(answer) => input.answer(answer)?,
            Message::ToolResult(result) => input.result(result),
        };
        input.number += usize::from(counts);
    }
    Ok(input.items)
}

/// The id of a call of another model, in characters that the API takes.
fn fitting_id(id: &str, model: &Model, source: &AssistantMessage) -> String {
    let paired = PAIRED_ID_PROVIDERS.contains(&model.provider.as_str());
    let Some((call, rest)) = id.split_once('|').filter(|_| paired) else { return fitting_part(id) };
    let item = rest.split('|').next().unwrap_or_default();
    let foreign = source.provider != model.provider || source.api != model.api;
    let mut item = if foreign { format!("fc_{}", short_hash(item)) } else { fitting_part(item) };
    if !item.starts_with("fc_") {
        item = fitting_part(&format!("fc_{item}"));
    }
    format!("{}|{item}", fitting_part(call))
}

fn fitting_part(part: &str) -> String {
    let mut fitting = String::with_capacity(part.len());
    for c in part.chars() {
        if c.is_ascii_alphanumeric() || c == '_' || c == '-' {
            fitting.push(c);
        } else {
            // JavaScript replaces UTF-16 units, so a character outside the base plane counts twice.
            fitting.extend(std::iter::repeat_n('_', c.len_utf16()));
        }
    }
    fitting.truncate(ID_MAX);
    fitting.truncate(fitting.trim_end_matches('_').len());
    fitting
}

struct Input<'a> {
    model: &'a Model,
    compat: Compat,
    support: ToolSupport,
    /// Leading system messages whose tools stand at the top of the request.
    folded: usize,
    instruction_role: &'static str,
    items: Vec<Json>,
    /// Counts the messages that gave items, without the leading system message; it names answers that have no id.
    number: usize,
    systems: usize,
    tools_declared: bool,
    /// Tools that were said to be gone and were not declared again.
    unavailable: Vec<String>,
}

impl Input<'_> {
    fn system(&mut self, message: &SystemMessage, leading: bool) -> Result<bool, BuildError> {
        let in_place = self.systems >= self.folded;
        self.systems += 1;
        let mut parts = vec![if leading { get_system_message_text(message) } else { render_system_message_update(message) }];
        if in_place {
            self.tools_added(message)?;
            parts.push(self.tools_removed(message));
        }
        parts.retain(|part| !part.is_empty());
        if !parts.is_empty() {
            self.instruct(&parts.join("\n\n"));
        }
        Ok(!leading)
    }

    fn instruct(&mut self, text: &str) {
        self.items.push(Json::object([("role", self.instruction_role), ("content", text)]));
    }

    fn tools_added(&mut self, message: &SystemMessage) -> Result<(), BuildError> {
        let added = message.tools_added.as_deref().unwrap_or_default();
        if added.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = added.iter().map(|tool| tool.name.as_str()).collect();
        self.unavailable.retain(|name| !names.contains(&name.as_str()));
        match self.support {
            ToolSupport::None => {}
            ToolSupport::Changes => {
                if self.tools_declared {
                    let unavailable = match &*self.unavailable {
                        [] => String::new(),
                        names => format!("\nStill unavailable: {}.", names.join(", ")),
                    };
                    self.instruct(&format!("{TOOLS_UPDATE}{unavailable}"));
                }
                self.tools_declared = true;
                let declared = tools(added, self.compat, false)?;
                let item = Json::build_object().with("type", "additional_tools").with("role", "developer").with("tools", declared);
                self.items.push(item.build());
            }
            ToolSupport::Additions => self.tool_search(&names, tools(added, self.compat, true)?),
        }
        Ok(())
    }

    /// A search by the model that found the tools, as it would have been.
    fn tool_search(&mut self, names: &[&str], found: Json) {
        let call_id = format!("pi_tool_load_{}", short_hash(&format!("system:{}:{}", self.number, names.join(","))));
        let item = |kind: &str| {
            Json::build_object().with("type", kind).with("call_id", &call_id).with("execution", "client").with("status", "completed")
        };
        let arguments = Json::build_object().with("query", names.join(" ")).with("limit", names.len());
        self.items.push(item("tool_search_call").with("arguments", arguments).build());
        self.items.push(item("tool_search_output").with("tools", found).build());
    }

    /// What says that tools are gone; one that the same message adds has only changed.
    fn tools_removed(&mut self, message: &SystemMessage) -> String {
        let added: HashSet<&str> = message.tools_added.iter().flatten().map(|tool| tool.name.as_str()).collect();
        let removed = message.tools_removed.iter().flatten().map(|tool| tool.name.as_str());
        let removed: Vec<&str> = removed.filter(|name| !added.contains(name)).collect();
        if removed.is_empty() {
            return String::new();
        }
        for name in &removed {
            if !self.unavailable.iter().any(|own| own == name) {
                self.unavailable.push((*name).to_owned());
            }
        }
        let lines: Vec<String> = removed.iter().map(|name| format!("- {name}")).collect();
        format!("The following tools are no longer available. Do not call them:\n{}", lines.join("\n"))
    }

    fn user(&mut self, message: &UserMessage) -> bool {
        let content: Vec<Json> = match &message.content {
            TextOrBlocks::Text(text) => vec![input_text(text)],
            TextOrBlocks::Blocks(blocks) => blocks
                .iter()
                .map(|block| match block {
                    UserBlock::Text(text) => input_text(&text.text),
                    UserBlock::Image(image) => input_image(image),
                })
                .collect(),
        };
        if content.is_empty() {
            return false;
        }
        self.items.push(Json::build_object().with("role", "user").with("content", Json::array(content)).build());
        true
    }

    fn answer(&mut self, message: &AssistantMessage) -> Result<bool, BuildError> {
        let before = self.items.len();
        let same_api = message.provider == self.model.provider && message.api == self.model.api;
        let same_model = message.model == self.model.id;
        let mut texts = 0;
        for block in &message.content {
            match block {
                AssistantBlock::Thinking(thinking) => {
                    if let Some(signature) = thinking.thinking_signature.as_deref().filter(|signature| !signature.is_empty()) {
                        self.items.push(decode(signature).map_err(BuildError::ThinkingSignature)?);
                    }
                }
                AssistantBlock::Text(text) => {
                    self.items.push(self.text(text, texts));
                    texts += 1;
                }
                AssistantBlock::ToolCall(call) => self.items.push(function_call(call, same_api, same_model)),
            }
        }
        Ok(self.items.len() > before)
    }

    fn text(&self, text: &TextContent, place: usize) -> Json {
        let (id, phase) = text.text_signature.as_deref().map(signature_parts).unwrap_or_default();
        let id = match id.as_ref() {
            "" if place == 0 => format!("msg_pi_{}", self.number),
            "" => format!("msg_pi_{}_{place}", self.number),
            long if js::utf16_len(long) > ID_MAX => format!("msg_{}", short_hash(long)),
            short => short.to_owned(),
        };
        let part =
            Json::build_object().with("type", "output_text").with("text", &text.text).with("annotations", Json::array::<Json>([])).build();
        Json::build_object()
            .with("type", "message")
            .with("role", "assistant")
            .with("content", Json::array([part]))
            .with("status", "completed")
            .with("id", id)
            .with_some("phase", phase)
            .build()
    }

    fn result(&mut self, result: &ToolResultMessage) -> bool {
        let item = Json::build_object()
            .with("type", "function_call_output")
            .with("call_id", call_id(&result.tool_call_id))
            .with("output", output(&result.content));
        self.items.push(item.build());
        true
    }
}

/// The id and phase that a text signature holds; an older one is the bare id.
fn signature_parts(signature: &str) -> (Cow<'_, str>, Option<&'static str>) {
    let parsed = signature.starts_with('{').then(|| decode(signature).ok()).flatten();
    let first = parsed.filter(|parsed| parsed.get("v").and_then(Json::as_f64) == Some(1.0));
    let Some((id, phase)) = first.and_then(|parsed| {
        let id = parsed.get("id")?.as_str()?.into_owned();
        let phase = match parsed.get("phase").and_then(Json::as_str).as_deref() {
            Some("commentary") => Some("commentary"),
            Some("final_answer") => Some("final_answer"),
            _ => None,
        };
        Some((id, phase))
    }) else {
        return (Cow::Borrowed(signature), None);
    };
    (Cow::Owned(id), phase)
}

fn call_id(id: &str) -> &str {
    id.split('|').next().unwrap_or_default()
}

/// A call. Its item is named only to the model that made it: the API ties named items to the reasoning before them.
fn function_call(call: &ToolCall, same_api: bool, same_model: bool) -> Json {
    let item = call.id.split('|').nth(1).filter(|item| item.starts_with("fc_") && (same_model || !same_api));
    let namespace = call.namespace.as_ref().filter(|_| same_api && same_model);
    Json::build_object()
        .with("type", "function_call")
        .with_some("id", item)
        .with("call_id", call_id(&call.id))
        .with("name", &call.name)
        .with("arguments", js::stringify(&call.arguments))
        .with_some("namespace", namespace)
        .build()
}

/// What a tool gave: a text, or parts where it has images.
fn output(content: &[UserBlock]) -> Json {
    let texts: Vec<&str> = content
        .iter()
        .filter_map(|block| match block {
            UserBlock::Text(text) => Some(text.text.as_str()),
            UserBlock::Image(_) => None,
        })
        .collect();
    let text = texts.join("\n");
    let has_text = !js::trim(&text).is_empty();
    let images = content.iter().filter_map(|block| match block {
        UserBlock::Image(image) => Some(input_image(image)),
        UserBlock::Text(_) => None,
    });
    let images: Vec<Json> = images.collect();
    if images.is_empty() {
        return Json::from(if has_text { &text } else { NO_OUTPUT });
    }
    Json::array(has_text.then(|| input_text(&text)).into_iter().chain(images))
}

fn input_text(text: &str) -> Json {
    Json::object([("type", "input_text"), ("text", text)])
}

fn input_image(image: &ImageContent) -> Json {
    let url = format!("data:{};base64,{}", image.mime_type, image.data);
    Json::object([("type", "input_image"), ("detail", "auto"), ("image_url", url.as_str())])
}
