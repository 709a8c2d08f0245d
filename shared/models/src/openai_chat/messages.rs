//! Messages as the API takes them.

use picofleet_delta::Json;
use picofleet_session::Millis;
use picofleet_session::message::{
    AssistantBlock, AssistantMessage, ImageContent, Message, SystemMessage, TextOrBlocks, ThinkingContent, ToolCall, ToolResultMessage,
    UserBlock, UserInput,
};

use super::BuildError;
use super::compat::Compat;
use super::details;
use super::tools::tools;
use crate::hash::short_hash;
use crate::js;
use crate::model::Model;
use crate::transcript::{get_system_message_text, render_system_message_update, resolve_transcript_tools};
use crate::transform::transform_messages;

/// Stands between results and what may not follow them.
const BRIDGE: &str = "I have processed the tool results.";

/// Stands for the text of a result that has only images, and of one that has nothing.
const SEE_IMAGE: &str = "(see attached image)";
const NO_OUTPUT: &str = "(no tool output)";

/// Comes before the images of results.
const ATTACHED: &str = "Attached image(s) from tool result:";

/// The longest id of a call, in characters, and the length of the hash at the end of one that was longer.
const ID_MAX: usize = 40;
const ID_HASH: usize = 8;

/// The fields in which servers give and take thinking as text.
const REASONING_FIELDS: [&str; 3] = ["reasoning", "reasoning_content", "reasoning_text"];

/// The messages of a transcript.
///
/// # Errors
///
/// A tool demands strict sampling that its schema or server does not allow.
pub(super) fn messages(model: &Model, transcript: &[Message], compat: &Compat, now: Millis) -> Result<Vec<Json>, BuildError> {
    let folded = resolve_transcript_tools(transcript, compat.tool_support()).folded_system_messages;
    let fitted = transform_messages(transcript, model, now, |id, _| call_id(id, model));
    let mut out = Conversation { model, compat, sent: Vec::new(), after_result: false };
    let mut system_messages = 0;
    let mut rest = fitted.as_slice();
    while let Some((message, after)) = rest.split_first() {
        rest = after;
        match message {
            Message::System(system) => {
                let in_place = system_messages >= folded;
                out.system(system, after.len() + 1 == fitted.len(), in_place)?;
                system_messages += 1;
            }
            Message::User(user) => out.user(&user.content),
            Message::Assistant(answer) => out.assistant(answer),
            Message::ToolResult(first) => {
                let more = after.iter().map_while(|message| match message {
                    Message::ToolResult(result) => Some(&**result),
                    _ => None,
                });
                let results: Vec<&ToolResultMessage> = std::iter::once(&**first).chain(more).collect();
                rest = &after[results.len() - 1..];
                out.results(&results);
            }
        }
    }
    Ok(out.sent)
}

struct Conversation<'a> {
    model: &'a Model,
    compat: &'a Compat,
    sent: Vec<Json>,
    /// The last message was a result without images.
    after_result: bool,
}

