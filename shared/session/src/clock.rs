//! The only reader of the system clock.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::Millis;

/// Tells durable time. Logic takes a clock; a test takes one that it sets.
#[derive(Clone, Debug, Default)]
pub struct Clock(Source);

#[derive(Clone, Default)]
enum Source {
    #[default]
    System,
    Manual(Arc<AtomicI64>),
    Other(Arc<dyn Fn() -> Millis + Send + Sync>),
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::System => "System",
            Self::Manual(_) => "Manual",
            Self::Other(_) => "Other",
        })
    }
}

impl Clock {
    /// The system's clock.
    #[must_use]
    pub fn system() -> Self {
        Self(Source::System)
    }

    /// A clock that stands at `start` until it is set.
    #[must_use]
    pub fn manual(start: Millis) -> Self {
        Self(Source::Manual(Arc::new(AtomicI64::new(start.0))))
    }

    /// A clock that asks `now`, such as a simulation's.
    pub fn from_fn(now: impl Fn() -> Millis + Send + Sync + 'static) -> Self {
        Self(Source::Other(Arc::new(now)))
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Millis {
        match &self.0 {
            Source::System => system_now(),
            Source::Manual(at) => Millis(at.load(Ordering::SeqCst)),
            Source::Other(now) => now(),
        }
    }

    /// Sets a manual clock; the system's clock stays as it is.
    pub fn set(&self, now: Millis) {
        if let Source::Manual(at) = &self.0 {
            at.store(now.0, Ordering::SeqCst);
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the clock")]
fn system_now() -> Millis {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    // A clock before 1970 reads as 0: every stored time is then simply older.
    Millis(since.map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX)))
}
