//! A foreground subagent: a tool that asks a conversation of its own and gives its answer.
//!
//! The owner edge is the only record of the child. A call that is run again, behind a crash, finds the child that it made before, and
//! its submission by the request id: the child hears the question once.

use futures::future::BoxFuture;
use picofleet_harness::config::{CONFIG, ConfigPatch};
use picofleet_harness::effects::Fault;
use picofleet_harness::submission::SubmissionDraft;
use picofleet_harness::tool::Replay;
use picofleet_harness::tools::{Tool, ToolApi, ToolError, ToolResult, ToolSpec};
use picofleet_session::{ConversationId, ConversationOwnership, InputState, Json, SubmissionState, TaskId};

/// Asks a conversation of its own. An abort of the call stops it: it owns the conversation.
pub struct Subagent {
    spec: ToolSpec,
    config: ConfigPatch,
}

impl Subagent {
    /// A tool with a `prompt`, whose conversations have this configuration.
    #[must_use]
    pub fn new(name: &str, config: ConfigPatch) -> Self {
        let prompt = Json::object([("type", "string")]);
        let schema = Json::build_object()
            .with("type", "object")
            .with("properties", Json::object([("prompt", prompt)]))
            .with("required", Json::array(["prompt"]))
            .build();
        let mut spec = ToolSpec::new(name, "asks a subagent", schema);
        // It goes on with what it made before.
        spec.replay = Replay::Safe;
        Self { spec, config }
    }

    /// The request id of a call's one submission. A provider's name of the call is not unique in a session; the task's id is.
    #[must_use]
    pub fn request_id(task: TaskId) -> String {
        format!("subagent-{task}")
    }

    /// The call's conversation: the one that an earlier run made, or a new one.
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

    async fn ask(&self, api: &ToolApi, child: ConversationId, prompt: &str) -> Result<ToolResult, ToolError> {
        let child = api.conversation(child).await?.ok_or_else(|| ToolError::new("the subagent's conversation is gone"))?;
        let draft = SubmissionDraft::input(prompt).request_id(Self::request_id(api.task_id()));
        // The worker's slot is free while it waits.
        let record = child.submit(draft).await?.wait().await?;
        match record.state {
            SubmissionState::Input(InputState::Done { answer, .. }) => {
                let entry = api.commit(async |tx| Ok::<_, Fault>(tx.entry(answer).await?)).await?;
                Ok(ToolResult::text(entry.map(|entry| entry.text()).unwrap_or_default()))
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
            // For who watches the call: this is the conversation to look at. The result's commit is the last that can bring it.
            let _shown = api.details(Json::object([("conversationId", child.get())]))?;
            self.ask(&api, child, &prompt).await
        })
    }
}
