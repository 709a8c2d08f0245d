//! Recovery of a JSONL store whose files were damaged at random: it opens, a look shows what opening shows, and opening again does, too.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::{Path, PathBuf};

use futures::StreamExt as _;
use picofleet_session::storage::{Batch, Commit, ExportLine, SessionCreate, StorageError, Store as _};
use picofleet_session::{CommitToken, SessionId, TaskState};
use picofleet_storage::conformance::records::{completed, conversation, create, entry, pending, put_task, rebase, rewindable, set, task};
use picofleet_storage::conformance::{NOW, fence};
use picofleet_storage::jsonl::{JsonlOptions, JsonlStore};
use proptest::prelude::*;

fn session() -> SessionId {
    SessionId::from_key("recovery", "one")
}

/// A store with a session of some commits, whose sidecars were not written anew.
async fn make(root: &Path) {
    let store = JsonlStore::open(root, JsonlOptions { reclaim_bytes: 0, ..JsonlOptions::default() }).unwrap();
    store.create(SessionCreate { id: session(), ..SessionCreate::new(NOW) }).await.unwrap();
    let line = store.open(session(), fence()).await.unwrap();
    let mut head = line.opened();
    let over = TaskState::Terminal { outcome: completed() };
    let commits = [
        (5, vec![conversation(1), create(2, rewindable(1), r#"{"n":1}"#), put_task(&task(3, pending())), put_task(&task(4, pending()))]),
        (6, vec![entry(5, 1), set(2, "n", "2"), put_task(&task(3, pending()))]),
        (6, vec![rebase(1, 2, r#"{"n":3}"#), put_task(&task(4, over))]),
    ];
    for (next_id, writes) in commits {
        let commit = Commit { token: CommitToken::random(), at: NOW, next_id, writes };
        head = line.commit(Batch { expect: (head.seq, head.token), commits: vec![commit] }).await.unwrap();
    }
    line.release().await.unwrap();
    store.close().await.unwrap();
}

/// All that a store shows of the session; nothing where it can't be used.
async fn shown(store: &JsonlStore) -> Option<Vec<ExportLine>> {
    let lines = match store.export(session()).await {
        Ok(lines) => lines,
        Err(StorageError::Corrupt(_) | StorageError::NotFound { .. } | StorageError::Failed { .. }) => return None,
        Err(error) => panic!("{error}"),
    };
    Some(lines.map(|line| line.unwrap()).collect().await)
}

#[derive(Clone, Debug)]
enum Damage {
    Byte(prop::sample::Index, u8),
    Digits(prop::sample::Index, u8),
    Cut(prop::sample::Index),
    More(Vec<u8>),
    Gone,
}

fn damage() -> impl Strategy<Value = Damage> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        3 => (index(), any::<u8>()).prop_map(|(at, to)| Damage::Byte(at, to)),
        2 => (index(), 1..25_u8).prop_map(|(at, count)| Damage::Digits(at, count)),
        3 => index().prop_map(Damage::Cut),
        1 => prop::collection::vec(any::<u8>(), 0..40).prop_map(Damage::More),
        1 => Just(Damage::Gone),
    ]
}

fn files(root: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = root.join(session().to_string()).read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn apply(damage: &Damage, path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    match damage {
        Damage::Byte(at, to) if !bytes.is_empty() => {
            let at = at.index(bytes.len());
            bytes[at] = *to;
        }
        // A number that becomes very large.
        Damage::Digits(at, count) => {
            let numbers: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at].is_ascii_digit()).collect();
            if !numbers.is_empty() {
                let at = numbers[at.index(numbers.len())];
                bytes.splice(at..at, std::iter::repeat_n(b'9', usize::from(*count)));
            }
        }
        Damage::Cut(at) => bytes.truncate(at.index(bytes.len() + 1)),
        Damage::More(more) => bytes.extend(more),
        Damage::Byte(..) => {}
        Damage::Gone => return std::fs::remove_file(path).unwrap(),
    }
    std::fs::write(path, bytes).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_store_opens_and_shows_the_same_each_time(damages in prop::collection::vec((any::<prop::sample::Index>(), damage()), 1..3)) {
        let root = tempfile::tempdir().unwrap();
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
            make(root.path()).await;
            for (file, damage) in &damages {
                let files = files(root.path());
                if !files.is_empty() {
                    apply(damage, &files[file.index(files.len())]);
                }
            }
            let looking = JsonlStore::open_read_only(root.path()).unwrap();
            let before = shown(&looking).await;
            for _ in 0..2 {
                let store = JsonlStore::open(root.path(), JsonlOptions::default()).unwrap();
                prop_assert_eq!(&shown(&store).await, &before);
                store.close().await.unwrap();
            }
            Ok(())
        })?;
    }
}
