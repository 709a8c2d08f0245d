//! What is logged while a case runs.

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span;
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Level, Metadata, Subscriber};

/// Sees the events of this thread until it is dropped.
pub struct Logs {
    lines: Arc<Mutex<Vec<(Level, String)>>>,
    _here: DefaultGuard,
}

impl Logs {
    /// Listens from now on.
    #[must_use]
    pub fn listen() -> Self {
        let lines = Arc::default();
        let guard = tracing::subscriber::set_default(Sink(Arc::clone(&lines)));
        Self { lines, _here: guard }
    }

    /// The events so far, each with its fields as text.
    #[must_use]
    pub fn lines(&self) -> Vec<(Level, String)> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

struct Sink(Arc<Mutex<Vec<(Level, String)>>>);

impl Subscriber for Sink {
    fn enabled(&self, _metadata: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _attributes: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _span: &span::Id, _values: &span::Record<'_>) {}

    fn record_follows_from(&self, _span: &span::Id, _follows: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((*event.metadata().level(), text.0));
    }

    fn enter(&self, _span: &span::Id) {}

    fn exit(&self, _span: &span::Id) {}
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string can't fail.
        let _ = write!(self.0, "{}={value:?} ", field.name());
    }
}
