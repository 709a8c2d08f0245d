//! Small tools.

use std::sync::Arc;

use futures::future::BoxFuture;
use picofleet_harness::registry::Registry;
use picofleet_harness::tool::Replay;
use picofleet_harness::tools::{Tool, ToolApi, ToolError, ToolResult, ToolSpec};
use picofleet_session::Json;
use tokio::sync::Semaphore;

/// Holds the calls of the gate tools: each says that it began and waits until it is let go or cancelled. Clones are one.
#[derive(Clone)]
pub struct Gate {
    begun: Arc<Semaphore>,
    go: Arc<Semaphore>,
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

impl Gate {
    /// A gate of its own.
    #[must_use]
    pub fn new() -> Self {
        Self { begun: Arc::new(Semaphore::new(0)), go: Arc::new(Semaphore::new(0)) }
    }

    /// Says that somebody is at the gate, and waits until it is let go.
    pub async fn pass(&self) {
        self.begun.add_permits(1);
        self.go.acquire().await.unwrap().forget();
    }

    /// Waits until one more call began.
    pub async fn begun(&self) {
        let waited = tokio::time::timeout(crate::kit::PATIENCE, self.begun.acquire()).await;
        waited.expect("a call of a gate tool begins").unwrap().forget();
    }

    /// Lets one call go.
    pub fn open(&self) {
        self.go.add_permits(1);
    }
}

struct GateTool(ToolSpec, Gate);

impl Tool for GateTool {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn execute<'a>(&'a self, _arguments: Json, api: ToolApi) -> BoxFuture<'a, Result<ToolResult, ToolError>> {
        Box::pin(async move {
            self.1.begun.add_permits(1);
            tokio::select! {
                biased;
                () = api.cancelled().cancelled() => Err(ToolError::new("cancelled")),
                go = self.1.go.acquire() => {
                    go.unwrap().forget();
                    Ok(ToolResult::text("opened"))
                }
            }
        })
    }
}

/// Gives its text back: as its result, as its output, or as an error.
struct TextTool(ToolSpec);

impl Tool for TextTool {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn execute<'a>(&'a self, arguments: Json, api: ToolApi) -> BoxFuture<'a, Result<ToolResult, ToolError>> {
        Box::pin(async move {
            let text = arguments.get("text").and_then(Json::as_str).unwrap_or_default().into_owned();
            match self.0.name.as_str() {
                "fail" => Err(ToolError::new(text)),
                "output" => {
                    api.output(text.as_bytes())?;
                    Ok(ToolResult::default())
                }
                _ => Ok(ToolResult::text(text)),
            }
        })
    }
}

type Run = dyn Fn(Json, ToolApi) -> BoxFuture<'static, Result<ToolResult, ToolError>> + Send + Sync;

/// A tool that is a closure. Its specification can be changed before it is registered.
pub struct Closure {
    /// What it says about itself.
    pub spec: ToolSpec,
    /// Repairs its arguments.
    pub prepare: fn(Json) -> Result<Json, ToolError>,
    run: Box<Run>,
}

impl Closure {
    /// A tool with a `text` and a number `n`, neither required.
    pub fn new<F, R>(name: &str, run: F) -> Self
    where
        F: Fn(Json, ToolApi) -> R + Send + Sync + 'static,
        R: Future<Output = Result<ToolResult, ToolError>> + Send + 'static,
    {
        let schema = br#"{"type":"object","properties":{"text":{"type":"string"},"n":{"type":"number"}}}"#;
        let spec = ToolSpec::new(name, "a closure", Json::parse(schema).unwrap());
        Self { spec, prepare: Ok, run: Box::new(move |arguments, api| Box::pin(run(arguments, api))) }
    }
}

impl Tool for Closure {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn prepare_arguments(&self, arguments: Json) -> Result<Json, ToolError> {
        (self.prepare)(arguments)
    }

    fn execute<'a>(&'a self, arguments: Json, api: ToolApi) -> BoxFuture<'a, Result<ToolResult, ToolError>> {
        (self.run)(arguments, api)
    }
}

/// The tools of a kit: `echo`, `output` and `fail` with a `text`; `gate`, which is not repeated after a crash, and `safe_gate`, which is.
pub(crate) fn register(registry: &Registry, gate: &Gate) {
    let text = Json::parse(br#"{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}"#).unwrap();
    let nothing = Json::parse(br#"{"type":"object"}"#).unwrap();
    for name in ["echo", "output", "fail"] {
        let spec = ToolSpec { replay: Replay::Safe, ..ToolSpec::new(name, "gives its text back", text.clone()) };
        registry.tool(TextTool(spec)).unwrap();
    }
    for (name, replay) in [("gate", Replay::Unsafe), ("safe_gate", Replay::Safe)] {
        let spec = ToolSpec { replay, ..ToolSpec::new(name, "waits", nothing.clone()) };
        registry.tool(GateTool(spec, gate.clone())).unwrap();
    }
}
