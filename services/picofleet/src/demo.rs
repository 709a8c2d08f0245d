//! `picofleet demo`: a child process commits in a loop and is killed with SIGKILL; what it was told was stored is there. Then a worker is
//! killed inside its tools, and another one finishes the turn.

mod check;
mod model;
pub(crate) mod turn;
pub(crate) mod writer;

use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, bail};
use picofleet_session::storage::{SessionCreate, Store as _};
use picofleet_session::{Clock, CommitError, ConversationOwnership, EntryDraft, ROOT_CONVERSATION_ID, Session, SessionId, SessionOptions};
use picofleet_storage::sqlite::{SqliteOptions, SqliteStore};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use model::{COUNTER, bump};

/// How many times the writer is killed, each time after some more acknowledged commits.
const KILLS: [u64; 5] = [1, 40, 173, 300, 512];

/// Prints a line for people.
fn say(text: &str) -> anyhow::Result<()> {
    writeln!(std::io::stdout(), "{text}").context("write to the terminal")
}

pub(crate) async fn run() -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("make a folder for the demo")?;
    let path = folder.path().join("demo.db");
    let session = create(&path).await?;

    say("1. A writer commits in a loop on SQLite: an entry, a document change and a task in each commit.")?;
    say("   It is killed with SIGKILL in the middle, and what is stored is compared with what it was told.\n")?;
    let mut acknowledged = 0;
    for (kill, commits) in (1..).zip(KILLS) {
        acknowledged = kill_writer(&path, session, acknowledged, commits).await?;
        let stored = check::check(&path, session).await?;
        verdict(acknowledged, stored)?;
        let unanswered = stored - acknowledged;
        say(&format!(
            "   kill {kill}: {acknowledged} commits acknowledged, {stored} whole, {unanswered} stored but not yet acknowledged, 0 torn, 0 lost"
        ))?;
        // What is stored without an acknowledgement is stored all the same: the next writer goes on behind it.
        acknowledged = stored;
    }

    say("\n2. A fork sees the conversation, and the rewindable document, as they were at its entry.\n")?;
    show_fork(&path, session).await?;
    say("\n3. A watch gets every commit as a frame: the new value and the operations that lead to it.\n")?;
    show_watch(&path, session).await?;
    say("\nProved: an acknowledged commit survives kill -9; one that was not acknowledged is whole or absent, never half.\n")?;
    turn::show(folder.path()).await
}

async fn create(path: &Path) -> anyhow::Result<SessionId> {
    let store = open(path)?;
    let created = store.create(SessionCreate::new(Clock::system().now())).await?;
    let session = Session::open(&store, created.session.id, SessionOptions::default()).await?;
    session
        .commit(async |tx| {
            tx.create_root().await?;
            tx.doc(&COUNTER, ROOT_CONVERSATION_ID).await?;
            Ok::<_, CommitError>(())
        })
        .await?;
    close(&store, &session).await?;
    Ok(created.session.id)
}

fn open(path: &Path) -> anyhow::Result<SqliteStore> {
    SqliteStore::open(path, SqliteOptions::default()).with_context(|| format!("open {}", path.display()))
}

async fn close(store: &SqliteStore, session: &Session) -> anyhow::Result<()> {
    session.close().await?;
    store.close().await?;
    Ok(())
}

/// Starts a writer, reads its acknowledgements, and kills it once `commits` more came. Answers the last one that was read.
async fn kill_writer(path: &Path, session: SessionId, known: u64, commits: u64) -> anyhow::Result<u64> {
    let mut writer = Command::new(std::env::current_exe().context("find this program")?)
        .arg("demo-writer")
        .arg(path)
        .arg(session.to_string())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("start the writer")?;
    let output = writer.stdout.take().context("read from the writer")?;
    let mut lines = BufReader::new(output).lines();
    let mut acknowledged = known;
    for _ in 0..commits {
        acknowledged = acknowledgement(&mut lines).await?.context("the writer ended by itself")?;
    }
    sigkill(&mut writer).await?;
    // What the writer had said before it died still counts.
    while let Some(number) = acknowledgement(&mut lines).await? {
        acknowledged = number;
    }
    Ok(acknowledged)
}

async fn acknowledgement(lines: &mut Lines<BufReader<ChildStdout>>) -> anyhow::Result<Option<u64>> {
    let Some(line) = lines.next_line().await.context("read from the writer")? else { return Ok(None) };
    line.parse().map(Some).with_context(|| format!("the writer said {line:?}"))
}

async fn sigkill(writer: &mut Child) -> anyhow::Result<()> {
    writer.kill().await.context("kill the writer")
}

fn verdict(acknowledged: u64, stored: u64) -> anyhow::Result<()> {
    // The writer has one commit under way at a time.
    if stored < acknowledged || stored > acknowledged + 1 {
        bail!("{acknowledged} commits were acknowledged and {stored} are stored");
    }
    Ok(())
}

async fn show_fork(path: &Path, session: SessionId) -> anyhow::Result<()> {
    let store = open(path)?;
    let session = Session::open(&store, session, SessionOptions::default()).await?;
    let at = check::entry_number(&session, 10).await?;
    let fork = session
        .commit(async |tx| {
            let fork = tx.fork_conversation(ROOT_CONVERSATION_ID, at, ConversationOwnership::Ownerless).await?;
            Ok::<_, CommitError>(fork.id)
        })
        .await?;
    let now = session.snapshot(&COUNTER, ROOT_CONVERSATION_ID).await?.context("the counter is gone")?;
    let then = session.snapshot(&COUNTER, fork).await?.context("the fork has no counter")?;
    say(&format!("   the conversation counts {} commits; its fork at the 10th entry counts {}", now.commits, then.commits))?;
    if then.commits != 10 {
        bail!("the fork at the 10th entry counts {}", then.commits);
    }
    close(&store, &session).await
}

async fn show_watch(path: &Path, session: SessionId) -> anyhow::Result<()> {
    let store = open(path)?;
    let session = Session::open(&store, session, SessionOptions::default()).await?;
    let mut watch = session.watch_doc(&COUNTER, ROOT_CONVERSATION_ID).await?.context("the counter is gone")?;
    for text in ["one", "two", "three"] {
        session
            .commit(async |tx| {
                let counter = tx.doc(&COUNTER, ROOT_CONVERSATION_ID).await?;
                bump(&counter, text)?;
                tx.append_entry(ROOT_CONVERSATION_ID, EntryDraft::new("demo.note").data(text)).await?;
                Ok::<_, CommitError>(())
            })
            .await?;
        let frame = watch.next().await.context("the watch ended")?;
        say(&format!("   commit {}: {}", frame.seq, model::ops_text(&frame.ops)))?;
    }
    close(&store, &session).await
}
