//! How much memory an export and an import of a session need, by the high-water mark of the system.
//!
//!     cargo run --release -p picofleet-storage --example export_memory -- 1000000
//!
//! It makes a session with so many entries in a SQLite file, exports it into a file, and imports that into another SQLite file. Each of
//! these steps is a process of its own: what an allocator keeps of one step would count for the next. `idle` only opens the store.

use std::io::{BufRead as _, BufReader, BufWriter, Write as _};
use std::path::Path;
use std::process::Command;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use picofleet_delta::Json;
use picofleet_session::storage::{
    Batch, Commit, ExportLine, Fence, ImportId, ImportTarget, Rejection, SessionCreate, SessionQuery, StorageError, Store as _, Tenant,
    Write,
};
use picofleet_session::{CommitToken, ConversationRecord, EntryDraft, EntryId, Epoch, Millis, ROOT_CONVERSATION_ID};
use picofleet_storage::sqlite::{SqliteOptions, SqliteStore};
use tokio::time::Instant;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const NOW: Millis = Millis(1_700_000_000_000);

/// Entries of a commit.
const AT_ONCE: i64 = 1_000;

/// The steps, in their order.
const STEPS: [&str; 4] = ["make", "idle", "export", "import"];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let count: i64 = arguments.first().map_or(Ok(1_000_000), |text| text.parse())?;
    if let [_, step, folder] = arguments.as_slice() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        return runtime.block_on(run(step, Path::new(folder), count));
    }
    let folder = tempfile::tempdir()?;
    for step in STEPS {
        let status = Command::new(std::env::current_exe()?).args([&count.to_string(), step]).arg(folder.path()).status()?;
        if !status.success() {
            return Err(format!("{step} ended with {status}").into());
        }
    }
    Ok(())
}

async fn run(step: &str, folder: &Path, count: i64) -> Result<()> {
    let begin = Instant::now();
    match step {
        "make" => make(folder, count).await?,
        "idle" => SqliteStore::open_read_only(folder.join("a.db"))?.close().await?,
        "export" => export(folder).await?,
        "import" => import(folder).await?,
        _ => return Err(format!("there is no step {step}").into()),
    }
    let (peak, seconds) = (mebibytes()?, begin.elapsed().as_secs());
    let of =
        if step == "export" { format!(", {} MiB of lines", folder.join("export.jsonl").metadata()?.len() >> 20) } else { String::new() };
    say(&format!("{step} of {count} entries{of}: peak resident memory {peak} MiB, {seconds} s"))
}

async fn export(folder: &Path) -> Result<()> {
    let store = SqliteStore::open_read_only(folder.join("a.db"))?;
    let id = store.sessions(SessionQuery::default(), 1, None).await?.items.first().ok_or("there is no session")?.id;
    let mut lines = store.export(id).await?;
    let mut file = BufWriter::new(std::fs::File::create(folder.join("export.jsonl"))?);
    while let Some(line) = lines.try_next().await? {
        file.write_all(&line.to_text()?)?;
        file.write_all(b"\n")?;
    }
    file.flush()?;
    Ok(store.close().await?)
}

async fn import(folder: &Path) -> Result<()> {
    let store = SqliteStore::open(folder.join("b.db"), SqliteOptions::default())?;
    let reader = BufReader::new(std::fs::File::open(folder.join("export.jsonl"))?);
    let lines = stream::iter(reader.split(b'\n').zip(1..)).map(|(line, number)| {
        let line = line.map_err(|error| StorageError::failed("read", error))?;
        ExportLine::from_exported(&line).map_err(|why| Rejection::Import { line: number, why }.into())
    });
    store.import(ImportTarget { id: ImportId::Keep, tenant: Tenant::default(), at: NOW }, lines.boxed()).await?;
    Ok(store.close().await?)
}

async fn make(folder: &Path, count: i64) -> Result<()> {
    let store = SqliteStore::open(folder.join("a.db"), SqliteOptions::default())?;
    let id = store.create(SessionCreate::new(NOW)).await?.session.id;
    let line = store.open(id, Fence { epoch: Epoch(0), at: NOW }).await?;
    let mut head = line.opened();
    let mut next = head.next_id;
    while next < count {
        let mut writes = Vec::new();
        if head.seq.0 == line.opened().seq.0 {
            writes.push(Write::Conversation(ConversationRecord { id: ROOT_CONVERSATION_ID, parent: None, owner: None }));
        }
        for _ in 0..AT_ONCE {
            let data = Json::object([("text", Json::from("x".repeat(200))), ("n", Json::from(next))]);
            let entry = EntryDraft::new("example.note").data(data).into_record(EntryId::new(next)?, ROOT_CONVERSATION_ID, None);
            writes.push(Write::Entry(entry.into()));
            next += 1;
        }
        let commit = Commit { token: CommitToken::random(), at: NOW, next_id: next, writes };
        head = line.commit(Batch { expect: (head.seq, head.token), commits: vec![commit] }).await?;
    }
    line.release().await?;
    Ok(store.close().await?)
}

/// The high-water mark of this process's resident memory.
fn mebibytes() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("the system tells no high-water mark")?;
    let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kibibytes >> 10)
}

fn say(text: &str) -> Result<()> {
    Ok(writeln!(std::io::stdout(), "{text}")?)
}
