//! Background subagents: named conversations that outlive the turns of their parent and can be spoken to again.
//!
//! One commit of the tool makes what there is of a new subagent: an anchor task, which is background work of the parent and owns the
//! subagent's conversation, and the mapping from the name to both. The parent's ordinary abort and its idleness stop at the anchor; an
//! abort with background crosses it.
//!
//! Each message has a reporter, another background task of the parent. It submits the message to the subagent, waits for the answer, and
//! submits that to the parent, which gets it as soon as it has nothing else to do. Its request ids come from its own id, so that a
//! crash anywhere leads to one message and one answer.

use std::collections::BTreeMap;

use futures::future::BoxFuture;
use picofleet_harness::config::{CONFIG, ConfigPatch};
use picofleet_harness::effects::Fault;
use picofleet_harness::kind::{Next, NoDecision, Outcome, Running, TaskKind, TaskOptions, TxTasks as _};
use picofleet_harness::runtime::{BoundConversation, TaskRuntime};
use picofleet_harness::submission::{SubmissionDraft, WhenBusy};
use picofleet_harness::tool::Replay;
use picofleet_harness::tools::{Tool, ToolApi, ToolError, ToolResult, ToolSpec};
use picofleet_session::{
    ConversationId, ConversationOwnership, DocDefinition, DocToken, InTask, Initial, InputState, Json, Latest, SubmissionId,
    SubmissionRecord, SubmissionState, TaskError, TaskId, Tx, every,
};
use serde::{Deserialize, Serialize};

/// The subagents of a conversation. A fork begins without any: they report to the conversation that made them.
pub static SUBAGENTS: DocToken<Subagents, Latest<Initial>> =
    DocToken::new("example.subagents", 1, || DocDefinition { initial: Subagents::default, migrate: None, checkpoint_when: every::<16> });

/// What a call of the tool has sent. It goes with the call's task, and until then keeps a rerun of the call from sending it again.
static SENT: DocToken<Sent, InTask> =
    DocToken::new("example.sent", 1, || DocDefinition { initial: Sent::default, migrate: None, checkpoint_when: every::<16> });

/// Subagents by name.
#[derive(Default, Serialize, Deserialize)]
pub struct Subagents {
    /// By name.
    pub named: BTreeMap<String, Named>,
}

/// A subagent.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Named {
    /// What owns its conversation.
    pub anchor: TaskId<()>,
    /// Where it works.
    pub conversation: ConversationId,
}

#[derive(Default, Serialize, Deserialize)]
struct Sent {
    reporter: Option<TaskId<SubmissionId>>,
}

/// The tool `tell`: says something to a subagent, which is made where there is none with that name, and does not wait.
pub struct Tell {
    spec: ToolSpec,
    config: ConfigPatch,
}

#[derive(Deserialize)]
struct Arguments {
    name: String,
    text: String,
}

impl Tell {
    /// The tool; its subagents have this configuration.
    #[must_use]
    pub fn new(config: ConfigPatch) -> Self {
        let text = Json::object([("type", "string")]);
        let schema = Json::build_object()
            .with("type", "object")
            .with("properties", Json::object([("name", text.clone()), ("text", text)]))
            .with("required", Json::array(["name", "text"]))
            .build();
        let mut spec = ToolSpec::new("tell", "says something to a subagent; its answer comes later, as a message", schema);
        spec.replay = Replay::Safe;
        Self { spec, config }
    }

    /// The subagent with this name.
    async fn subagent(&self, tx: &Tx, parent: ConversationId, name: &str) -> Result<ConversationId, Fault> {
        let subagents = tx.doc(&SUBAGENTS, parent).await?;
        if let Some(known) = subagents.read()?.named.get(name) {
            return Ok(known.conversation);
        }
        let anchor = tx.create_task(&Anchor, name.to_owned(), TaskOptions::top_level().background()).await?;
        let conversation = tx.create_conversation(ConversationOwnership::Task { task_id: anchor.erase() }).await?.id;
        tx.doc(&CONFIG, conversation).await?.edit(|value| self.config.clone().apply(value))?;
        subagents.edit(|subagents| subagents.named.insert(name.to_owned(), Named { anchor, conversation }))?;
        Ok(conversation)
    }

    async fn tell(&self, api: &ToolApi, said: Arguments) -> Result<(), Fault> {
        let (call, parent) = (api.task_id(), api.conversation_id());
        api.commit(async |tx| {
            let sent = tx.doc(&SENT, call).await?;
            if sent.read()?.reporter.is_some() {
                return Ok::<_, Fault>(());
            }
            let Arguments { name, text } = said;
            let to = self.subagent(tx, parent, &name).await?;
            let reporter = tx.create_task(&Reporter, Message { to, name, text }, TaskOptions::top_level().background()).await?;
            sent.edit(|sent| sent.reporter = Some(reporter))?;
            Ok(())
        })
        .await
    }
}

impl Tool for Tell {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn execute<'a>(&'a self, arguments: Json, api: ToolApi) -> BoxFuture<'a, Result<ToolResult, ToolError>> {
        Box::pin(async move {
            let said: Arguments = arguments.to().map_err(|error| ToolError::new(error.to_string()))?;
            let told = format!("{} was told; the answer comes later", said.name);
            self.tell(&api, said).await?;
            Ok(ToolResult::text(told))
        })
    }
}

