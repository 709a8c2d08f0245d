//! Looking at what a conversation has.

use picofleet_harness::host::{Conversation, EntryRange};
use picofleet_harness::inbox::InboxItem;
use picofleet_harness::inspection::TaskView;
use picofleet_session::message::{AssistantBlock, Message, TextOrBlocks, UserBlock};
use picofleet_session::{ConversationId, EntryRecord, Json, SubmissionId, TaskId, TaskRecord};

use crate::Kit;

impl Kit {
    /// Every entry of a conversation, oldest first.
    pub async fn entries(&self, conversation: &Conversation) -> Vec<EntryRecord> {
        let mut all = Vec::new();
        let mut cursor = None;
        loop {
            let page = conversation.entries(EntryRange::default(), 100, cursor).await.unwrap();
            all.extend(page.items);
            cursor = page.next;
            if cursor.is_none() {
                all.reverse();
                return all;
            }
        }
    }

    /// The kinds of the root conversation's entries, oldest first; user entries and notes with their text, system entries left out.
    pub async fn said(&self) -> Vec<String> {
        let entries = self.entries(&self.root().await).await;
        let name = |entry: &EntryRecord| match text(entry) {
            text if text.is_empty() => entry.kind.clone(),
            text => format!("{}:{text}", entry.kind),
        };
        entries.iter().filter(|entry| entry.kind != "pi.system").map(name).collect()
    }

    /// The kinds of the root conversation's entries, oldest first.
    pub async fn kinds(&self) -> Vec<String> {
        self.entries(&self.root().await).await.into_iter().map(|entry| entry.kind).collect()
    }

    /// What waits in the root conversation: ids with their modes.
    pub async fn inbox(&self) -> Vec<(SubmissionId, &'static str)> {
        let items = self.root().await.inbox().await.unwrap().items;
        items
            .iter()
            .map(|item| match item {
                InboxItem::Steer { id, .. } => (*id, "steer"),
                InboxItem::FollowUp { id, .. } => (*id, "followUp"),
                InboxItem::Write { id, .. } => (*id, "write"),
            })
            .collect()
    }

    /// A built-in document of the root conversation.
    pub async fn document(&self, kind: &str) -> Json {
        self.root().await.document(kind).await.unwrap().unwrap_or(Json::null())
    }

    /// The inputs of the root conversation's run; `None` while it is idle.
    pub async fn run(&self) -> Option<(TaskId, Vec<SubmissionId>)> {
        self.root().await.live().await.unwrap().run.map(|run| (run.task_id, run.inputs))
    }

    /// A task.
    pub async fn task(&self, id: TaskId) -> TaskRecord {
        self.harness().get_task(id).await.unwrap().expect("the task is there")
    }

    /// Every task of a kind, also those that are over, in the order of ids.
    pub async fn tasks(&self, kind: &str) -> Vec<TaskRecord> {
        // Ids are of one session. Behind the newest entry come those of its own commit and of the next few.
        let newest = self.entries(&self.root().await).await.last().map_or(0, |entry| entry.id.get());
        let mut found = Vec::new();
        for id in (1..newest + 32).filter_map(|id| TaskId::new(id).ok()) {
            found.extend(self.harness().get_task(id).await.unwrap().filter(|task| task.kind == kind));
        }
        found
    }

    /// Where a live task is, as an inspection shows it.
    pub async fn view(&self, id: TaskId) -> TaskView {
        let inspection = self.harness().inspect().await.unwrap();
        inspection.tasks.into_iter().find(|task| task.record.id == id).expect("the task is live").state
    }

    /// A conversation of the session.
    pub async fn conversation(&self, id: ConversationId) -> Conversation {
        self.harness().conversation(id).await.unwrap().expect("the conversation is there")
    }
}

/// The text of an entry's first message; empty where it has none.
pub fn text(entry: &EntryRecord) -> String {
    let texts = |content: &TextOrBlocks<UserBlock>| match content {
        TextOrBlocks::Text(text) => text.clone(),
        TextOrBlocks::Blocks(blocks) => {
            blocks.iter().filter_map(|block| if let UserBlock::Text(text) = block { Some(text.text.clone()) } else { None }).collect()
        }
    };
    match entry.model.as_ref().and_then(|model| model.first()) {
        Some(Message::User(message)) => texts(&message.content),
        Some(Message::Assistant(message)) => message
            .content
            .iter()
            .filter_map(|block| if let AssistantBlock::Text(text) = block { Some(text.text.clone()) } else { None })
            .collect(),
        _ => String::new(),
    }
}

/// The code of a tool result's last diagnostic; empty where it has none.
pub fn last_code(entry: &EntryRecord) -> String {
    let diagnostics = entry.data.as_ref().and_then(|data| data.get("diagnostics")).and_then(Json::as_array);
    let last = diagnostics.and_then(|all| all.iter().last().and_then(|last| last.get("code").and_then(Json::as_str)));
    last.map(std::borrow::Cow::into_owned).unwrap_or_default()
}
