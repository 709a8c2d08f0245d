//! `picofleet run`: one prompt, shown as it is answered.

mod follow;
mod lines;
mod printer;

use anyhow::ensure;
use clap::Args;
use picofleet_harness::host::Conversation;
use picofleet_harness::registry::Registry;
use picofleet_harness::submission::SubmissionDraft;
use picofleet_session::{SessionId, SubmissionId};

use crate::config::Config;
use crate::engine::Engine;
use crate::failure::Failure;
use crate::work::{Interrupts, Leaving, Target, Work, left};

/// What `picofleet run` takes.
#[derive(Args)]
pub(crate) struct RunArgs {
    /// What to say to the model; without it unfinished work of the session goes on
    prompt: Option<String>,
    /// Print what happens as JSON lines, one event a line: the session first, then a snapshot and every agent event behind it, and at the
    /// end the result. Remarks go to standard error
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// What a run does.
struct Run<'a> {
    prompt: Option<&'a str>,
    work: &'a Work,
}

pub(crate) async fn run(args: RunArgs, registry: Registry, config: &Config) -> anyhow::Result<()> {
    let RunArgs { prompt, json, target } = args;
    ensure!(
        prompt.is_some() || target.session.is_some() || target.latest,
        Failure::Usage("there is nothing to do: say something to the model, or name a session with --session or --continue".to_owned())
    );
    let work = Work::open(target, registry, config).await?;
    // Until here Ctrl-C ends the process as it ends any other.
    let mut interrupts = Interrupts::listen()?;
    let result = with_engine(&Run { prompt: prompt.as_deref(), work: &work }, json, &mut interrupts).await;
    work.close(result).await
}

async fn with_engine(run: &Run<'_>, json: bool, interrupts: &mut Interrupts) -> anyhow::Result<()> {
    let session = run.work.session().await?;
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

    /// Says the prompt, if there is one.
    async fn submit(&self, conversation: &Conversation) -> anyhow::Result<Option<SubmissionId>> {
        let Some(prompt) = self.prompt else { return Ok(None) };
        Ok(Some(conversation.submit(SubmissionDraft::input(prompt)).await?.id()))
    }
}