impl Conversation<'_> {
    fn system(&mut self, message: &SystemMessage, leading: bool, in_place: bool) -> Result<(), BuildError> {
        self.after_result = false;
        let added = message.tools_added.as_deref().unwrap_or_default();
        if in_place && !added.is_empty() {
            let tools = tools(added, self.compat)?;
            self.sent.push(Json::build_object().with("role", "system").with("tools", tools).build());
        }
        let text = if leading { get_system_message_text(message) } else { render_system_message_update(message) };
        if !text.is_empty() {
            let role = if self.model.reasoning && self.compat.developer_role { "developer" } else { "system" };
            self.sent.push(plain(role, text));
        }
        Ok(())
    }

    fn user(&mut self, content: &UserInput) {
        if self.after_result && self.compat.assistant_after_tool_result {
            self.sent.push(plain("assistant", BRIDGE));
        }
        match content {
            TextOrBlocks::Text(text) => {
                self.after_result = false;
                self.sent.push(plain("user", text));
            }
            TextOrBlocks::Blocks(blocks) => {
                let parts = blocks.iter().filter_map(|block| match block {
                    UserBlock::Text(text) => (!text.text.is_empty()).then(|| text_part(&text.text)),
                    UserBlock::Image(image) => Some(image_part(image)),
                });
                let parts: Vec<Json> = parts.collect();
                if !parts.is_empty() {
                    self.after_result = false;
                    self.sent.push(plain("user", parts));
                }
            }
        }
    }

    fn assistant(&mut self, answer: &AssistantMessage) {
        let blocks = Blocks::of(answer);
        let details = details::of_answer(&blocks.thinking, &blocks.calls);
        let thinking: Vec<&str> =
            blocks.thinking.iter().map(|thinking| thinking.thinking.as_str()).filter(|text| !js::trim(text).is_empty()).collect();
        let content = if !thinking.is_empty() && self.compat.thinking_as_text {
            let texts = blocks.texts.iter().map(|text| text_part(text));
            Some(Json::array(std::iter::once(text_part(&thinking.join("\n\n"))).chain(texts)))
        } else {
            Some(blocks.texts.concat()).filter(|text| !text.is_empty()).map(Json::from)
        };
        if content.is_none() && blocks.calls.is_empty() {
            return;
        }
        self.after_result = false;
        let blank =
            if self.compat.assistant_after_tool_result || self.compat.non_null_assistant_content { Json::from("") } else { Json::null() };
        let field = if details.is_none() && !self.compat.thinking_as_text { blocks.reasoning_field() } else { None };
        let wants_field = self.compat.reasoning_content && self.model.reasoning && field != Some("reasoning_content");
        let message = Json::build_object()
            .with("role", "assistant")
            .with("content", content.unwrap_or(blank))
            .with_some(field.unwrap_or_default(), field.map(|_| thinking.join("\n")))
            .with_some("tool_calls", (!blocks.calls.is_empty()).then(|| Json::array(blocks.calls.iter().map(|call| tool_call(call)))))
            .with_some("reasoning_details", details)
            .with_some("reasoning_content", wants_field.then_some(""));
        self.sent.push(message.build());
    }

    fn results(&mut self, results: &[&ToolResultMessage]) {
        let mut images = Vec::new();
        for result in results {
            self.sent.push(self.result(result));
            if self.model.takes_images() {
                images.extend(result.content.iter().filter_map(|block| match block {
                    UserBlock::Image(image) => Some(image_part(image)),
                    UserBlock::Text(_) => None,
                }));
            }
        }
        self.after_result = images.is_empty();
        if !images.is_empty() {
            if self.compat.assistant_after_tool_result {
                self.sent.push(plain("assistant", BRIDGE));
            }
            let parts: Vec<Json> = std::iter::once(text_part(ATTACHED)).chain(images).collect();
            self.sent.push(plain("user", parts));
        }
    }

    fn result(&self, result: &ToolResultMessage) -> Json {
        let texts = result.content.iter().filter_map(|block| match block {
            UserBlock::Text(text) => Some(text.text.as_str()),
            UserBlock::Image(_) => None,
        });
        let text = texts.collect::<Vec<_>>().join("\n");
        let has_images = result.content.iter().any(|block| matches!(block, UserBlock::Image(_)));
        let text = match (js::trim(&text).is_empty(), has_images) {
            (false, _) => text.as_str(),
            (true, true) => SEE_IMAGE,
            (true, false) => NO_OUTPUT,
        };
        let name = Some(&result.tool_name).filter(|name| self.compat.tool_result_name && !name.is_empty());
        let message = Json::build_object().with("role", "tool").with("content", text).with("tool_call_id", &result.tool_call_id);
        message.with_some("name", name).build()
    }
}

/// The blocks of an answer by kind; blank texts are left out.
struct Blocks<'a> {
    texts: Vec<&'a str>,
    thinking: Vec<&'a ThinkingContent>,
    calls: Vec<&'a ToolCall>,
}

