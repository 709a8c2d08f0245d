//! The second half of the demo: a worker is killed inside two tools, one safe to repeat and one not; a new one finishes the turn.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use futures::future::BoxFuture;
use picofleet_harness::config::ConversationConfig;
use picofleet_harness::effects::Services;
use picofleet_harness::registry::Registry;
use picofleet_harness::submission::{SubmissionDraft, WhenBusy};
use picofleet_harness::tool::Replay;
use picofleet_harness::tools::{Tool, ToolApi, ToolError, ToolResult, ToolSpec};
use picofleet_harness::wire::HostCall;
use picofleet_models::scripted::Script;
use picofleet_session::storage::{EntryQuery, SessionCreate, Store};
use picofleet_session::{Clock, EntryRecord, Json, ROOT_CONVERSATION_ID, SessionId, SubmissionRecord, SubmissionStatus};
use picofleet_storage::sqlite::{SqliteOptions, SqliteStore};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use super::say;
use crate::{Engine, transcript_line};

/// What the scripted model says.
const SCRIPT: &str = r#"
[[turns]]
when = { turn = 0 }
blocks = [
    { type = "text", chunks = ["I measure ", "and launch."] },
    { type = "toolCall", name = "measure" },
    { type = "toolCall", name = "launch" },
]
[[turns]]
when = { user = "thanks" }
blocks = [{ type = "text", chunks = ["You are ", "welcome."] }]
[[turns]]
when = { user = "short" }
blocks = [{ type = "text", chunks = ["Measured; ", "whether it launched I can't tell."] }]
"#;

/// How long the whole may take before the demo says that something is wrong.
const PATIENCE: Duration = Duration::from_secs(60);

/// A tool that writes down that it was executed, then waits until it may end.
struct Logged {
    spec: ToolSpec,
    log: PathBuf,
    ends: CancellationToken,
}

impl Tool for Logged {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn execute<'a>(&'a self, _: Json, api: ToolApi) -> BoxFuture<'a, Result<ToolResult, ToolError>> {
        Box::pin(async move {
            let name = &self.spec.name;
            log(&self.log, name).map_err(|error| ToolError::new(format!("write down that {name} runs: {error}")))?;
            api.output(format!("{name} has begun\n").as_bytes())?;
            tokio::select! {
                () = api.cancelled().cancelled() => Err(ToolError::new("stopped")),
                () = self.ends.cancelled() => Ok(ToolResult::text(format!("{name} is done"))),
            }
        })
    }
}

/// Appends a line, which a killed process has written whole or not at all.
fn log(path: &Path, line: &str) -> std::io::Result<()> {
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
    file.write_all(format!("{line}\n").as_bytes())
}

/// What works in the demo; its tools end once `ends` fires.
fn services(log: &Path, ends: &CancellationToken) -> anyhow::Result<Services> {
    let registry = Registry::new();
    for (name, replay) in [("measure", Replay::Safe), ("launch", Replay::Unsafe)] {
        let mut spec = ToolSpec::new(name, "a tool of the demo", Json::object([("type", "object")]));
        spec.replay = replay;
        registry.tool(Logged { spec, log: log.to_owned(), ends: ends.clone() }).context("register the tools of the demo")?;
    }
    Ok(Services::new(registry, crate::scripted(Script::from_toml(SCRIPT)?)))
}

fn open(path: &Path) -> anyhow::Result<Arc<dyn Store>> {
    let store = SqliteStore::open(path, SqliteOptions::default()).with_context(|| format!("open {}", path.display()))?;
    Ok(Arc::new(store))
}

/// The process that is killed: submits the first input and works on it until it dies.
pub(crate) async fn worker(path: &Path, session: SessionId, log: &Path) -> anyhow::Result<()> {
    let engine = Engine::start(open(path)?, services(log, &CancellationToken::new())?);
    submit(&engine, session, "measure and launch, please", WhenBusy::FollowUp, "first").await?;
    tokio::time::sleep(2 * PATIENCE).await;
    bail!("nobody killed this process")
}

async fn submit(engine: &Engine, session: SessionId, text: &str, when: WhenBusy, key: &str) -> anyhow::Result<SubmissionRecord> {
    let draft = SubmissionDraft::input(text).when_busy(when).request_id(key);
    engine.host(session, HostCall::Submit { conversation: ROOT_CONVERSATION_ID, draft }).await
}

