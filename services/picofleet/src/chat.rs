//! `picofleet chat`: a conversation at a line editor. What is typed while the model works steers it.

mod command;
mod history;
mod input;
mod screen;
mod show;
mod talk;

use std::sync::Arc;

use clap::Args;
use picofleet_harness::registry::Registry;
use picofleet_session::SessionId;

use crate::config::Config;
use crate::engine::Engine;
use crate::work::{Interrupts, Leaving, Target, Work, left};
use input::Input;
use talk::Talk;

/// What `picofleet chat` takes.
#[derive(Args)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    target: Target,
}

pub(crate) async fn chat(args: ChatArgs, registry: Registry, config: &Config) -> anyhow::Result<()> {
    let work = Work::open(args.target, registry, config).await?;
    // Until here Ctrl-C ends the process as it ends any other.
    let mut interrupts = Interrupts::listen()?;
    let result = with_engine(&work, &mut interrupts).await;
    work.close(result).await
}

async fn with_engine(work: &Work, interrupts: &mut Interrupts) -> anyhow::Result<()> {
    let session = work.session().await?;
    let engine = Engine::start(Arc::clone(&work.store), work.services.clone());
    // Dropped in every way out, so that the terminal is as it was before.
    let mut input = Input::open()?;
    if input.edits() {
        interrupts.listen_for_ends()?;
    }
    let result = talk(&engine, session, work, &mut input, interrupts).await;
    drop(input);
    if left(&result) {
        return result;
    }
    tokio::select! {
        closed = engine.close() => result.and(closed),
        () = interrupts.next() => Err(work.leave("chat", session, None, Leaving { aborted: false, code: interrupts.code() })),
    }
}

async fn talk(engine: &Engine, session: SessionId, work: &Work, input: &mut Input, interrupts: &mut Interrupts) -> anyhow::Result<()> {
    let mut talk = tokio::select! {
        begun = Talk::begin(engine, session, work, input) => begun?,
        () = interrupts.next() => {
            return Err(work.leave("chat", session, None, Leaving { aborted: false, code: interrupts.code() }));
        }
    };
    talk.go_on(input, interrupts).await
}
