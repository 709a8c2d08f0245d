//! `picofleet run`: one prompt, shown as it is answered.

mod follow;
mod lines;
mod printer;

use std::io::Read as _;

use anyhow::{Context as _, ensure};
use clap::Args;
use picofleet_harness::host::Conversation;
use picofleet_harness::registry::Registry;
use picofleet_harness::submission::SubmissionDraft;
use picofleet_session::{Clock, SessionId, SubmissionId};

use crate::config::Config;
use crate::engine::Engine;
use crate::failure::Failure;
use crate::glance;
use crate::output::Format;
use crate::work::{Interrupts, Leaving, Target, Unfinished, Work, askable, left};

/// What `picofleet run` takes.
#[derive(Args)]
pub(crate) struct RunArgs {
    /// What to say to the model, or - to read it from standard input; without it unfinished work of the session goes on
    prompt: Option<String>,
    /// Print what happens as JSON lines, one event a line: the session first, then a snapshot and every agent event behind it, and at the
    /// end the result with the text of the last answer. Remarks go to standard error
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Most bytes of a prompt that comes from standard input.
const PROMPT_MAX: u64 = 16 << 20;

/// What a run does.
struct Run<'a> {
    prompt: Option<&'a str>,
    work: &'a Work,
    /// What the session left when it was used last.
    before: Unfinished,
}

pub(crate) async fn run(args: RunArgs, registry: Registry, config: &Config, format: Format) -> anyhow::Result<()> {
    let RunArgs { prompt, json, target } = args;
    let json = json || format == Format::Json;
    ensure!(
        prompt.is_some() || target.session.is_some() || target.latest,
        Failure::Usage("there is nothing to do: say something to the model, or name a session with --session or --continue".to_owned())
    );
    let prompt = if prompt.as_deref() == Some("-") { Some(from_stdin()?) } else { prompt };
    let work = Work::open(target, registry, config).await?;
    // Until here Ctrl-C ends the process as it ends any other.
    let mut interrupts = Interrupts::listen()?;
    let result = in_session(&work, prompt.as_deref(), json, &mut interrupts).await;
    work.close(result).await
}

/// The prompt as it comes from a pipe or a file.
fn from_stdin() -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    std::io::stdin().lock().take(PROMPT_MAX + 1).read_to_end(&mut bytes).context("read the prompt from standard input")?;
    let wrong = |what: String| Failure::Usage(format!("the prompt from standard input {what}"));
    ensure!(
        bytes.len() as u64 <= PROMPT_MAX,
        wrong(format!("has more than {} MiB; say less, and let the model read files", PROMPT_MAX >> 20))
    );
    let text = String::from_utf8(bytes).map_err(|error| {
        wrong(format!("is not UTF-8 from byte {} on; convert it, for instance with iconv", error.utf8_error().valid_up_to()))
    })?;
    ensure!(!text.trim().is_empty(), wrong("is empty; say something".to_owned()));
    Ok(text.trim_end_matches(['\n', '\r']).to_owned())
}

async fn in_session(work: &Work, prompt: Option<&str>, json: bool, interrupts: &mut Interrupts) -> anyhow::Result<()> {
    let session = work.session().await?;
    let before = work.unfinished(session).await?;
    if !work.begins() && (prompt.is_some() || before.busy) {
        askable(work, session).await?;
    }
    let run = Run { prompt, work, before };
    let result = with_engine(&run, session, json, interrupts).await;
    if result.is_err() && !left(&result) && work.begins() {
        // What went wrong before is what is told.
        let _ = forget(work, session).await;
    }
    result
}

/// Removes a new session in which nothing was said, so that nobody misses it.
async fn forget(work: &Work, session: SessionId) -> anyhow::Result<()> {
    if glance::is_empty(&*work.store.reader(session).await?).await? {
        work.store.delete(session, Clock::system().now()).await?;
    }
    Ok(())
}

async fn with_engine(run: &Run<'_>, session: SessionId, json: bool, interrupts: &mut Interrupts) -> anyhow::Result<()> {
    let engine = Engine::start(std::sync::Arc::clone(&run.work.store), run.work.services.clone());
    let result = if json {
        lines::converse(&engine, session, run, interrupts).await
    } else {
        follow::converse(&engine, session, run, interrupts).await
    };
    if left(&result) {
        // As a killed process: whoever leaves does not wait for tools to end.
        return result;
    }
    tokio::select! {
        closed = engine.close() => result.and(closed),
        () = interrupts.next() => Err(run.leave(session, false, interrupts)),
    }
}

impl Run<'_> {
    fn leave(&self, session: SessionId, aborted: bool, interrupts: &Interrupts) -> anyhow::Error {
        self.work.leave("run", session, None, Leaving { aborted, code: interrupts.code() })
    }

    /// What is said of a session that goes on.
    fn remark(&self, session: SessionId) -> Option<String> {
        if self.work.begins() { None } else { self.before.remark(session, self.prompt.is_some()) }
    }

    /// Says the prompt, if there is one.
    async fn submit(&self, conversation: &Conversation) -> anyhow::Result<Option<SubmissionId>> {
        let Some(prompt) = self.prompt else { return Ok(None) };
        Ok(Some(conversation.submit(SubmissionDraft::input(prompt)).await?.id()))
    }
}
