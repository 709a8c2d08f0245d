//! Tool result entries.

use picofleet_session::message::{Message, TextContent, ToolCall, ToolResultMessage, Usage, UserBlock};
use picofleet_session::{ConversationId, EntryDraft, EntryId, Json, Tx, TxError};
use serde::{Deserialize, Serialize};

use crate::kinds::TOOL_RESULT;
use crate::live::{Severity, ToolDiagnostic, ToolSlot};
use crate::usage::count_tool;

/// Why a result was written by the harness (section 7.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolCode {
    /// The tool was not offered or is not registered.
    ToolUnavailable,
    /// The arguments do not fit.
    InvalidArguments,
    /// A hook said no.
    Blocked,
    /// It was cut off and must not run again.
    Interrupted,
    /// It was aborted.
    Aborted,
    /// It threw.
    ToolError,
}

impl ToolCode {
    /// The stored word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ToolUnavailable => "tool_unavailable",
            Self::InvalidArguments => "invalid_arguments",
            Self::Blocked => "blocked",
            Self::Interrupted => "interrupted",
            Self::Aborted => "aborted",
            Self::ToolError => "tool_error",
        }
    }

    /// The diagnostic of the code.
    #[must_use]
    pub fn diagnostic(self, message: impl Into<String>) -> ToolDiagnostic {
        ToolDiagnostic { severity: Severity::Error, message: message.into(), code: Some(self.as_str().to_owned()) }
    }
}

/// The text block that ends a result with diagnostics; `None` without any (section 7.3).
#[must_use]
pub fn diagnostics_block(diagnostics: &[ToolDiagnostic]) -> Option<String> {
    if diagnostics.is_empty() {
        return None;
    }
    let lines: Vec<String> = diagnostics.iter().map(|d| format!("[{}] {}", d.severity.as_str(), d.message)).collect();
    Some(format!("<harness>\n{}\n</harness>", lines.join("\n")))
}

/// What a result entry is made of.
pub(crate) struct ResultParts {
    pub(crate) content: Vec<UserBlock>,
    pub(crate) is_error: bool,
    pub(crate) details: Option<Json>,
    pub(crate) diagnostics: Vec<ToolDiagnostic>,
    pub(crate) usage: Option<Usage>,
    pub(crate) duration_ms: Option<f64>,
}

/// Appends a result entry and counts its usage.
pub(crate) async fn append_result(tx: &Tx, conversation: ConversationId, call: &ToolCall, parts: ResultParts) -> Result<EntryId, TxError> {
    let ResultParts { mut content, is_error, details, diagnostics, usage, duration_ms } = parts;
    let usage = usage.map(picofleet_models::usage::bounded);
    content.extend(diagnostics_block(&diagnostics).map(|block| UserBlock::Text(TextContent::new(block))));
    if let Some(usage) = &usage {
        count_tool(tx, conversation, &call.name, usage).await?;
    }
    let diagnostics = Json::from_serde(&diagnostics).map_err(|error| not_json(&error))?;
    let message = ToolResultMessage {
        tool_call_id: call.id.clone(),
        tool_name: call.name.clone(),
        content,
        details,
        usage,
        nested_calls: None,
        is_error,
        timestamp: tx.now(),
        duration_ms,
    };
    let entry = EntryDraft::new(TOOL_RESULT.kind).model(vec![Message::from(message)]).data(Json::object([("diagnostics", diagnostics)]));
    Ok(tx.append_entry(conversation, entry).await?.id)
}

fn not_json(error: &impl std::fmt::Display) -> TxError {
    TxError::Definition(picofleet_session::DefinitionError::NotJson {
        call: "a tool result",
        kind: TOOL_RESULT.kind,
        why: error.to_string(),
    })
}

/// Appends an error result that the harness writes itself, from what the slot has of the call.
pub(crate) async fn append_error_result(
    tx: &Tx,
    conversation: ConversationId,
    call: &ToolCall,
    code: ToolCode,
    text: &str,
    slot: Option<&ToolSlot>,
) -> Result<EntryId, TxError> {
    let output = slot.and_then(|slot| slot.output.clone()).filter(|output| !output.is_empty());
    let mut diagnostics = slot.and_then(|slot| slot.diagnostics.clone()).unwrap_or_default();
    diagnostics.push(code.diagnostic(text));
    let parts = ResultParts {
        content: output.map(|output| UserBlock::Text(TextContent::new(output))).into_iter().collect(),
        is_error: true,
        details: slot.and_then(|slot| slot.details.clone()),
        diagnostics,
        usage: None,
        duration_ms: None,
    };
    append_result(tx, conversation, call, parts).await
}
