//! A workspace for each conversation: tools reach files through the environment of their call, and wrappers choose it.
//!
//! `cargo run -p picofleet-examples --bin workspace`

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use futures::future::BoxFuture;
use picofleet_examples::{App, Place, say, show};
use picofleet_harness::config::ConfigPatch;
use picofleet_harness::host::{Conversation, ConversationOptions};
use picofleet_harness::registry::{ConversationSetup, Registry};
use picofleet_harness::submission::SubmissionDraft;
use picofleet_harness::tools::{SharedTool, Tool, ToolApi, ToolError, ToolResult, ToolSpec};
use picofleet_session::{ConversationRecord, Current, DocDefinition, DocToken, Json, Latest, Tx, TxError, every};
use picofleet_tools::{LocalEnv, LocalOptions, Read, Write};
use serde::{Deserialize, Serialize};

const SCRIPT: &str = r#"
[[turns]]
when = { turn = 0, user = "red" }
blocks = [{ type = "toolCall", name = "write", arguments = { path = "note.txt", content = "red" } }]
[[turns]]
when = { turn = 0, user = "blue" }
blocks = [{ type = "toolCall", name = "write", arguments = { path = "note.txt", content = "blue" } }]
[[turns]]
when = { turn = 1 }
blocks = [{ type = "toolCall", name = "read", arguments = { path = "note.txt" } }]
[[turns]]
when = { turn = 2 }
blocks = [{ type = "text", chunks = ["That is what the note says."] }]
"#;

/// Where a conversation works. A fork works where its parent does.
static WORKSPACE: DocToken<Workspace, Latest<Current>> =
    DocToken::new("example.workspace", 1, || DocDefinition { initial: Workspace::default, migrate: None, checkpoint_when: every::<16> });

#[derive(Default, Serialize, Deserialize)]
struct Workspace {
    folder: String,
}

/// Gives every new conversation a workspace that is named after it, in the commit that makes it.
struct OwnWorkspace;

impl ConversationSetup for OwnWorkspace {
    fn setup<'a>(&'a self, tx: &'a Tx, conversation: &'a ConversationRecord, _: &'a [String]) -> BoxFuture<'a, Result<(), TxError>> {
        Box::pin(async move {
            let workspace = tx.doc(&WORKSPACE, conversation.id).await?;
            workspace.edit(|workspace| workspace.folder = format!("conversation-{}", conversation.id))
        })
    }
}

/// A tool with another environment: the workspace of its conversation. What it is about, and how, stays the tool's.
struct InWorkspace {
    tool: SharedTool,
    folder: PathBuf,
}

impl InWorkspace {
    async fn env(&self, api: &ToolApi) -> Result<LocalEnv, ToolError> {
        let workspace = api.snapshot(&WORKSPACE, api.conversation_id()).await?.unwrap_or_default();
        // A call that runs again behind a crash works where it worked, although the conversation may have moved.
        let folder = api.memo("workspace", &workspace.folder).await?;
        let options = LocalOptions::new(self.folder.join(folder), self.folder.join("output"));
        // It makes folders: not on a thread that others wait for.
        let opened = tokio::task::spawn_blocking(move || LocalEnv::open(options)).await;
        opened.map_err(|error| ToolError::new(error.to_string()))?.map_err(|error| ToolError::new(error.to_string()))
    }
}

impl Tool for InWorkspace {
    fn spec(&self) -> &ToolSpec {
        self.tool.spec()
    }

    fn prepare_arguments(&self, arguments: Json) -> Result<Json, ToolError> {
        self.tool.prepare_arguments(arguments)
    }

    fn execute<'a>(&'a self, arguments: Json, api: ToolApi) -> BoxFuture<'a, Result<ToolResult, ToolError>> {
        Box::pin(async move {
            let env = self.env(&api).await?;
            self.tool.execute(arguments, api.with_env(Arc::new(env))).await
        })
    }
}

fn registry(folder: &Path) -> anyhow::Result<Registry> {
    let registry = Registry::new();
    registry.batch(|stage| {
        stage.tool(Read::default())?;
        stage.tool(Write::default())?;
        for name in ["read", "write"] {
            let folder = folder.to_owned();
            // A wrapper is a function of a tool: a tool that is replaced later is wrapped, too.
            stage.wrap_tool(name, "workspace", move |tool| Ok(Arc::new(InWorkspace { tool, folder: folder.clone() })))?;
        }
        stage.setup("workspace", OwnWorkspace)
    })?;
    Ok(registry)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let place = Place::of_arguments(&[])?;
    let app = App::open(place.folder(), registry(place.folder())?, SCRIPT).await?;
    let config = ConfigPatch { model: Some(Some(picofleet::scripted_model())), ..ConfigPatch::default() };
    let other = app.harness.create_conversation(ConversationOptions::ownerless().config(config).key("other")).await?;
    // Both at once: neither sees the other's files.
    tokio::try_join!(note(&app.root, "red"), note(&other, "blue"))?;
    for conversation in [&app.root, &other] {
        let workspace = app.harness.snapshot(&WORKSPACE, conversation.id()).await?.context("it has no workspace")?;
        let note = place.folder().join(&workspace.folder).join("note.txt");
        say(format_args!("Conversation {} works in {}:", conversation.id(), workspace.folder));
        show(conversation).await?;
        say(format_args!("  its note.txt has: {}", std::fs::read_to_string(note)?));
    }
    app.close().await
}

async fn note(conversation: &Conversation, color: &str) -> anyhow::Result<()> {
    let draft = SubmissionDraft::input(format!("Write down {color} and read it.")).request_id("note");
    conversation.submit(draft).await?.wait().await?;
    Ok(())
}
