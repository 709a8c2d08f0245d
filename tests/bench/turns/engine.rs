//! Coordinator and worker in this process, over the local transport, as the embedded engine has them.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, bail};
use picofleet_coordinator::Coordinator;
use picofleet_fleet::Local;
use picofleet_harness::config::{ConfigPatch, ModelRef};
use picofleet_harness::effects::Services;
use picofleet_harness::host::{Conversation, Harness};
use picofleet_harness::line::LineOptions;
use picofleet_harness::registry::Registry;
use picofleet_harness::task::LineTasks;
use picofleet_harness::transport::Transport;
use picofleet_session::Millis;
use picofleet_session::storage::{SessionCreate, Store};
use picofleet_storage::memory::MemoryStore;
use picofleet_storage::sqlite::{Durability, SqliteOptions, SqliteStore};
use picofleet_worker::Worker;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::answers::{Answers, Echo};

/// A store by the name that the command line gives it.
pub(crate) fn store(name: &str, folder: &Path) -> Result<Arc<dyn Store>> {
    let durability = match name {
        "memory" => return Ok(Arc::new(MemoryStore::new())),
        "process" => Durability::Process,
        "power" => Durability::Power,
        other => bail!("there is no store {other:?}; use memory, process or power"),
    };
    let options = SqliteOptions { durability, ..SqliteOptions::default() };
    Ok(Arc::new(SqliteStore::open(folder.join("bench.db"), options)?))
}

pub(crate) struct Engine {
    store: Arc<dyn Store>,
    coordinator: Coordinator,
    transport: Arc<dyn Transport>,
    worker: JoinHandle<()>,
    stop: CancellationToken,
}

impl Engine {
    pub(crate) fn start(store: Arc<dyn Store>, answers: Answers) -> Result<Self> {
        Self::start_with(store, answers, picofleet_worker::Options::default().slots)
    }

    /// With a number of effects that run at once.
    pub(crate) fn start_with(store: Arc<dyn Store>, answers: Answers, slots: usize) -> Result<Self> {
        let registry = Registry::new();
        registry.tool(Echo::new()?)?;
        let options = picofleet_coordinator::Options {
            tasks: LineTasks::of(&registry),
            line: LineOptions::of(&registry),
            ..picofleet_coordinator::Options::new()
        };
        let (coordinator, outgoing) = Coordinator::new(Arc::clone(&store), options);
        let transport: Arc<dyn Transport> = Arc::new(Local::plain(Arc::new(coordinator.clone())));
        let services = Services::new(registry, Arc::new(answers));
        let stop = CancellationToken::new();
        let worker =
            Worker::new(Arc::clone(&transport), services, picofleet_worker::Options { slots, ..picofleet_worker::Options::default() });
        let worker = tokio::spawn(worker.run(outgoing.hints, outgoing.signals, stop.clone()));
        Ok(Self { store, coordinator, transport, worker, stop })
    }

    /// The root of a new session, with the model.
    pub(crate) async fn conversation(&self) -> Result<Conversation> {
        let session = self.store.create(SessionCreate::new(Millis(0))).await?.session.id;
        let root = Harness::connect(Arc::clone(&self.transport), session).root().await?;
        let model = Some(ModelRef { provider: "p".into(), model_id: "m".into() });
        root.update(ConfigPatch { model: Some(model), ..ConfigPatch::default() }).await?;
        Ok(root)
    }

    pub(crate) async fn close(self) -> Result<()> {
        self.stop.cancel();
        self.worker.await?;
        self.coordinator.close().await;
        Ok(())
    }
}
