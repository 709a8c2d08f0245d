//! Ctrl-C.

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Counts how often Ctrl-C was pressed. One listener for all the time, so that a signal between two looks is not lost.
pub(crate) struct Interrupts {
    signals: Signal,
    count: u32,
}

impl Interrupts {
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let signals = signal(SignalKind::interrupt()).context("listen for Ctrl-C")?;
        Ok(Self { signals, count: 0 })
    }

    /// Waits for the next one. Dropping the future loses none.
    pub(crate) async fn next(&mut self) {
        match self.signals.recv().await {
            Some(()) => self.count = self.count.saturating_add(1),
            // The listener lives as long as the runtime.
            None => std::future::pending().await,
        }
    }

    pub(crate) const fn count(&self) -> u32 {
        self.count
    }
}
