//! How a line works.

use std::sync::Arc;
use std::time::Duration;

use picofleet_session::{ConversationCreated, SessionOptions};

use super::{LineReport, chain};
use crate::guard::Guards;
use crate::registry::{AppSetups, Registry};
use crate::setup::{BuiltInSetup, ToolCatalogue};
use crate::wire::{Point, Route};

/// What an opening takes the invocations of an earlier owner for (`design.md` 6).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Invocations {
    /// Their process is gone: their tasks are `pending` again. Embedded, an invocation belongs to its process.
    #[default]
    Ended,
    /// They may live on elsewhere: they keep their tasks until their leases are over.
    Live,
}

/// Which workers are alive, as far as the owner of the line knows (`design.md` 7). For presentation only: it decides nothing.
pub trait Workers: Send + Sync + 'static {
    /// Whether one takes tasks of a route.
    fn take(&self, route: &Route) -> bool;
}

/// How a line works.
#[derive(Clone)]
pub struct LineOptions {
    /// How long a closure that runs elsewhere may hold the line (`design.md` 1).
    pub hold: Duration,
    /// The longest that one call waits on the line; who waits longer asks again.
    pub wait: Duration,
    /// Who is alive to take tasks; without it nobody is asked.
    pub workers: Option<Arc<dyn Workers>>,
    /// Which tools a new conversation offers.
    pub catalogue: Arc<dyn ToolCatalogue>,
    /// Setups of new conversations behind the built-in one.
    pub setups: Vec<Arc<dyn ConversationCreated>>,
    /// What an opening takes the running invocations of an earlier owner for.
    pub invocations: Invocations,
    /// The newest commit of the session as it was read right before its opening: with it, who follows a conversation goes on over a
    /// takeover that changed nothing of it.
    pub before: Option<Point>,
    /// Counts what the line refuses.
    pub guards: Guards,
    /// Takes what the line reports.
    pub on_report: Option<super::OnReport>,
}

impl Default for LineOptions {
    fn default() -> Self {
        Self {
            hold: Duration::from_millis(500),
            wait: Duration::from_secs(60),
            workers: None,
            catalogue: Arc::new(()),
            setups: Vec::new(),
            invocations: Invocations::Ended,
            before: None,
            guards: Guards::default(),
            on_report: None,
        }
    }
}

impl LineOptions {
    /// The options of an application: its tools, and its setups behind the built-in one.
    #[must_use]
    pub fn of(registry: &Registry) -> Self {
        let setups: Arc<dyn ConversationCreated> = Arc::new(AppSetups::new(registry.clone()));
        Self { catalogue: Arc::new(registry.clone()), setups: vec![setups], ..Self::default() }
    }

    /// The options of a session whose conversations are set up: by the built-in setup, then by [`LineOptions::setups`], then by those that
    /// `options` has already. Its end is reported where `options` report it to nobody else.
    #[must_use]
    pub fn session(&self, options: SessionOptions) -> SessionOptions {
        let built_in: Arc<dyn ConversationCreated> = Arc::new(self.setup());
        let setups = std::iter::once(built_in).chain(self.setups.iter().cloned()).chain(options.on_create.iter().cloned());
        let on_report = options.on_report.clone().or_else(|| {
            let on_report = self.on_report.clone()?;
            let report: picofleet_session::Report = Arc::new(move |failed| on_report(&LineReport::SessionEnded { why: chain(failed) }));
            Some(report)
        });
        SessionOptions { on_create: setups.collect(), on_report, ..options }
    }

    pub(super) fn setup(&self) -> BuiltInSetup {
        BuiltInSetup::new(Arc::clone(&self.catalogue))
    }
}
