//! A foreground subagent as an application writes it with the public interface (section 7.3).

use futures::future::BoxFuture;
use picofleet_harness::config::{CONFIG, ConfigPatch};
use picofleet_harness::effects::Fault;
use picofleet_harness::runtime::BoundConversation;
use picofleet_harness::submission::SubmissionDraft;
use picofleet_harness::tool::Replay;
use picofleet_harness::tools::{Tool, ToolApi, ToolError, ToolResult, ToolSpec};
use picofleet_session::{ConversationId, ConversationOwnership, InputState, Json, SubmissionState, TaskId};

use crate::text;

/// Asks a conversation of its own and gives its answer. A rerun goes on with what the run before it made.
pub struct Subagent {
    spec: ToolSpec,
    config: ConfigPatch,
}

impl Subagent {
    /// A tool with a `prompt`, whose conversations have this configuration.
    pub fn new(name: &str, config: ConfigPatch) -> Self {
        let prompt = br#"{"type":"object","properties":{"prompt":{"type":"string"}},"required":["prompt"]}"#;
        let spec = ToolSpec::new(name, "asks a subagent", Json::parse(prompt).unwrap());
        Self { spec: ToolSpec { replay: Replay::Safe, ..spec }, config }
    }

    /// The request id of a call's one submission: a provider's call id is not unique in a session, the task's id is.
    pub fn request_id(task: TaskId) -> String {
        format!("subagent-{task}")
    }

    async fn child(&self, api: &ToolApi) -> Result<ConversationId, Fault> {
        let task = api.task_id();
        if let Some(found) = api.conversations_of(task).await?.first() {
            return Ok(found.id);
        }
        let config = self.config.clone();
        api.commit(async |tx| {
            let child = tx.create_conversation(ConversationOwnership::Task { task_id: task }).await?.id;
            tx.doc(&CONFIG, child).await?.edit(|value| config.apply(value))?;
            Ok::<_, Fault>(child)
        })
        .await
    }

    async fn ask(&self, api: &ToolApi, child: &BoundConversation, prompt: &str) -> Result<ToolResult, ToolError> {
        let draft = SubmissionDraft::input(prompt).request_id(Self::request_id(api.task_id()));
        let record = child.submit(draft).await?.wait().await?;
        match record.state {
            SubmissionState::Input(InputState::Done { answer, .. }) => {
                let entry = api.commit(async |tx| Ok::<_, Fault>(tx.entry(answer).await?)).await?;
                Ok(ToolResult::text(entry.map(|entry| text(&entry)).unwrap_or_default()))
            }
            SubmissionState::Input(InputState::Unanswered { reason, .. }) => Err(ToolError::new(format!("no answer: {reason}"))),
            other => Err(ToolError::new(format!("no answer: {other:?}"))),
        }
    }
}

impl Tool for Subagent {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn execute<'a>(&'a self, arguments: Json, api: ToolApi) -> BoxFuture<'a, Result<ToolResult, ToolError>> {
        Box::pin(async move {
            let prompt = arguments.get("prompt").and_then(Json::as_str).unwrap_or_default().into_owned();
            let child = self.child(&api).await?;
            // Shown while it waits; the result's commit is the last that can bring it.
            let _shown = api.details(Json::object([("conversationId", child.get())]))?;
            let child = api.conversation(child).await?.ok_or_else(|| ToolError::new("the subagent's conversation is gone"))?;
            self.ask(&api, &child, &prompt).await
        })
    }
}