/// Shows it, and checks what it shows.
pub(super) async fn show(folder: &Path) -> anyhow::Result<()> {
    let (path, log) = (folder.join("turn.db"), folder.join("executed.log"));
    let session = create(&path).await?;
    say("4. A worker is killed with SIGKILL inside two tools: `measure` may run again, `launch` must not.\n")?;
    kill_inside_tools(&path, session, &log).await?;
    say("   a new process opens the file, hears a steer and a follow-up while it recovers, and finishes:\n")?;
    let store = open(&path)?;
    let heard = CancellationToken::new();
    let engine = Engine::start(Arc::clone(&store), services(&log, &heard)?);
    let steer = submit(&engine, session, "keep it short", WhenBusy::Steer, "steer").await?;
    let follow_up = submit(&engine, session, "thanks", WhenBusy::FollowUp, "follow-up").await?;
    // The first one was the killed process's; its key finds it.
    let first = submit(&engine, session, "measure and launch, please", WhenBusy::FollowUp, "first").await?;
    // All is said: the tools of the recovered run may end.
    heard.cancel();
    for submission in [&first, &steer, &follow_up] {
        let wait = HostCall::WaitSubmission { submission: submission.id, timeout_ms: 50_000 };
        let settled: SubmissionRecord =
            tokio::time::timeout(PATIENCE, engine.host(session, wait)).await.context("the turn took too long")??;
        ensure!(settled.status() == SubmissionStatus::Done, "submission {} ended as {:?}", settled.id, settled.state);
    }
    engine.close().await?;
    let entries = entries(&store, session).await?;
    store.close().await?;
    for entry in &entries {
        if let Some(line) = transcript_line(entry) {
            say(&format!("   {line}"))?;
        }
    }
    check(&entries, &std::fs::read_to_string(&log).context("read what was executed")?)?;
    say("\nProved: the turn went on in another process where it was. The safe tool ran twice, the unsafe one once, and its result says")?;
    say("that it was interrupted. The steer joined the run, the follow-up came after it, and nothing was answered twice.")
}

async fn create(path: &Path) -> anyhow::Result<SessionId> {
    let store = open(path)?;
    let session = store.create(SessionCreate::new(Clock::system().now())).await?.session.id;
    let engine = Engine::start(Arc::clone(&store), services(path, &CancellationToken::new())?);
    let _: Json = engine.host(session, HostCall::Root).await?;
    let config = ConversationConfig {
        model: Some(crate::scripted_model()),
        active_tools: vec!["measure".into(), "launch".into()],
        ..ConversationConfig::default()
    };
    let _: Json = engine.host(session, HostCall::Configure { conversation: ROOT_CONVERSATION_ID, config: Box::new(config) }).await?;
    engine.close().await?;
    store.close().await?;
    Ok(session)
}

async fn kill_inside_tools(path: &Path, session: SessionId, log: &Path) -> anyhow::Result<()> {
    let mut worker = Command::new(std::env::current_exe().context("find this program")?)
        .arg("demo-turn")
        .args([path, log])
        .arg(session.to_string())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("start the worker")?;
    let inside = async {
        while executed(log, "measure") == 0 || executed(log, "launch") == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let errors = worker.stderr.take().context("read from the worker")?;
    tokio::select! {
        () = inside => {}
        ended = worker.wait() => {
            let mut lines = BufReader::new(errors).lines();
            let why = lines.next_line().await.ok().flatten().unwrap_or_default();
            bail!("the worker ended by itself ({:?}): {why}", ended.context("wait for the worker")?)
        }
        () = tokio::time::sleep(PATIENCE) => bail!("the worker did not get to its tools"),
    }
    worker.kill().await.context("kill the worker")?;
    say("   both tools had begun when the worker died")
}

/// How often a tool was executed.
fn executed(log: &Path, name: &str) -> usize {
    std::fs::read_to_string(log).map_or(0, |text| text.lines().filter(|line| *line == name).count())
}

async fn entries(store: &Arc<dyn Store>, session: SessionId) -> anyhow::Result<Vec<EntryRecord>> {
    let page = store.reader(session).await?.scan_entries(EntryQuery::all(ROOT_CONVERSATION_ID), 100, None).await?;
    let mut entries = page.items;
    entries.reverse();
    Ok(entries)
}

/// What the demo claims, on what is stored and what was executed.
fn check(entries: &[EntryRecord], log: &str) -> anyhow::Result<()> {
    let kinds: Vec<&str> = entries.iter().map(|entry| entry.kind.as_str()).filter(|kind| *kind != "pi.system").collect();
    let expected = ["pi.user", "pi.assistant", "pi.tool-result", "pi.tool-result", "pi.user", "pi.assistant", "pi.user", "pi.assistant"];
    ensure!(kinds == expected, "the transcript is {kinds:?}");
    let times = |name: &str| log.lines().filter(|line| *line == name).count();
    ensure!(times("measure") == 2, "the safe tool was executed {} times", times("measure"));
    ensure!(times("launch") == 1, "the unsafe tool was executed {} times", times("launch"));
    let interrupted = entries.iter().filter(|entry| entry.data.as_ref().is_some_and(|data| data.to_string().contains("\"interrupted\"")));
    let interrupted: Vec<String> = interrupted.filter_map(transcript_line).collect();
    ensure!(
        matches!(&interrupted[..], [one] if one.starts_with("launch:")),
        "the unsafe tool alone must be interrupted, but these are: {interrupted:?}"
    );
    let users: Vec<String> = entries.iter().filter_map(transcript_line).filter(|line| line.starts_with("user:")).collect();
    let said = ["user:   measure and launch, please", "user:   keep it short", "user:   thanks"];
    ensure!(users == said, "the inputs stand in another order: {users:?}");
    Ok(())
}