impl<'a> Blocks<'a> {
    fn of(answer: &'a AssistantMessage) -> Self {
        let mut blocks = Self { texts: Vec::new(), thinking: Vec::new(), calls: Vec::new() };
        for block in &answer.content {
            match block {
                AssistantBlock::Text(text) if js::trim(&text.text).is_empty() => {}
                AssistantBlock::Text(text) => blocks.texts.push(&text.text),
                AssistantBlock::Thinking(thinking) => blocks.thinking.push(thinking),
                AssistantBlock::ToolCall(call) => blocks.calls.push(call),
            }
        }
        blocks
    }

    /// The field that the first thought which is not blank came in.
    fn reasoning_field(&self) -> Option<&'a str> {
        let first = self.thinking.iter().find(|thinking| !js::trim(&thinking.thinking).is_empty())?;
        first.thinking_signature.as_deref().filter(|field| REASONING_FIELDS.contains(field))
    }
}

/// An id that this API takes for a call of another model: the ids of the Responses API have two parts and are long.
fn call_id(id: &str, model: &Model) -> String {
    let Some((call, item)) = id.split_once('|') else {
        return if model.provider == "openai" { id.chars().take(ID_MAX).collect() } else { id.to_owned() };
    };
    let (call, item) = (plain_id(call), plain_id(item));
    let joined = if item.is_empty() { call.clone() } else { format!("{call}_{item}") };
    if joined.len() <= ID_MAX {
        return joined;
    }
    let hash: String = short_hash(id).chars().take(ID_HASH).collect();
    let prefix: String = call.chars().take(ID_MAX - hash.len() - 1).collect();
    format!("{prefix}_{hash}")
}

/// One `_` for each UTF-16 unit that ids do not have.
fn plain_id(text: &str) -> String {
    let taken = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    text.chars().map(|c| if taken(c) { c.to_string() } else { "_".repeat(c.len_utf16()) }).collect()
}

fn tool_call(call: &ToolCall) -> Json {
    let function = Json::build_object().with("name", &call.name).with("arguments", js::stringify(&call.arguments));
    Json::build_object().with("id", &call.id).with("type", "function").with("function", function).build()
}

fn plain(role: &str, content: impl Into<Json>) -> Json {
    Json::build_object().with("role", role).with("content", content).build()
}

fn text_part(text: &str) -> Json {
    Json::object([("type", "text"), ("text", text)])
}

fn image_part(image: &ImageContent) -> Json {
    let url = format!("data:{};base64,{}", image.mime_type, image.data);
    Json::build_object().with("type", "image_url").with("image_url", Json::object([("url", url)])).build()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(id: &str, provider: &str) -> String {
        let model = r#"{"id":"m","name":"M","api":"openai-completions","baseUrl":"","reasoning":false,"input":[],
            "cost":{"input":0,"output":0,"cacheRead":0,"cacheWrite":0},"contextWindow":0,"maxTokens":0,"provider":"P"}"#;
        let model: Json = model.replace("\"P\"", &format!("{provider:?}")).parse().unwrap();
        call_id(id, &model.to().unwrap())
    }

    #[test]
    fn ids_of_the_responses_api_fit() {
        assert_eq!(id("call_1|fc_+/=", "acme"), "call_1_fc____");
        assert_eq!(id("a😀|", "acme"), "a__");
        let long = format!("call_1|fc_{}", "x".repeat(60));
        let short = id(&long, "acme");
        assert!(short.starts_with("call_1_") && short.len() == "call_1_".len() + 8, "{short}");
        let longer = id(&format!("{}|fc", "y".repeat(60)), "acme");
        assert_eq!((longer.len(), &longer[..31]), (40, "y".repeat(31).as_str()));
        assert_eq!(id(&"z".repeat(50), "acme").len(), 50);
        assert_eq!(id(&"z".repeat(50), "openai").len(), 40);
    }
}
