//! The embedded engine: coordinator and worker in one process over the local transport.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, anyhow, bail};
use picofleet_coordinator::Coordinator;
use picofleet_fleet::Local;
use picofleet_harness::effects::Services;
use picofleet_harness::host::Harness;
use picofleet_harness::line::{ConversationWatch, LineOptions, LineReport, OnReport};
use picofleet_harness::registry::Registry;
use picofleet_harness::task::LineTasks;
use picofleet_harness::transport::Transport;
use picofleet_harness::wire::{Answer, HostCall, Request};
use picofleet_session::storage::{SessionCreate, Store};
use picofleet_session::{Clock, ConversationId, SessionId};
use picofleet_worker::Worker;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

#[cfg(test)]
mod tests;

/// A running engine. Dropping it without [`Engine::close`] leaves its work as a killed process would.
///
/// What the registry of its services gets and loses while it runs counts at once, task definitions included: new phases use what is
/// registered then, a task whose definition was replaced goes over at its next phase boundary (section 7.5).
pub struct Engine {
    store: Arc<dyn Store>,
    clock: Clock,
    coordinator: Coordinator,
    transport: Arc<dyn Transport>,
    worker: JoinHandle<()>,
    reload: JoinHandle<()>,
    stop: CancellationToken,
    /// Why a session was over that nobody closed, of the last one.
    ended: Arc<Mutex<Option<String>>>,
}

impl Engine {
    /// Starts an engine over a store. Sessions resume their work when they are first used.
    #[must_use]
    pub fn start(store: Arc<dyn Store>, services: Services) -> Self {
        let (registry, clock) = (services.registry.clone(), services.clock.clone());
        // The application hears of both halves in one place.
        let reports = Arc::clone(&services.on_report);
        let ended = Arc::new(Mutex::default());
        let last = Arc::clone(&ended);
        let on_report: OnReport = Arc::new(move |report| {
            if let LineReport::SessionEnded { why } = report {
                *last.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.clone());
            }
            reports(report);
        });
        // Before the definitions are read, so that nothing that is published meanwhile is missed.
        let published = registry.subscribe();
        let options = picofleet_coordinator::Options {
            clock: clock.clone(),
            tasks: LineTasks::of(&registry),
            line: LineOptions { on_report: Some(on_report), ..LineOptions::of(&registry) },
            ..picofleet_coordinator::Options::new()
        };
        let (coordinator, outgoing) = Coordinator::new(Arc::clone(&store), options);
        let transport: Arc<dyn Transport> = Arc::new(Local::plain(Arc::new(coordinator.clone())));
        let stop = CancellationToken::new();
        let worker = Worker::new(Arc::clone(&transport), services, picofleet_worker::Options::default());
        let worker = tokio::spawn(worker.run(outgoing.hints, outgoing.signals, stop.clone()));
        let reload = tokio::spawn(reload(registry, published, coordinator.clone(), stop.clone()));
        Self { store, clock, coordinator, transport, worker, reload, stop, ended }
    }

    /// Makes an empty session in the engine's store.
    ///
    /// # Errors
    /// What the store says.
    pub async fn create_session(&self) -> anyhow::Result<Harness> {
        let created = self.store.create(SessionCreate::new(self.clock.now())).await.context("make a session")?;
        Ok(self.harness(created.session.id))
    }

    /// A session as a host has it: its conversations, submissions and tasks. Nothing is opened before the first call.
    #[must_use]
    pub fn harness(&self, session: SessionId) -> Harness {
        Harness::connect(Arc::clone(&self.transport), session)
    }

    /// Calls a session as a host.
    ///
    /// # Errors
    /// What the line answers instead of a value.
    pub async fn host<T: DeserializeOwned>(&self, session: SessionId, call: HostCall) -> anyhow::Result<T> {
        let answer = self.transport.call(session, Request::Host(Box::new(call))).await?;
        match answer {
            Answer::Value(value) => value.to().context("read the line's answer"),
            Answer::Done => picofleet_session::Json::null().to().context("read the line's answer"),
            Answer::Failed(failure) => Err(failure.into()),
            Answer::Refused(refusal) => Err(refusal.into()),
            other => bail!("the line gave an answer of another kind: {other:?}"),
        }
    }

    /// Follows a conversation.
    ///
    /// # Errors
    /// That the session can't be opened or read.
    pub async fn watch(&self, session: SessionId, conversation: ConversationId) -> anyhow::Result<ConversationWatch> {
        Ok(self.coordinator.watch(session, conversation).await?)
    }

    /// Opens a session, so that its unfinished work goes on.
    ///
    /// # Errors
    /// That the session can't be opened.
    pub async fn resume(&self, session: SessionId) -> anyhow::Result<()> {
        Ok(self.coordinator.resume(session).await?)
    }

    /// The error of somebody who follows a session of this engine, or waits for it, and hears that it is over: with the cause, where the
    /// session failed.
    #[must_use]
    pub fn session_ended(&self) -> anyhow::Error {
        match &*self.ended.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(why) => anyhow!("{why}").context("the session ended"),
            None => anyhow!("the session ended"),
        }
    }

    /// Stops the worker, whose work resumes at the next start, and closes the sessions.
    ///
    /// # Errors
    /// That the worker panicked.
    pub async fn close(self) -> anyhow::Result<()> {
        self.stop.cancel();
        let worker = self.worker.await.context("the worker ended in disorder");
        let reload = self.reload.await.context("what shares the registry ended in disorder");
        self.coordinator.close().await;
        worker.and(reload)
    }
}

/// Gives the line the task definitions of every publication.
async fn reload(registry: Registry, mut published: watch::Receiver<u64>, coordinator: Coordinator, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            changed = published.changed() => if changed.is_err() { return },
        }
        coordinator.set_tasks(LineTasks::of(&registry)).await;
    }
}