/// Owns the conversation of a subagent. It completes at once, and is held while its conversation works.
pub struct Anchor;

/// The only place of an anchor.
#[derive(Clone, Serialize, Deserialize)]
#[serde(tag = "phase", rename_all = "camelCase")]
pub enum Anchoring {
    /// It ends.
    End,
}

impl TaskKind for Anchor {
    const NAME: &'static str = "example.anchor";
    const VERSION: u32 = 1;
    type Input = String;
    type Checkpoint = Anchoring;
    type Output = ();
    type Decision = NoDecision;
    type Hooks = ();

    fn initial(&self, _: &String) -> Anchoring {
        Anchoring::End
    }

    async fn run(&self, _: Running<Self>, runtime: TaskRuntime<Self>) -> Result<(), Fault> {
        runtime.commit(async |_, _| Ok::<_, Fault>(Next::End(Outcome::Completed(())))).await
    }

    async fn abort(&self, _: Running<Self>, runtime: TaskRuntime<Self>) -> Result<(), Fault> {
        runtime.commit(async |_, _| Ok::<_, Fault>(Next::End(Outcome::Aborted { reason: None, result: None }))).await
    }
}

/// What a reporter delivers.
#[derive(Serialize, Deserialize)]
pub struct Message {
    /// The subagent.
    pub to: ConversationId,
    /// Its name.
    pub name: String,
    /// What it is told.
    pub text: String,
}

/// Delivers a message to a subagent and brings its answer to the parent. It results in the submission of the answer.
pub struct Reporter;

/// Where a reporter is.
#[derive(Clone, Serialize, Deserialize)]
#[serde(tag = "phase", rename_all = "camelCase")]
pub enum Reporting {
    /// The message is to be delivered, and its answer awaited.
    Deliver,
    /// The answer is to be brought to the parent.
    Answer {
        /// What it is.
        text: String,
    },
}

impl Reporter {
    /// The request ids of a reporter's two submissions.
    fn request_id(task: TaskId<SubmissionId>, what: &str) -> String {
        format!("reporter-{task}-{what}")
    }

    async fn deliver(&self, task: Running<Self>, runtime: TaskRuntime<Self>) -> Result<(), Fault> {
        let subagent = conversation(&runtime, task.input.to).await?;
        let draft = SubmissionDraft::input(task.input.text.as_str()).request_id(Self::request_id(task.id, "message"));
        let settled = subagent.submit(draft).await?.wait().await?;
        runtime
            .commit(async |tx, _| {
                let text = answer(tx, &settled).await?;
                Ok::<_, Fault>(Next::Checkpoint(Reporting::Answer { text }))
            })
            .await
    }

    async fn answer(&self, task: Running<Self>, runtime: TaskRuntime<Self>, text: &str) -> Result<(), Fault> {
        let parent = conversation(&runtime, task.conversation).await?;
        let draft = SubmissionDraft::input(format!("{}: {text}", task.input.name)).when_busy(WhenBusy::FollowUp);
        let posted = parent.submit(draft.request_id(Self::request_id(task.id, "answer"))).await?.id();
        runtime.commit(async |_, _| Ok::<_, Fault>(Next::End(Outcome::Completed(posted)))).await
    }
}

/// A handle of a conversation that is there as long as the session.
async fn conversation(runtime: &TaskRuntime<Reporter>, id: ConversationId) -> Result<BoundConversation, Fault> {
    let missing = || Fault::Failed(TaskError { message: format!("conversation {id} is gone"), detail: None });
    runtime.conversation(id).await?.ok_or_else(missing)
}

/// What came back of a message.
async fn answer(tx: &Tx, settled: &SubmissionRecord) -> Result<String, Fault> {
    match &settled.state {
        SubmissionState::Input(InputState::Done { answer, .. }) => {
            Ok(tx.entry(*answer).await?.map(|entry| entry.text()).unwrap_or_default())
        }
        SubmissionState::Input(InputState::Unanswered { reason, .. }) => Ok(format!("no answer ({reason})")),
        other => Ok(format!("no answer ({other:?})")),
    }
}

impl TaskKind for Reporter {
    const NAME: &'static str = "example.reporter";
    const VERSION: u32 = 1;
    type Input = Message;
    type Checkpoint = Reporting;
    type Output = SubmissionId;
    type Decision = NoDecision;
    type Hooks = ();

    fn initial(&self, _: &Message) -> Reporting {
        Reporting::Deliver
    }

    async fn run(&self, task: Running<Self>, runtime: TaskRuntime<Self>) -> Result<(), Fault> {
        match task.checkpoint.clone() {
            Reporting::Deliver => self.deliver(task, runtime).await,
            Reporting::Answer { text } => self.answer(task, runtime, &text).await,
        }
    }

    /// A message that was delivered stays: the subagent is stopped in its own conversation.
    async fn abort(&self, _: Running<Self>, runtime: TaskRuntime<Self>) -> Result<(), Fault> {
        runtime.commit(async |_, _| Ok::<_, Fault>(Next::End(Outcome::Aborted { reason: None, result: None }))).await
    }
}
