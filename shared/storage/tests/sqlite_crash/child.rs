//! The child process: a program that says what it tries and what was acknowledged.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::future::join_all;
use futures::{StreamExt as _, stream};
use picofleet_session::Millis;
use picofleet_session::storage::{ImportId, ImportTarget, SessionStore, StorageError, Store, Tenant};

use crate::program::{NOW, SESSIONS, batch, creation, fence, lines, sent, session};

/// The variable that makes the test `child` the child: the file of the store.
pub(crate) const STORE: &str = "CRASH_STORE";
/// Whether the child ends at the first failure.
pub(crate) const EXIT: &str = "CRASH_EXIT";
/// The file that ends a failure.
pub(crate) const UNTIL: &str = "CRASH_UNTIL";

/// How the child opens its store.
pub(crate) const MODE: &str = "CRASH_MODE";

pub(crate) struct Plan {
    store: PathBuf,
    until: PathBuf,
    /// The process ends at the first failure.
    exit: bool,
}

impl Plan {
    pub(crate) fn from_environment() -> Option<Self> {
        let store = std::env::var_os(STORE)?.into();
        Some(Self { store, until: std::env::var_os(UNTIL).unwrap().into(), exit: std::env::var_os(EXIT).is_some() })
    }
}

/// One line that the parent reads. It is written whole before the next call, so a kill takes none that was written.
fn say(line: &str) {
    println!("child: {line}");
}

pub(crate) fn run(plan: &Plan) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(program(plan));
}

/// Repeats until it succeeds; after a failure the disk is well again.
async fn insist<T, F: Future<Output = Result<T, StorageError>>>(plan: &Plan, what: &str, mut call: impl FnMut() -> F) -> T {
    for _ in 0..10 {
        match call().await {
            Ok(value) => return value,
            Err(error) => failed(plan, what, &error),
        }
    }
    panic!("{what} does not succeed");
}

fn failed(plan: &Plan, what: &str, error: &StorageError) {
    let kind = match error {
        StorageError::Uncertain { .. } => "uncertain",
        StorageError::Rejected(_) => "rejected",
        _ => "failed",
    };
    say(&format!("{kind} {what}: {}", chain(error)));
    if plan.exit {
        // As a kill: nothing is closed.
        std::process::abort();
    }
    std::fs::write(&plan.until, "").unwrap();
}

/// An error with its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(Some(error), |error| error.source());
    sources.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

async fn program(plan: &Plan) {
    let store = insist(plan, "open the store", || async { crate::open(&plan.store) }).await;
    let mut opened = Vec::new();
    for number in 0..SESSIONS {
        insist(plan, "create", || store.create(creation(number))).await;
        say(&format!("created {number}"));
        let line = open(plan, &store, number).await;
        opened.push(line);
    }
    let owners = opened.into_iter().enumerate().map(|(number, line)| own(plan, &store, number, line));
    join_all(owners).await;

    let copied = lines(&*store, session(0)).await;
    say("try import");
    let imported = insist(plan, "import", || {
        let target = ImportTarget { id: ImportId::New, tenant: Tenant::default(), at: NOW };
        store.import(target, stream::iter(copied.clone()).map(Ok).boxed())
    });
    say(&format!("imported {}", imported.await.id));
    say("try delete");
    insist(plan, "delete", || store.delete(session(1), NOW)).await;
    say("deleted");
    maintain(plan, &store).await;
    insist(plan, "close", || store.close()).await;
    say("closed");
}

async fn maintain(plan: &Plan, store: &Arc<dyn Store>) {
    while insist(plan, "maintain", || store.maintain(1_000, Millis(NOW.0 + 1))).await.more {}
}

async fn open(plan: &Plan, store: &Arc<dyn Store>, number: usize) -> Arc<dyn SessionStore> {
    say(&format!("try open {number}"));
    // Opens that fail are no sign of a session that can't be opened.
    insist(plan, "clear", || store.set_quarantined(session(number), false)).await;
    let line = insist(plan, "open", || store.open(session(number), fence())).await;
    say(&format!("opened {number} {}", line.opened().seq));
    line
}

/// The owner of a session, as the contract wants it: a refused batch is sent again, after an uncertain one the session is opened again.
async fn own(plan: &Plan, store: &Arc<dyn Store>, number: usize, mut line: Arc<dyn SessionStore>) {
    let mut head = line.opened();
    let mut index = 0;
    let mut refusals = 0;
    while index < sent() {
        assert!(refusals < 10, "batch {index} of session {number} does not land");
        say(&format!("try {number} {index}"));
        let batch = batch(&head, index);
        let token = batch.commits.last().unwrap().token;
        match line.commit(batch).await {
            Ok(landed) => head = landed,
            Err(error @ StorageError::Uncertain { .. }) => {
                failed(plan, &format!("commit {number} {index}"), &error);
                let before = insist(plan, "read", || line.head()).await;
                let landed = before.token == token;
                if landed {
                    say(&format!("ack {number} {index} {}", before.seq));
                }
                line = open(plan, store, number).await;
                head = line.opened();
                index += usize::from(landed);
                continue;
            }
            // A store that another session's failure keeps from writing.
            Err(error @ (StorageError::Rejected(_) | StorageError::Failed { .. })) => {
                failed(plan, &format!("commit {number} {index}"), &error);
                refusals += 1;
                continue;
            }
            Err(error) => panic!("commit: {}", chain(&error)),
        }
        say(&format!("ack {number} {index} {}", head.seq));
        index += 1;
    }
}

/// Has a store open with a session in it until the parent ends the process.
pub(crate) fn hold(store: &Path) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let store = crate::open(store).unwrap();
        store.create(creation(0)).await.unwrap();
        say("holding");
        // The parent never writes: this is the end of the parent at the latest.
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
    });
}
