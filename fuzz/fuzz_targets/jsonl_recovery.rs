//! Recovery of a JSONL store: whatever the files of a session hold, the store opens, what it shows before it is opened is what it shows
//! afterwards, it shows the same when it is opened again, and it takes a commit or says why not.
//!
//! An input is the content of files, each behind a line that begins with `#` and names it.
#![no_main]

use std::path::Path;

use futures::StreamExt as _;
use libfuzzer_sys::fuzz_target;
use picofleet_session::storage::{Batch, Commit, ExportLine, Fence, StorageError, Store};
use picofleet_session::{CommitToken, Epoch, Millis, SessionId};
use picofleet_storage::jsonl::{JsonlOptions, JsonlStore};

const SESSION: &str = "01a230b8-1e0a-749a-a7c4-da671269cb4b";

const NAMES: [&[u8]; 5] = [b"main", b"doc-2", b"doc-3", b"task-4", b"task-5"];

/// The files in the directory of the session. Anything else than the names above is part of a file.
fn lay(directory: &Path, input: &[u8]) {
    let mut name = "main".to_owned();
    let mut content = Vec::new();
    let put = |name: &str, content: &[u8]| std::fs::write(directory.join(format!("{name}.jsonl")), content).expect("a file");
    for line in input.split_inclusive(|byte| *byte == b'\n') {
        match line.strip_prefix(b"#").map(|rest| rest.trim_ascii_end()).filter(|rest| NAMES.contains(rest)) {
            Some(next) => {
                put(&name, &std::mem::take(&mut content));
                name = String::from_utf8_lossy(next).into_owned();
            }
            None => content.extend_from_slice(line),
        }
    }
    put(&name, &content);
}

type Shown = Result<Vec<ExportLine>, ()>;

/// All that a store shows of the session; an error where it can't be used.
async fn shown(store: &JsonlStore, id: SessionId) -> Shown {
    let lines = match store.export(id).await {
        Ok(lines) => lines,
        Err(StorageError::Corrupt(_) | StorageError::NotFound { .. } | StorageError::Failed { .. }) => return Err(()),
        Err(error) => panic!("{error}"),
    };
    Ok(lines.map(|line| line.expect("what was opened can be read")).collect().await)
}

async fn check(root: &Path) {
    let id: SessionId = SESSION.parse().expect("an id");
    let looking = JsonlStore::open_read_only(root).expect("the store can be looked at");
    let before = shown(&looking, id).await;
    let store = JsonlStore::open(root, JsonlOptions::default()).expect("the store opens");
    let after = shown(&store, id).await;
    assert!(before == after, "looking showed something else than opening");
    store.close().await.expect("the store closes");
    let store = JsonlStore::open(root, JsonlOptions::default()).expect("the store opens again");
    assert!(shown(&store, id).await == after, "recovery is not done once");
    if after.is_ok()
        && let Ok(line) = store.open(id, Fence { epoch: Epoch(i64::MAX), at: Millis(1) }).await
    {
        let head = line.opened();
        let commit = Commit { token: CommitToken::random(), at: Millis(1), next_id: head.next_id, writes: Vec::new() };
        if line.commit(Batch { expect: (head.seq, head.token), commits: vec![commit] }).await.is_ok() {
            let written = shown(&store, id).await;
            store.close().await.expect("the store closes");
            let store = JsonlStore::open(root, JsonlOptions::default()).expect("the store opens after a commit");
            assert!(shown(&store, id).await == written, "a commit is not there after it was acknowledged");
            return store.close().await.expect("the store closes");
        }
    }
    store.close().await.expect("the store closes");
}

fuzz_target!(|input: &[u8]| {
    let root = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
    std::fs::write(root.path().join("store.json"), "{\"format\":1,\"partitions\":256}\n").expect("a file");
    let directory = root.path().join(SESSION);
    std::fs::create_dir(&directory).expect("a directory");
    lay(&directory, input);
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(check(root.path()));
});
