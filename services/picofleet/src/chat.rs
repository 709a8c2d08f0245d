//! `picofleet chat`: a conversation at a line editor. What is typed while the model works steers it.

mod command;
mod input;
mod show;
mod talk;

use std::sync::Arc;

use clap::Args;
use picofleet_harness::registry::Registry;

use crate::config::Config;
use crate::engine::Engine;
use crate::work::{Interrupts, Target, Work, left};
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
    if !left(&result) {
        work.store.close().await?;
    }
    result
}

async fn with_engine(work: &Work, interrupts: &mut Interrupts) -> anyhow::Result<()> {
    let session = work.session().await?;
    let engine = Engine::start(Arc::clone(&work.store), work.services.clone());
    // Dropped in every way out, so that the terminal is as it was before.
    let mut input = Input::open()?;
    let result = match Talk::begin(&engine, session, work, &mut input).await {
        Ok(mut talk) => talk.go_on(&mut input, interrupts).await,
        Err(error) => Err(error),
    };
    drop(input);
    if left(&result) {
        return result;
    }
    tokio::select! {
        closed = engine.close() => closed?,
        () = interrupts.next() => return Err(work.leave("chat", session, false)),
    }
    result
}
