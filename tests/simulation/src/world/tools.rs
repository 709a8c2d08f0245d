//! Tools whose effects the world keeps.

use std::time::Duration;

use futures::future::BoxFuture;
use picofleet_harness::config::CONFIG;
use picofleet_harness::effects::Fault;
use picofleet_harness::kind::TaskOptions;
use picofleet_harness::registry::{Registry, RegistryError};
use picofleet_harness::submission::SubmissionDraft;
use picofleet_harness::tool::{Control, Replay};
use picofleet_harness::tools::{Tool, ToolApi, ToolError, ToolResult, ToolSpec};
use picofleet_session::message::Usage;
use picofleet_session::{ConversationOwnership, Json, TaskId};

use super::tasks::{Job, JobInput};
use super::{World, model_ref};

/// What a tool of the simulation does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Does {
    /// May run again.
    Safe,
    /// Must not run again.
    Unsafe,
    /// Runs for longer than a lease.
    Slow,
    /// Throws.
    Fail,
    /// Wants to run alone.
    Alone,
    /// Ends the run.
    End,
    /// Begins a new context.
    Hand,
    /// Runs a job in tasks below it.
    Fan,
    /// Asks a subagent.
    Ask,
}

/// The names of the tools.
pub(crate) const TOOLS: [&str; 9] = ["safe", "unsafe", "slow", "fail", "alone", "end", "hand", "fan", "ask"];

struct SimTool {
    spec: ToolSpec,
    does: Does,
    world: World,
}

/// The tools of a world.
///
/// # Errors
/// None: the names are different.
pub(crate) fn registry(world: &World) -> Result<Registry, RegistryError> {
    let registry = Registry::new();
    let tools = [
        ("safe", Does::Safe),
        ("unsafe", Does::Unsafe),
        ("slow", Does::Slow),
        ("fail", Does::Fail),
        ("alone", Does::Alone),
        ("end", Does::End),
        ("hand", Does::Hand),
        ("fan", Does::Fan),
        ("ask", Does::Ask),
    ];
    for (name, does) in tools {
        let integer = Json::object([("type", Json::from("integer"))]);
        let schema =
            [("type", Json::from("object")), ("properties", Json::object([("n", integer)])), ("required", Json::array([Json::from("n")]))];
        let mut spec = ToolSpec::new(name, "a tool of the simulation", Json::object(schema));
        spec.replay = if does == Does::Unsafe || does == Does::Slow { Replay::Unsafe } else { Replay::Safe };
        spec.sequential = does == Does::Alone;
        registry.tool(SimTool { spec, does, world: world.clone() })?;
    }
    let (job, part) = super::tasks::kinds(world);
    registry.task(job)?;
    registry.task(part)?;
    Ok(registry)
}

/// Runs a job below the call; a rerun finds the one of the run before by its memo.
async fn fan(world: &World, api: &ToolApi) -> Result<ToolResult, ToolError> {
    let known: Option<i64> = api.memoized("job").await?;
    let id = match known.and_then(|id| TaskId::<u32>::new(id).ok()) {
        Some(id) => id,
        None => {
            let input = JobInput { parts: 1 + u32::try_from(world.below(3)).unwrap_or(0), fail_fast: world.once_in(2) };
            let made = api.create_task(&Job(world.clone()), input, TaskOptions::owned_by(api.task_id())).await?;
            // A crash between the two leaves a job that nobody waits for; it ends before the call does.
            let kept: i64 = api.memo("job", &made.get()).await?;
            TaskId::new(kept).map_err(|error| ToolError::new(error.to_string()))?
        }
    };
    let outcome = api.wait_for_task(id).await?;
    Ok(ToolResult::text(format!("{outcome:?}")))
}

/// Asks a subagent in a conversation that the call owns; a rerun finds the conversation and the question.
async fn ask(api: &ToolApi) -> Result<ToolResult, ToolError> {
    let id = match api.conversations_of(api.task_id()).await?.first() {
        Some(child) => child.id,
        None => {
            let owner = ConversationOwnership::Task { task_id: api.task_id() };
            api.commit(async |tx| {
                let child = tx.create_conversation(owner).await?;
                tx.doc(&CONFIG, child.id).await?.edit(|config| config.model = Some(model_ref()))?;
                Ok::<_, Fault>(child.id)
            })
            .await?
        }
    };
    let child = api.conversation(id).await?.ok_or_else(|| ToolError::new("the subagent is gone"))?;
    let question = SubmissionDraft::input("a question").request_id(format!("ask-{}", api.task_id()));
    let answer = child.submit(question).await?.wait().await?;
    Ok(ToolResult::text(format!("{:?}", answer.status())))
}

impl Tool for SimTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn execute<'a>(&'a self, _: Json, api: ToolApi) -> BoxFuture<'a, Result<ToolResult, ToolError>> {
        Box::pin(async move {
            let world = &self.world;
            let unsafe_ = self.spec.replay == Replay::Unsafe;
            let effect = if unsafe_ { world.unsafe_effect(api.task_id()) } else { world.effect(api.task_id()) };
            // These two commit and wait, and nothing of theirs goes on outside.
            match self.does {
                Does::Fan => {
                    drop(effect);
                    return fan(world, &api).await;
                }
                Does::Ask => {
                    drop(effect);
                    return ask(&api).await;
                }
                _ => {}
            }
            let longest = if self.does == Does::Slow { 60_000 } else { 4_000 };
            for step in 0..=world.below(4) {
                api.output(super::line(step).as_bytes())?;
                let pause = Duration::from_millis(world.below(longest) / 4);
                tokio::select! {
                    biased;
                    () = api.cancelled().cancelled() => return Err(ToolError::new("stopped")),
                    () = tokio::time::sleep(pause) => {}
                }
            }
            let usage = world.once_in(3).then(|| Usage { input: 3, output: 0, total_tokens: 3, ..Usage::default() });
            let control = match self.does {
                Does::End => Some(Control { terminate: Some(true), ..Control::default() }),
                Does::Hand => Some(Control { handoff: Some("go on".into()), ..Control::default() }),
                _ => None,
            };
            if self.does == Does::Fail {
                return Err(ToolError::new("it failed"));
            }
            Ok(ToolResult { usage, control, ..ToolResult::text("done") })
        })
    }
}
