//! The tool `bash`.

use std::time::Duration;

use futures::future::BoxFuture;
use picofleet_harness::effects::{OutputLimits, Retain};
use picofleet_harness::live::{Severity, ToolDiagnostic};
use picofleet_harness::tools::{ShellExit, ShellRequest, Tool, ToolApi, ToolError, ToolResult, ToolSpec};
use picofleet_session::Json;
use serde::Deserialize;

use crate::arguments;

/// How long a command runs that states no time.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(120);
/// The longest time that a command may state: a call holds a slot of its worker.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(3_600);

const DESCRIPTION: &str = "Run a command with bash in the workspace. Standard output and standard error come back together, in \
the order in which they were printed; of long output the end is kept, and a remark names the file that has all of it. There is no \
terminal and no standard input, so a command that asks something fails. Every process that the command starts ends with it, also in \
the background. Several calls do not share variables or the current directory.";

/// `bash {command, timeout?}`: runs a command, unsafe to repeat, one at a time with the other calls of its round.
///
/// A command that exits with another code than 0, that a signal ends or whose time is over makes the call an error.
pub struct Bash {
    spec: ToolSpec,
    timeout: Duration,
}

#[derive(Deserialize)]
struct Arguments {
    command: String,
    timeout: Option<f64>,
}

impl Bash {
    /// The tool, with [`TIMEOUT_DEFAULT`].
    #[must_use]
    pub fn new() -> Self {
        Self::with_timeout(TIMEOUT_DEFAULT)
    }

    /// The tool, with another time for commands that state none; at most [`TIMEOUT_MAX`].
    #[must_use]
    pub fn with_timeout(timeout: Duration) -> Self {
        let timeout = timeout.min(TIMEOUT_MAX);
        let about = format!(
            "Seconds after which the command is killed; {} where it is left out, {} at most.",
            timeout.as_secs_f64(),
            TIMEOUT_MAX.as_secs()
        );
        let seconds = Json::build_object()
            .with("type", "number")
            .with("exclusiveMinimum", 0)
            .with("maximum", TIMEOUT_MAX.as_secs())
            .with("description", about);
        let properties =
            Json::build_object().with("command", arguments::property("string", "The command line.")).with("timeout", seconds).build();
        let mut spec = ToolSpec::new("bash", DESCRIPTION, arguments::schema(properties, &["command"]));
        spec.sequential = true;
        spec.output = OutputLimits { retain: Retain::Tail, ..OutputLimits::default() };
        Self { spec, timeout }
    }
}

impl Default for Bash {
    fn default() -> Self {
        Self::new()
    }
}

impl Tool for Bash {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn prepare_arguments(&self, arguments: Json) -> Result<Json, ToolError> {
        Ok(arguments::rename(arguments, "command", &["cmd", "script"]))
    }

    fn execute<'a>(&'a self, arguments: Json, api: ToolApi) -> BoxFuture<'a, Result<ToolResult, ToolError>> {
        Box::pin(async move {
            let Arguments { command, timeout } = arguments::read(&arguments)?;
            let stated = timeout.map(Duration::try_from_secs_f64).transpose();
            let stated = stated.map_err(|error| ToolError::new(format!("timeout can't be used: {error}")))?;
            let timeout = stated.map_or(self.timeout, |stated| stated.min(TIMEOUT_MAX));
            let request = ShellRequest { command, timeout: Some(timeout) };
            // The call can be over only when nobody listens any more.
            let mut output = |chunk: &[u8]| drop(api.output(chunk));
            let exit = api.env()?.run(request, &mut output, api.cancelled().clone()).await?;
            remarks(&exit).into_iter().try_for_each(|remark| api.diagnostic(remark))?;
            verdict(&exit, timeout).map_or_else(|| Ok(ToolResult::default()), |text| Err(ToolError::new(text)))
        })
    }
}

fn remarks(exit: &ShellExit) -> Vec<ToolDiagnostic> {
    let left = (exit.left > 0).then(|| {
        let processes = if exit.left == 1 { "process" } else { "processes" };
        let message = format!("{} {processes} that the command left running were ended with it", exit.left);
        ToolDiagnostic { severity: Severity::Warn, message, code: Some("left".to_owned()) }
    });
    let spill = exit.spill.as_ref().map(|spill| {
        let (what, severity) =
            if spill.complete { ("complete output", Severity::Info) } else { ("first part of the output", Severity::Warn) };
        let message = format!("{what}, {} bytes, is in {}", arguments::grouped(spill.bytes), spill.path);
        ToolDiagnostic { severity, message, code: Some("spill".to_owned()) }
    });
    left.into_iter().chain(spill).collect()
}

/// Why the call is an error.
fn verdict(exit: &ShellExit, timeout: Duration) -> Option<String> {
    if exit.timed_out {
        return Some(format!("the command did not end within {} s and was killed", timeout.as_secs_f64()));
    }
    match (exit.code, exit.signal) {
        (Some(0), _) => None,
        (Some(code), _) => Some(format!("the command exited with code {code}")),
        (None, Some(signal)) => Some(format!("the command was ended by signal {signal}{}", signal_name(signal))),
        (None, None) => Some("the command ended in a way that the system did not tell".to_owned()),
    }
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        2 => " (SIGINT)",
        6 => " (SIGABRT)",
        9 => " (SIGKILL)",
        11 => " (SIGSEGV)",
        13 => " (SIGPIPE)",
        15 => " (SIGTERM)",
        _ => "",
    }
}
