//! Tools whose effects the world keeps.

use std::time::Duration;

use futures::future::BoxFuture;
use picofleet_harness::registry::{Registry, RegistryError};
use picofleet_harness::tool::{Control, Replay};
use picofleet_harness::tools::{Tool, ToolApi, ToolError, ToolResult, ToolSpec};
use picofleet_session::Json;
use picofleet_session::message::Usage;

use super::World;

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
}

struct SimTool {
    spec: ToolSpec,
    does: Does,
    world: World,
}

/// The tools of a world.
///
/// # Errors
/// None: the names are different.
pub fn registry(world: &World) -> Result<Registry, RegistryError> {
    let registry = Registry::new();
    let tools = [
        ("safe", Does::Safe),
        ("unsafe", Does::Unsafe),
        ("slow", Does::Slow),
        ("fail", Does::Fail),
        ("alone", Does::Alone),
        ("end", Does::End),
        ("hand", Does::Hand),
    ];
    for (name, does) in tools {
        let integer = Json::object([("type", Json::from("integer"))]);
        let schema = [
            ("type", Json::from("object")),
            ("properties", Json::object([("n", integer)])),
            ("required", Json::array([Json::from("n")])),
        ];
        let mut spec = ToolSpec::new(name, "a tool of the simulation", Json::object(schema));
        spec.replay = if does == Does::Unsafe || does == Does::Slow { Replay::Unsafe } else { Replay::Safe };
        spec.sequential = does == Does::Alone;
        registry.tool(SimTool { spec, does, world: world.clone() })?;
    }
    Ok(registry)
}

impl Tool for SimTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn execute<'a>(&'a self, _: Json, api: ToolApi) -> BoxFuture<'a, Result<ToolResult, ToolError>> {
        Box::pin(async move {
            let world = &self.world;
            if self.spec.replay == Replay::Unsafe {
                world.unsafe_effect(api.task_id());
            } else {
                world.effect(api.task_id());
            }
            let longest = if self.does == Does::Slow { 60_000 } else { 4_000 };
            for step in 0..=world.below(4) {
                api.output(format!("line {step}\n").as_bytes())?;
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
