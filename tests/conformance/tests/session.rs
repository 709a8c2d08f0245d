//! The scenarios of the session kernel, on every backend: as it is, with next to nothing in memory, and reopened between the steps.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]

/// Makes a test of every case for every backend and mode.
macro_rules! scenarios {
    ($($case:ident),* $(,)?) => {
        scenarios!(@backend memory, picofleet_conformance::Memory, $($case),*);
        scenarios!(@backend sqlite, picofleet_conformance::Sqlite::default(), $($case),*);
        mod postgres {
            scenarios!(@mode cold, Cold, picofleet_conformance::Postgres::default(), $($case),*);
        }
    };
    (@backend $module:ident, $backend:expr, $($case:ident),*) => {
        mod $module {
            scenarios!(@mode warm, Warm, $backend, $($case),*);
            scenarios!(@mode cold, Cold, $backend, $($case),*);
            scenarios!(@mode reopened, Reopened, $backend, $($case),*);
        }
    };
    (@mode $module:ident, $mode:ident, $backend:expr, $($case:ident),*) => {
        mod $module {$(
            #[test]
            fn $case() {
                picofleet_conformance::run($backend, picofleet_conformance::Mode::$mode, super::super::$case);
            }
        )*}
    };
}

#[path = "session/access.rs"]
mod access;
#[path = "session/checkpoints.rs"]
mod checkpoints;
#[path = "session/context.rs"]
mod context;
#[path = "session/endings.rs"]
mod endings;
#[path = "session/fork_copies.rs"]
mod fork_copies;
#[path = "session/forks.rs"]
mod forks;
#[path = "session/history.rs"]
mod history;
#[path = "session/line.rs"]
mod line;
#[path = "session/order.rs"]
mod order;
#[path = "session/retirement.rs"]
mod retirement;
#[path = "session/setups.rs"]
mod setups;
#[path = "session/tables.rs"]
mod tables;
#[path = "session/watches.rs"]
mod watches;
