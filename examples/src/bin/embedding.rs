//! The embedded engine in an application: a session in a SQLite file, an input, the answer as it comes, and the same session again from
//! the file.
//!
//! `cargo run -p picofleet-examples --bin embedding`

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use picofleet::{Engine, transcript_line};
use picofleet_examples::{Place, say, show};
use picofleet_harness::effects::Services;
use picofleet_harness::host::{Conversation, Submission};
use picofleet_harness::line::Followed;
use picofleet_harness::registry::Registry;
use picofleet_harness::submission::SubmissionDraft;
use picofleet_models::scripted::Script;
use picofleet_session::storage::{SessionQuery, Store};
use picofleet_session::{SessionId, SubmissionRecord};
use picofleet_storage::sqlite::{SqliteOptions, SqliteStore};

/// What the model says: to the first request of a conversation, and to the second.
const SCRIPT: &str = r#"
[[turns]]
blocks = [{ type = "text", chunks = ["Oslo ", "is a fine ", "place for it."] }]
[[turns]]
blocks = [{ type = "text", chunks = ["As I said: ", "Oslo."] }]
"#;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let place = Place::of_arguments(&[])?;
    say("A new session in a SQLite file:");
    let session = first(&open(place.folder()).await?).await?;
    say("The engine is closed. Another one opens the file, and the conversation goes on:");
    again(&open(place.folder()).await?, session).await
}

/// The store. Opening it reads and locks the file: not on a thread that others wait for.
async fn open(folder: &Path) -> anyhow::Result<Arc<dyn Store>> {
    let file = folder.join("session.db");
    let store = tokio::task::spawn_blocking(move || SqliteStore::open(&file, SqliteOptions::default())).await??;
    Ok(Arc::new(store))
}

/// An engine: coordinator and worker in this process. The registry is where tools, hooks and tasks would be.
fn engine(store: &Arc<dyn Store>) -> anyhow::Result<Engine> {
    let services = Services::new(Registry::new(), picofleet::scripted(Script::from_toml(SCRIPT)?));
    Ok(Engine::start(Arc::clone(store), services))
}

async fn first(store: &Arc<dyn Store>) -> anyhow::Result<SessionId> {
    let engine = engine(store)?;
    let harness = engine.create_session().await?;
    let root = harness.root().await?;
    root.set_model(Some(picofleet::scripted_model())).await?;

    let question = root.submit(SubmissionDraft::input("Where shall we meet?").request_id("question")).await?;
    follow(&engine, harness.session(), &question).await?;
    // The same request is the same submission, however often it is made: also after a crash, when nobody knows whether it arrived.
    let repeated = root.submit(SubmissionDraft::input("Where shall we meet?").request_id("question")).await?;
    say(format_args!("  repeated: the same submission: {}", repeated.id() == question.id()));
    engine.close().await?;
    store.close().await?;
    Ok(harness.session())
}

/// Prints every entry as it is committed, until the submission is settled.
async fn follow(engine: &Engine, session: SessionId, submission: &Submission) -> anyhow::Result<()> {
    let root = engine.harness(session).root().await?;
    let mut watch = engine.watch(session, root.id()).await?;
    // What was committed before the watch began.
    show(&root).await?;
    let mut record = submission.status().await?;
    while !record.settled() {
        match watch.next().await {
            Followed::Frame(frame) => {
                for line in frame.entries.iter().filter_map(|entry| transcript_line(entry)) {
                    say(format_args!("  {line}"));
                }
                record = newer(&frame.submissions, record);
            }
            Followed::Gap => bail!("this reader was too slow: it would watch again, from what is committed then"),
            Followed::End => bail!("the session ended"),
        }
    }
    Ok(())
}

fn newer(changed: &[Arc<SubmissionRecord>], record: SubmissionRecord) -> SubmissionRecord {
    changed.iter().find(|changed| changed.id == record.id).map_or(record, |changed| (**changed).clone())
}

async fn again(store: &Arc<dyn Store>, session: SessionId) -> anyhow::Result<()> {
    let known = store.sessions(SessionQuery::default(), 10, None).await?.items;
    say(format_args!("  the file has {} session, and it is ours: {}", known.len(), known.iter().any(|known| known.id == session)));
    let engine = engine(store)?;
    let root: Conversation = engine.harness(session).root().await?;
    let question = root.submit(SubmissionDraft::input("Where, again?")).await?;
    question.wait().await.context("wait for the answer")?;
    show(&root).await?;
    let asked = root.usage().await?.models.values().filter(|usage| usage.total_tokens > 0).count();
    ensure!(asked == 1, "one model was asked");
    engine.close().await?;
    Ok(store.close().await?)
}
