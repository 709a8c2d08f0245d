//! Background subagents in a scenario: what is registered, a model that parents and subagents share, and what is stored in the end of all
//! that was said to them.

use std::sync::Arc;

use picofleet_harness::config::ConfigPatch;
use picofleet_harness::kind::TaskKind as _;
use picofleet_harness::registry::Registry;
use picofleet_harness::task::LineTasks;
use picofleet_session::message::Message;
use picofleet_session::storage::{ConversationQuery, EntryQuery, SessionReader, TaskQuery};
use picofleet_session::{ConversationId, ConversationRecord, EntryRecord, ROOT_CONVERSATION_ID, SubmissionId, TaskId, TaskRecord};

use crate::background::{Anchor, Reporter, Tell};
use crate::{Kit, Reply, Stage, status};

/// Registers the tool `tell` and its two tasks; the conversations of subagents have this configuration.
pub fn register(registry: &Registry, config: ConfigPatch) {
    registry.tool(Tell::new(config)).unwrap();
    registry.task(Arc::new(Anchor)).unwrap();
    registry.task(Arc::new(Reporter)).unwrap();
}

/// A call that says something to a subagent.
pub fn tell(name: &str, text: &str) -> Reply {
    Reply::call(&format!("tell-{name}"), "tell", &format!(r#"{{"name":"{name}","text":"{text}"}}"#))
}

/// What the user of a request said last.
pub fn said(messages: &[Message]) -> String {
    messages.iter().rfind(|message| matches!(message, Message::User(_))).map(Message::text).unwrap_or_default()
}

/// The model of parents and subagents. `go NAME` makes a parent tell NAME to work; NAME does it; the parent hears of it.
pub fn answers(messages: &[Message]) -> Option<Reply> {
    let last = messages.iter().rposition(|message| matches!(message, Message::User(_)))?;
    let said = said(messages);
    let told = messages[last..].iter().any(|message| matches!(message, Message::ToolResult(_)));
    if let Some(name) = said.strip_prefix("go ") {
        return Some(if told { Reply::text(&format!("sent {name}")) } else { tell(name, &format!("work for {name}")) });
    }
    if let Some(name) = said.strip_prefix("work for ") {
        return Some(Reply::text(&format!("done by {name}")));
    }
    let (name, _) = said.split_once(": ")?;
    Some(Reply::text(&format!("heard {name}")))
}

/// What is stored of what was said to subagents.
#[derive(PartialEq, Eq, Debug)]
pub struct Told {
    /// Their anchors' states.
    pub anchors: Vec<String>,
    /// What each of them was told, in the order of their conversations.
    pub heard: Vec<Vec<String>>,
    /// The reporters' states.
    pub reporters: Vec<String>,
    /// What their parent heard of them.
    pub answers: Vec<String>,
}

impl Told {
    /// What there is where subagents of these names were each told once to work, and everything ended well.
    pub fn once(names: &[String]) -> Self {
        let completed = || names.iter().map(|_| "terminal completed".to_owned()).collect();
        Self {
            anchors: completed(),
            heard: names.iter().map(|name| vec![format!("work for {name}")]).collect(),
            reporters: completed(),
            answers: names.iter().map(|name| format!("{name}: done by {name}")).collect(),
        }
    }

    /// As it is stored of the subagents of the root conversation.
    pub async fn of(reader: &dyn SessionReader) -> Self {
        Self::by(reader, ROOT_CONVERSATION_ID).await
    }

    /// As it is stored where this conversation is the only one that has subagents.
    pub async fn by(reader: &dyn SessionReader, parent: ConversationId) -> Self {
        let mut tasks: Vec<TaskRecord> = Vec::new();
        let mut cursor = None;
        loop {
            let page = reader.scan_tasks(TaskQuery::default(), 100, cursor).await.unwrap();
            tasks.extend(page.items);
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        let of_kind = |kind: &str| tasks.iter().filter(|task| task.kind == kind).map(status).collect();
        let is_anchor = |id: TaskId| tasks.iter().any(|task| task.id == id && task.kind == Anchor::NAME);
        let conversations = reader.scan_conversations(ConversationQuery::default(), 100, None).await.unwrap().items;
        let owned = |record: &&ConversationRecord| record.owner.is_some_and(|owner| is_anchor(owner.task_id));
        let mut heard = Vec::new();
        for subagent in conversations.iter().filter(owned) {
            heard.push(users(reader, subagent.id).await);
        }
        let answers = users(reader, parent).await.into_iter().filter(|said| said.contains(": ")).collect();
        Self { anchors: of_kind(Anchor::NAME), heard, reporters: of_kind(Reporter::NAME), answers }
    }
}

/// What users said in a conversation, oldest first.
async fn users(reader: &dyn SessionReader, conversation: ConversationId) -> Vec<String> {
    let entries = reader.scan_entries(EntryQuery::all(conversation), 1_000, None).await.unwrap().items;
    let mut said: Vec<EntryRecord> = entries.into_iter().filter(|entry| entry.kind == "pi.user").collect();
    said.sort_by_key(|entry| entry.id);
    said.iter().map(EntryRecord::text).collect()
}

impl Kit {
    /// Starts again with background subagents, which have these tools, and with the model of [`answers`].
    pub async fn scouts(&mut self, tools: &[&str]) {
        self.stop().await;
        let tools = tools.iter().map(|&tool| tool.to_owned()).collect();
        let config = ConfigPatch { model: Some(Some(Stage::model_ref())), active_tools: Some(tools), ..ConfigPatch::default() };
        register(&self.registry, config);
        self.tasks = LineTasks::of(&self.registry);
        self.stage.answer_by(answers);
        self.reopen().await;
        self.root().await.set_active_tools(["tell", "gate"]).await.unwrap();
    }

    /// Waits until every reporter is over and what they brought is answered.
    pub async fn reporters_are_over(&self) {
        for task in self.tasks(Reporter::NAME).await {
            self.outcome::<SubmissionId>(task.id.assume()).await;
        }
        self.root().await.wait_for_idle().await.unwrap();
    }

    /// What is stored of what was said to subagents.
    pub async fn told(&self) -> Told {
        Told::of(&*self.reader().await).await
    }
}
