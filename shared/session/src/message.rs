//! Messages as models see them and entries keep them. The stored form is the one of `facts/pi-ai.md` 1: absent optional fields have no key.

use std::sync::Arc;

use picofleet_delta::Json;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::Millis;

mod text;

/// One message of a transcript. Clones share what it has; `Arc::make_mut` changes one of them.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(tag = "role", rename_all = "camelCase")]
pub enum Message {
    /// Changes the system prompt and the tools (section 2).
    System(Arc<SystemMessage>),
    /// From the user.
    User(Arc<UserMessage>),
    /// From the model.
    Assistant(Arc<AssistantMessage>),
    /// The result of a tool call.
    ToolResult(Arc<ToolResultMessage>),
}

impl From<SystemMessage> for Message {
    fn from(message: SystemMessage) -> Self {
        Self::System(Arc::new(message))
    }
}

impl From<UserMessage> for Message {
    fn from(message: UserMessage) -> Self {
        Self::User(Arc::new(message))
    }
}

impl From<AssistantMessage> for Message {
    fn from(message: AssistantMessage) -> Self {
        Self::Assistant(Arc::new(message))
    }
}

impl From<ToolResultMessage> for Message {
    fn from(message: ToolResultMessage) -> Self {
        Self::ToolResult(Arc::new(message))
    }
}

/// Reads the tag of an internally tagged value. Going through [`Json`] shares the values below it, where serde's own way would copy them.
fn tagged<'de, D: Deserializer<'de>>(deserializer: D, tag: &'static str) -> Result<(String, Json), D::Error> {
    let value = Json::deserialize(deserializer)?;
    match value.get(tag).and_then(Json::as_str).map(std::borrow::Cow::into_owned) {
        Some(word) => Ok((word, value)),
        None => Err(D::Error::custom(format!("{tag} is missing or no text"))),
    }
}

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (role, value) = tagged(deserializer, "role")?;
        match role.as_str() {
            "system" => value.to().map(Self::System),
            "user" => value.to().map(Self::User),
            "assistant" => value.to().map(Self::Assistant),
            "toolResult" => value.to().map(Self::ToolResult),
            other => return Err(D::Error::custom(format!("{other:?} is no role"))),
        }
        .map_err(D::Error::custom)
    }
}

/// A patch of the system prompt and of the tools; replaying all of them gives the effective ones (section 2).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SystemMessage {
    /// The base prompt of the leading message, additional text of a later one; we always write `""`.
    pub content: TextOrBlocks<SystemBlock>,
    /// Named sections in order: a text adds or replaces one, `null` removes it. A JSON object, since the order counts.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sections: Option<Json>,
    /// Tools that are offered from here on.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub tools_added: Option<Vec<ToolDeclaration>>,
    /// Tools that are no longer offered; applied before the additions.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub tools_removed: Option<Vec<ToolReference>>,
    /// When it was made.
    pub timestamp: Millis,
}

/// What a user says.
pub type UserInput = TextOrBlocks<UserBlock>;

/// A message from the user.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UserMessage {
    /// What the user says.
    pub content: UserInput,
    /// When it was placed.
    pub timestamp: Millis,
}

/// A plain text, or blocks. `null`, which some programs store for an empty content, is read as no blocks.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(untagged)]
pub enum TextOrBlocks<B> {
    /// A plain text.
    Text(String),
    /// Blocks.
    Blocks(Vec<B>),
}

impl<'de, B: serde::de::DeserializeOwned> Deserialize<'de> for TextOrBlocks<B> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Json::deserialize(deserializer)?;
        match value.as_str() {
            Some(text) => Ok(Self::Text(text.into_owned())),
            None if value.is_null() => Ok(Self::Blocks(Vec::new())),
            None => value.to().map(Self::Blocks).map_err(D::Error::custom),
        }
    }
}

impl<B> From<&str> for TextOrBlocks<B> {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl<B> From<String> for TextOrBlocks<B> {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// A block of a system message.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum SystemBlock {
    /// Text.
    Text(TextContent),
}

impl<'de> Deserialize<'de> for SystemBlock {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (kind, value) = tagged(deserializer, "type")?;
        match kind.as_str() {
            "text" => value.to().map(Self::Text).map_err(D::Error::custom),
            other => Err(D::Error::custom(format!("{other:?} is no block of a system message"))),
        }
    }
}

/// A block of a user message or a tool result.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum UserBlock {
    /// Text.
    Text(TextContent),
    /// An image.
    Image(ImageContent),
}

impl<'de> Deserialize<'de> for UserBlock {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (kind, value) = tagged(deserializer, "type")?;
        match kind.as_str() {
            "text" => value.to().map(Self::Text),
            "image" => value.to().map(Self::Image),
            other => return Err(D::Error::custom(format!("{other:?} is no block of a user message"))),
        }
        .map_err(D::Error::custom)
    }
}

/// Text.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TextContent {
    /// The text.
    pub text: String,
    /// What the provider needs to have it back.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub text_signature: Option<String>,
}

impl TextContent {
    /// A plain text.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), text_signature: None }
    }
}

/// What a model thought.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ThinkingContent {
    /// The thought, as far as it may be seen.
    pub thinking: String,
    /// What the provider needs to have it back.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub thinking_signature: Option<String>,
    /// The provider hid it; the signature has it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub redacted: Option<bool>,
}

/// An image.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageContent {
    /// Its bytes in base64.
    pub data: String,
    /// Its type.
    pub mime_type: String,
}

