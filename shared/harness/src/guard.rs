//! The places where the line refuses what the protocol forbids. They are counted, so that a simulation can show that each of them was
//! needed; with the feature `broken-guards` it can also take one away, and must then find what breaks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A guard of the line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(usize)]
pub enum Guard {
    /// A saying that was taken already is answered again, not applied again (`protocol.md` 3).
    Repeated,
    /// A saying of an invocation that does not hold the task is refused.
    Gone,
    /// A run invocation commits nothing behind an abort mark (section 5.4).
    AbortGate,
    /// A task that another invocation holds is not reserved.
    Held,
    /// An invocation that is over reserves nothing: its request was repeated, and came late.
    Over,
    /// An outcome is held while ordinary owned work is live (section 5.5).
    OwnedWork,
    /// A request planned on another tail is planned again.
    StalePlan,
    /// A task that was lost too often is parked (`design.md` 6).
    RestartLimit,
    /// Progress on another text than the line has is sent again as a whole.
    Resync,
    /// Queued inputs of conversations below a cancelled owner are withdrawn, and its work is marked (section 5.4).
    Cascade,
}

impl Guard {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Repeated,
        Self::Gone,
        Self::AbortGate,
        Self::Held,
        Self::Over,
        Self::OwnedWork,
        Self::StalePlan,
        Self::RestartLimit,
        Self::Resync,
        Self::Cascade,
    ];

    /// Its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Repeated => "repeated",
            Self::Gone => "gone",
            Self::AbortGate => "abort-gate",
            Self::Held => "held",
            Self::Over => "over",
            Self::OwnedWork => "owned-work",
            Self::StalePlan => "stale-plan",
            Self::RestartLimit => "restart-limit",
            Self::Resync => "resync",
            Self::Cascade => "cascade",
        }
    }
}

/// How often each guard fired. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Guards {
    fired: Arc<[AtomicU64; Guard::ALL.len()]>,
    #[cfg(feature = "broken-guards")]
    broken: Option<Guard>,
}

impl Guards {
    /// Guards of which one is missing.
    #[cfg(feature = "broken-guards")]
    #[must_use]
    pub fn without(guard: Guard) -> Self {
        Self { broken: Some(guard), ..Self::default() }
    }

    /// Whether a guard stops something; `needed` says that there is something to stop.
    pub(crate) fn stops(&self, guard: Guard, needed: bool) -> bool {
        if !needed {
            return false;
        }
        self.fired[guard as usize].fetch_add(1, Ordering::Relaxed);
        #[cfg(feature = "broken-guards")]
        if self.broken == Some(guard) {
            return false;
        }
        true
    }

    /// How often a guard fired.
    #[must_use]
    pub fn fired(&self, guard: Guard) -> u64 {
        self.fired[guard as usize].load(Ordering::Relaxed)
    }
}
