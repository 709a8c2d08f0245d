//! Ctrl-C, and the signals that end programs.

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::{HUNG_UP, INTERRUPTED, TERMINATED};

/// Counts how often Ctrl-C was pressed. One listener for all the time, so that a signal between two looks is not lost.
pub(crate) struct Interrupts {
    pressed: Signal,
    /// SIGHUP and SIGTERM, where they do not just end the process.
    ends: Option<(Signal, Signal)>,
    count: u32,
    /// The exit code of a signal that ends the program.
    ended: Option<u8>,
}

impl Interrupts {
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let pressed = signal(SignalKind::interrupt()).context("listen for Ctrl-C")?;
        Ok(Self { pressed, ends: None, count: 0, ended: None })
    }

    /// From now on SIGHUP and SIGTERM come here, too, so that the terminal can be left as it was.
    pub(crate) fn listen_for_ends(&mut self) -> anyhow::Result<()> {
        let listen = |kind| signal(kind).context("listen for signals that end programs");
        self.ends = Some((listen(SignalKind::hangup())?, listen(SignalKind::terminate())?));
        Ok(())
    }

    /// Waits for the next one. Dropping the future loses none.
    pub(crate) async fn next(&mut self) {
        let ends = self.ends.as_mut();
        let ended = async {
            match ends {
                Some((hangup, terminate)) => tokio::select! {
                    () = received(hangup) => HUNG_UP,
                    () = received(terminate) => TERMINATED,
                },
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            code = ended => self.ended = Some(code),
            () = received(&mut self.pressed) => self.count = self.count.saturating_add(1),
        }
    }

    /// How often Ctrl-C was pressed since it began or since it was forgotten.
    pub(crate) const fn count(&self) -> u32 {
        self.count
    }

    /// What was pressed counts no more: it was about something that is over.
    pub(crate) const fn forget(&mut self) {
        self.count = 0;
    }

    /// Whether the process is to end at once.
    pub(crate) const fn leaves(&self) -> bool {
        self.count > 1 || self.ended.is_some()
    }

    /// The exit code of a process that ends at once.
    pub(crate) fn code(&self) -> u8 {
        self.ended.unwrap_or(INTERRUPTED)
    }
}

async fn received(signal: &mut Signal) {
    if signal.recv().await.is_none() {
        // The listener lives as long as the runtime.
        std::future::pending().await
    }
}
