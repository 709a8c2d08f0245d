//! Hooks that guard a run: one blocks dangerous commands, one rewrites arguments, one takes secrets out of results, and one trims what
//! every request costs. The transcript keeps what was said; only what tools and models get is changed.
//!
//! `cargo run -p picofleet-examples --bin guard_hooks`

use std::sync::Arc;

use futures::future::BoxFuture;
use picofleet_examples::{App, Place, say, show};
use picofleet_harness::hooks::{BeforeTool, GenerationHooks, GenerationTask, HookApi, HookResult, ToolHooks, ToolTask};
use picofleet_harness::registry::Registry;
use picofleet_harness::submission::SubmissionDraft;
use picofleet_harness::tools::{Tool, ToolApi, ToolError, ToolResult, ToolSpec};
use picofleet_session::Json;
use picofleet_session::message::{Message, TextContent, ToolCall, UserBlock};

const SCRIPT: &str = r#"
[[turns]]
blocks = [{ type = "toolCall", name = "shell", arguments = { command = "rm -rf /" } }]
[[turns]]
blocks = [{ type = "toolCall", name = "shell", arguments = { command = "deploy" } }]
[[turns]]
blocks = [{ type = "toolCall", name = "shell", arguments = { command = "print-config" } }]
[[turns]]
blocks = [{ type = "text", chunks = ["Nothing was deleted, and nothing deployed yet."] }]
"#;

/// What of an old result a request still has.
const KEPT_CHARS: usize = 20;

/// A command line that runs nothing.
struct Shell(ToolSpec);

impl Shell {
    fn new() -> Self {
        let properties = Json::object([("command", Json::object([("type", "string")]))]);
        let schema = Json::build_object().with("type", "object").with("properties", properties).build();
        Self(ToolSpec::new("shell", "runs a command", schema))
    }
}

impl Tool for Shell {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn execute<'a>(&'a self, arguments: Json, _: ToolApi) -> BoxFuture<'a, Result<ToolResult, ToolError>> {
        Box::pin(async move {
            let command = command(&arguments);
            Ok(ToolResult::text(match command.as_str() {
                "print-config" => "host = example.com, password = hunter2".to_owned(),
                command => format!("ran: {command}"),
            }))
        })
    }
}

fn command(arguments: &Json) -> String {
    arguments.get("command").and_then(Json::as_str).unwrap_or_default().into_owned()
}

/// Blocks what deletes. A block is an answer to the model, which goes on; an error of this hook would block, too.
struct NoDeletion;

impl ToolHooks for NoDeletion {
    fn before_tool<'a>(&'a self, call: &'a ToolCall, _: &'a HookApi) -> HookResult<'a, BeforeTool> {
        Box::pin(async move {
            let dangerous = command(&call.arguments).starts_with("rm ");
            Ok(dangerous.then(|| BeforeTool::block("commands that delete are not allowed here")))
        })
    }
}

/// Makes deployments dry, and takes passwords out of results.
struct Careful;

impl ToolHooks for Careful {
    fn before_tool<'a>(&'a self, call: &'a ToolCall, _: &'a HookApi) -> HookResult<'a, BeforeTool> {
        Box::pin(async move {
            let command = command(&call.arguments);
            let dry = || BeforeTool::arguments(Json::object([("command", format!("{command} --dry-run"))]));
            Ok((command == "deploy").then(dry))
        })
    }

    fn after_tool<'a>(&'a self, _: &'a ToolCall, result: &'a ToolResult, _: &'a HookApi) -> HookResult<'a, ToolResult> {
        Box::pin(async move {
            let blocks = result.content.iter().flatten().map(|block| match block {
                UserBlock::Text(text) => UserBlock::Text(TextContent::new(without_password(&text.text))),
                UserBlock::Image(_) => block.clone(),
            });
            Ok(Some(ToolResult { content: Some(blocks.collect()), ..result.clone() }))
        })
    }
}

fn without_password(text: &str) -> String {
    text.split_once("password = ").map_or_else(|| text.to_owned(), |(before, _)| format!("{before}password = ***"))
}

/// Shortens all results but the last one, in what the request has and nowhere else.
struct Trim;

impl GenerationHooks for Trim {
    fn before_request<'a>(&'a self, messages: &'a [Message], _: &'a HookApi) -> HookResult<'a, Vec<Message>> {
        Box::pin(async move {
            let mut trimmed = messages.to_vec();
            let last = trimmed.iter().rposition(|message| matches!(message, Message::ToolResult(_))).unwrap_or(0);
            let mut cut = 0;
            for message in trimmed[..last].iter_mut() {
                let Message::ToolResult(result) = message else { continue };
                for block in &mut Arc::make_mut(result).content {
                    let UserBlock::Text(text) = block else { continue };
                    if text.text.chars().count() > KEPT_CHARS {
                        *text = TextContent::new(format!("{}...", text.text.chars().take(KEPT_CHARS).collect::<String>()));
                        cut += 1;
                    }
                }
            }
            say(format_args!("  a request with {} messages, {cut} of them cut", trimmed.len()));
            Ok(Some(trimmed))
        })
    }
}

fn registry() -> anyhow::Result<Registry> {
    let registry = Registry::new();
    registry.batch(|stage| {
        stage.tool(Shell::new())?;
        // In this order: the first block wins, and each sees what the one before made of the arguments. The keys keep their places when
        // an extension is reloaded.
        stage.hooks::<ToolTask>(Some("no-deletion"), None, Arc::new(NoDeletion))?;
        stage.hooks::<ToolTask>(Some("careful"), None, Arc::new(Careful))?;
        stage.hooks::<GenerationTask>(Some("trim"), None, Arc::new(Trim))
    })?;
    Ok(registry)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let place = Place::of_arguments(&[])?;
    let app = App::open(place.folder(), registry()?, SCRIPT).await?;
    say("What the model is asked:");
    let order = app.root.submit(SubmissionDraft::input("Clean up, deploy, and show the configuration.").request_id("order")).await?;
    order.wait().await?;
    say("What the transcript has:");
    show(&app.root).await?;
    app.close().await
}