/// A call of a tool.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolCall {
    /// The provider's name of the call.
    pub id: String,
    /// The tool.
    pub name: String,
    /// A JSON object.
    pub arguments: Json,
    /// What the provider needs to have it back.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub thought_signature: Option<String>,
    /// The provider's name space of the tool.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub namespace: Option<String>,
    /// Why the argument text was no JSON object; `arguments` is then `{}`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub arguments_error: Option<String>,
}

/// A block of a model's message.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum AssistantBlock {
    /// Text.
    Text(TextContent),
    /// Thinking.
    Thinking(ThinkingContent),
    /// A tool call.
    ToolCall(ToolCall),
}

impl<'de> Deserialize<'de> for AssistantBlock {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (kind, value) = tagged(deserializer, "type")?;
        match kind.as_str() {
            "text" => value.to().map(Self::Text),
            "thinking" => value.to().map(Self::Thinking),
            "toolCall" => value.to().map(Self::ToolCall),
            other => return Err(D::Error::custom(format!("{other:?} is no block of a model's message"))),
        }
        .map_err(D::Error::custom)
    }
}

/// Why a model stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StopReason {
    /// It has not; only in partial messages.
    Pending,
    /// It was done.
    Stop,
    /// Its output limit.
    Length,
    /// To have tools called.
    ToolUse,
    /// The request failed.
    Error,
    /// The caller cancelled.
    Aborted,
    /// The answer comes later.
    Deferred,
}

/// A message from a model.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AssistantMessage {
    /// Its blocks; `null` is read as none.
    #[serde(deserialize_with = "crate::wire::null_as_empty")]
    pub content: Vec<AssistantBlock>,
    /// The provider's API, such as `openai-completions`.
    pub api: String,
    /// The provider.
    pub provider: String,
    /// The model that was asked for.
    pub model: String,
    /// The model that the provider reports, where it is another.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub response_model: Option<String>,
    /// The provider's name of the response.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub response_id: Option<String>,
    /// The thinking level in the provider's words.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub provider_thinking_level: Option<String>,
    /// The thinking level in ours.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub thinking_level: Option<String>,
    /// What happened on the way.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub diagnostics: Option<Vec<MessageDiagnostic>>,
    /// What it cost.
    pub usage: Usage,
    /// Why it stopped.
    pub stop_reason: StopReason,
    /// Where the answer can be fetched later.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub deferred: Option<DeferredHandle>,
    /// What failed, in words.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error_message: Option<String>,
    /// Why it stopped in the provider's words.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub raw_stop_reason: Option<String>,
    /// The provider says that the turn is over.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub end_turn: Option<bool>,
    /// When the request began.
    pub timestamp: Millis,
    /// How long it took, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub duration_ms: Option<f64>,
}

/// Something that happened while a message came in.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct MessageDiagnostic {
    /// What, as a stable word.
    pub r#type: String,
    /// When.
    pub timestamp: Millis,
    /// The error.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<DiagnosticError>,
    /// More about it.
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "crate::wire::present")]
    pub details: Option<Json>,
}

/// An error in a diagnostic.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DiagnosticError {
    /// Its class.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    /// What it says.
    pub message: String,
    /// Where it came from.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stack: Option<String>,
    /// Its code: a text or a number.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub code: Option<Json>,
}

/// The result of a tool call.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolResultMessage {
    /// The call.
    pub tool_call_id: String,
    /// The tool.
    pub tool_name: String,
    /// What the model sees; `null` is read as nothing.
    #[serde(deserialize_with = "crate::wire::null_as_empty")]
    pub content: Vec<UserBlock>,
    /// What programs see.
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "crate::wire::present")]
    pub details: Option<Json>,
    /// What the tool itself spent.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub usage: Option<Usage>,
    /// Calls that the tool made itself.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub nested_calls: Option<Json>,
    /// It failed.
    pub is_error: bool,
    /// When it ended.
    pub timestamp: Millis,
    /// How long it took, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub duration_ms: Option<f64>,
}

/// Tokens and their price.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// Input tokens that were not cached.
    pub input: u64,
    /// Output tokens.
    pub output: u64,
    /// Input tokens that came from a cache.
    pub cache_read: u64,
    /// Input tokens that went into a cache.
    pub cache_write: u64,
    /// Of those, the ones that stay an hour.
    #[serde(rename = "cacheWrite1h", skip_serializing_if = "Option::is_none", default)]
    pub cache_write_1h: Option<u64>,
    /// Of the output, the thinking.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reasoning: Option<u64>,
    /// All tokens.
    pub total_tokens: u64,
    /// In US dollars.
    pub cost: Cost,
}

/// A price in US dollars.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cost {
    /// Of the input.
    pub input: f64,
    /// Of the output.
    pub output: f64,
    /// Of cached input.
    pub cache_read: f64,
    /// Of input that went into a cache.
    pub cache_write: f64,
    /// Together.
    pub total: f64,
    /// The provider said so itself.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub total_from_provider: Option<bool>,
}

/// A tool as it is offered to a model.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolDeclaration {
    /// Its name.
    pub name: String,
    /// What it does.
    pub description: String,
    /// A JSON Schema; the order of its keys counts (`facts/pi-ai.md` 5).
    pub parameters: Json,
    /// How its arguments are to be sampled.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub constrained_sampling: Option<Json>,
}

/// A tool by its name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ToolReference {
    /// The name.
    pub name: String,
}

/// Where a deferred answer can be fetched.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeferredHandle {
    /// The provider.
    pub provider: String,
    /// The model.
    pub model_id: String,
    /// The provider's API.
    pub api: String,
    /// The provider's name of the answer.
    pub id: String,
    /// Until when it can be fetched.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub expires_at: Option<Millis>,
    /// How long to wait between attempts, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub poll_after_ms: Option<u64>,
    /// What else the provider needs.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub data: Option<Json>,
}
