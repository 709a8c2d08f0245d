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
pub mod script;
mod stage;
mod subagent;
mod tools;

pub use disk::{Disk, HeldBatch, task_write};
pub use faults::Faults;
pub use hooks::{AskedGeneration, AskedTool};
pub use kit::{Backing, Kit, Wire};
pub use looks::{last_code, text};
pub use stage::{Asked, Reply, Stage};
pub use subagent::Subagent;
pub use tools::{Closure, Gate};

/// One scenario as four tests: on memory and SQLite, over the plain and the encoded transport.
///
/// ```text
/// scenario!(s105_idle_input_is_placed, async |kit| { kit.say("hi").await; });
/// ```
#[macro_export]
macro_rules! scenario {
    ($name:ident, async |$kit:ident| $body:block) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            #[allow(unused_mut)]
            async fn run(mut $kit: $crate::Kit) {
                $body
                $kit.stop().await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn memory_plain() {
                Box::pin(run($crate::Kit::new($crate::Backing::Memory, $crate::Wire::Plain).await)).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn memory_encoded() {
                Box::pin(run($crate::Kit::new($crate::Backing::Memory, $crate::Wire::Encoded).await)).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite_plain() {
                Box::pin(run($crate::Kit::new($crate::Backing::Sqlite, $crate::Wire::Plain).await)).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite_encoded() {
                Box::pin(run($crate::Kit::new($crate::Backing::Sqlite, $crate::Wire::Encoded).await)).await;
            }
        }
    };
}
