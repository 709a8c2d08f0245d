//! A workspace in a temporary directory, and calls of tools as the harness makes them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use picofleet_harness::tools::{EnvError, LooseCall, Shell as _, ShellExit, ShellRequest, Tool, ToolError, ToolResult};
use picofleet_models::validate::validate_tool_arguments;
use picofleet_session::message::{ToolCall, ToolDeclaration, UserBlock};
use picofleet_session::{Json, TaskId};
use picofleet_tools::{LocalEnv, LocalOptions};
use tempfile::TempDir;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

/// Far beyond what anything here takes on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(120);

pub(crate) struct Place {
    pub(crate) env: LocalEnv,
    pub(crate) dir: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self::with(|options| options.grace = Duration::from_millis(300))
    }

    pub(crate) fn with(change: impl FnOnce(&mut LocalOptions)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut options = LocalOptions::new(dir.path().join("workspace"), dir.path().join("spill"));
        change(&mut options);
        Self { env: LocalEnv::open(options).unwrap(), dir }
    }

    /// A path in the workspace.
    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.env.workspace().join(path)
    }

    /// A path beside the workspace.
    pub(crate) fn outside(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    pub(crate) fn put(&self, path: &str, content: impl AsRef<[u8]>) {
        std::fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
        std::fs::write(self.at(path), content).unwrap();
    }

    pub(crate) fn get(&self, path: &str) -> String {
        std::fs::read_to_string(self.at(path)).unwrap()
    }

    pub(crate) async fn run(&self, command: &str) -> (String, ShellExit) {
        let (output, exit) = self.run_with(command, None, CancellationToken::new()).await;
        (output, exit.unwrap())
    }

    pub(crate) async fn run_with(
        &self,
        command: &str,
        limit: Option<Duration>,
        cancel: CancellationToken,
    ) -> (String, Result<ShellExit, EnvError>) {
        let mut output = Vec::new();
        let mut take = |chunk: &[u8]| output.extend_from_slice(chunk);
        let request = ShellRequest { command: command.to_owned(), timeout: limit };
        let exit = timeout(LONG, self.env.run(request, &mut take, cancel)).await.expect("the command ends");
        (String::from_utf8_lossy(&output).into_owned(), exit)
    }

    /// The process that wrote its id to a file of the workspace.
    pub(crate) async fn pid(&self, path: &str) -> i32 {
        let path = self.at(path);
        let read = || std::fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
        wait_for("the process writes its id", read).await
    }

    pub(crate) async fn call(&self, tool: &impl Tool, arguments: &str) -> Called {
        let call = LooseCall::new(TaskId::new(7).unwrap(), tool.spec().output, Some(Arc::new(self.env.clone())), CancellationToken::new());
        let arguments = match validated(tool, arguments) {
            Ok(arguments) => arguments,
            Err(text) => return Called { result: Err(ToolError::new(text)), output: String::new(), dropped: (0, 0), remarks: Vec::new() },
        };
        let result = timeout(LONG, tool.execute(arguments, call.api())).await.expect("the call ends");
        let added = result.as_ref().map(|result| result.diagnostics.clone()).unwrap_or_default();
        let remarks = call.diagnostics().into_iter().chain(added).map(|remark| remark.message).collect();
        Called { result, output: call.output(), dropped: call.dropped(), remarks }
    }
}

/// What a call gave.
pub(crate) struct Called {
    pub(crate) result: Result<ToolResult, ToolError>,
    pub(crate) output: String,
    pub(crate) dropped: (u64, u64),
    pub(crate) remarks: Vec<String>,
}

impl Called {
    pub(crate) fn text(&self) -> String {
        let content = self.result.as_ref().unwrap().content.as_ref().expect("content");
        let text = |block: &UserBlock| match block {
            UserBlock::Text(text) => text.text.clone(),
            UserBlock::Image(_) => panic!("no image was asked for"),
        };
        content.iter().map(text).collect()
    }

    pub(crate) fn error(&self) -> &str {
        &self.result.as_ref().unwrap_err().0
    }

    pub(crate) fn detail(&self, key: &str) -> Json {
        self.result.as_ref().unwrap().details.as_ref().unwrap().get(key).unwrap().clone()
    }
}

/// Repaired and validated as the harness does it.
pub(crate) fn validated(tool: &impl Tool, arguments: &str) -> Result<Json, String> {
    let arguments = tool.prepare_arguments(Json::parse(arguments.as_bytes()).unwrap()).unwrap();
    let spec = tool.spec();
    let declaration = ToolDeclaration {
        name: spec.name.clone(),
        description: spec.description.clone(),
        parameters: spec.parameters.clone(),
        constrained_sampling: None,
    };
    let call = Json::build_object().with("id", "c").with("name", spec.name.as_str()).with("arguments", arguments).build();
    let call: ToolCall = call.to().unwrap();
    validate_tool_arguments(&declaration, &call).map_err(|error| error.to_string())
}

/// Whether a process runs; one that ended and was not waited for does not.
pub(crate) fn runs(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
    state.is_some_and(|state| state != 'Z' && state != 'X')
}

pub(crate) async fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + LONG;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) fn link(target: impl AsRef<Path>, at: impl AsRef<Path>) {
    std::os::unix::fs::symlink(target, at).unwrap();
}

pub(crate) fn root() -> bool {
    rustix::process::geteuid().is_root()
}
