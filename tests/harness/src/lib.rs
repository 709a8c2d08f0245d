//! A kit for scenarios of the harness: a coordinator and a worker over a store and a transport, with a model that a test scripts, tools
//! that a test holds, and a clock that a test sets.
//!
//! Every scenario is one test for each store and transport: [`scenario!`].
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test panics where it can not go on")]

pub mod child;
mod disk;
mod faults;
mod hooks;
mod kit;
mod looks;
mod owner;
pub mod scout;
pub mod script;
mod stage;
mod tap;
mod tools;

// The subagents of the examples, as they stand there: what applications copy is what the scenarios run.
#[path = "../../../examples/src/subagents/background.rs"]
pub mod background;
#[path = "../../../examples/src/subagents/foreground.rs"]
mod foreground;

pub use disk::{Disk, HeldBatch, task_write};
pub use faults::Faults;
pub use foreground::Subagent;
pub use hooks::{AskedCompaction, AskedGeneration, AskedTool};
pub use kit::{Backing, Kit, Wire};
pub use looks::{last_code, text};
pub use owner::{ABORTED, Act, At, Owner, failed, status};
pub use stage::{Asked, Reply, Stage};

pub use tap::{InFlight, Tap, tasks};
pub use tools::{Closure, Gate};

/// One scenario as seven tests: on memory, SQLite and JSONL over the plain and the encoded transport, on PostgreSQL over the encoded one.
///
/// ```text
/// scenario!(s105_idle_input_is_placed, async |kit| { kit.say("hi").await; });
/// ```
///
/// With `one_thread` in front nothing of the engine runs but where the test waits: after a few turns every call that was polled has come as
/// far as it can.
#[macro_export]
macro_rules! scenario {
    ($name:ident, async |$kit:ident| $body:block) => {
        $crate::scenario! { @tests (flavor = "multi_thread", worker_threads = 2) $name, async |$kit| $body }
    };
    (one_thread $name:ident, async |$kit:ident| $body:block) => {
        $crate::scenario! { @tests (flavor = "current_thread") $name, async |$kit| $body }
    };
    (@tests $runtime:tt $name:ident, async |$kit:ident| $body:block) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            #[allow(unused_mut)]
            async fn run(mut $kit: $crate::Kit) {
                $body
                $kit.stop().await;
            }

            $crate::scenario! { @test $runtime memory_plain Memory Plain }
            $crate::scenario! { @test $runtime memory_encoded Memory Encoded }
            $crate::scenario! { @test $runtime sqlite_plain Sqlite Plain }
            $crate::scenario! { @test $runtime sqlite_encoded Sqlite Encoded }
            $crate::scenario! { @test $runtime jsonl_plain Jsonl Plain }
            $crate::scenario! { @test $runtime jsonl_encoded Jsonl Encoded }
            $crate::scenario! { @test $runtime postgres_encoded Postgres Encoded }
        }
    };
    (@test ($($runtime:tt)*) $test:ident $backing:ident $wire:ident) => {
        #[tokio::test($($runtime)*)]
        async fn $test() {
            Box::pin(run($crate::Kit::new($crate::Backing::$backing, $crate::Wire::$wire).await)).await;
        }
    };
}
