//! A session that moves from one backend to another is the same session there, and lines that were changed are no session.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "programs/program.rs"]
#[allow(dead_code, reason = "its other user sends batches on wrong predecessors, too")]
mod program;

use std::sync::Arc;

use futures::{StreamExt as _, stream};
use picofleet_session::SessionId;
use picofleet_session::storage::{
    Batch, ExportLine, ImportId, ImportTarget, Rejection, SessionCreate, SessionQuery, StorageError, Store, Tenant,
};
use picofleet_storage::conformance::{NOW, export, fence};
use picofleet_storage::jsonl::{JsonlOptions, JsonlStore};
use picofleet_storage::memory::MemoryStore;
use picofleet_storage::sqlite::{SqliteOptions, SqliteStore};
use program::{Known, Program, Step, program};
use proptest::prelude::*;

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// A session that a program made. Batches that are refused are left out.
async fn session(store: &dyn Store, program: &Program) -> SessionId {
    let id = SessionId::from_key("transfers", "one");
    store.create(SessionCreate { id, ..SessionCreate::new(NOW) }).await.unwrap();
    let line = store.open(id, fence()).await.unwrap();
    let mut head = line.opened();
    let mut known = Known::new(head.next_id);
    head = line.commit(Batch { expect: (head.seq, head.token), commits: vec![known.root()] }).await.unwrap();
    for step in &program.0 {
        let Step::Batch { commits, .. } = step else { continue };
        let (commits, after) = known.resolve(commits, head.seq);
        if let Ok(landed) = line.commit(Batch { expect: (head.seq, head.token), commits }).await {
            head = landed;
            known = after;
        }
    }
    line.release().await.unwrap();
    id
}

async fn import(store: &dyn Store, lines: Vec<Result<ExportLine, StorageError>>) -> Result<SessionId, StorageError> {
    let target = ImportTarget { id: ImportId::Keep, tenant: Tenant::default(), at: NOW };
    Ok(store.import(target, stream::iter(lines).boxed()).await?.id)
}

/// The text of an export.
fn text(lines: &[ExportLine]) -> Vec<Vec<u8>> {
    lines.iter().map(|line| line.to_text().unwrap()).collect()
}

fn parsed(text: &[Vec<u8>]) -> Vec<Result<ExportLine, StorageError>> {
    let line = |(at, text): (usize, &Vec<u8>)| {
        ExportLine::from_exported(text).map_err(|why| Rejection::Import { line: at as u64 + 1, why }.into())
    };
    text.iter().enumerate().map(line).collect()
}

/// An empty store of each backend.
fn stores(folder: &std::path::Path, name: &str) -> Vec<Arc<dyn Store>> {
    vec![
        Arc::new(MemoryStore::new()),
        Arc::new(SqliteStore::open(folder.join(format!("{name}.db")), SqliteOptions::default()).unwrap()),
        Arc::new(JsonlStore::open(folder.join(name), JsonlOptions::default()).unwrap()),
    ]
}

async fn moves(program: &Program) {
    let folder = tempfile::tempdir().unwrap();
    for (from, source) in stores(folder.path(), "source").iter().enumerate() {
        let id = session(&**source, program).await;
        let lines = text(&export(&**source, id).await);
        for (to, target) in stores(folder.path(), &format!("target-{from}")).iter().enumerate() {
            let imported = import(&**target, parsed(&lines)).await.unwrap_or_else(|error| panic!("from {from} to {to}: {error}"));
            assert_eq!(imported, id);
            let again = text(&export(&**target, id).await);
            assert!(lines == again, "from {from} to {to}: other lines");
            target.close().await.unwrap();
        }
        source.close().await.unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_backend_gives_to_every_other_one_what_it_has(program in program()) {
        block_on(moves(&program));
    }
}

/// What somebody does to a file.
#[derive(Clone, Debug)]
enum Damage {
    Byte { line: prop::sample::Index, at: prop::sample::Index, to: u8 },
    Cut(prop::sample::Index),
    Drop(prop::sample::Index),
    Double(prop::sample::Index),
    Swap(prop::sample::Index, prop::sample::Index),
    Member(prop::sample::Index),
}

fn damage() -> impl Strategy<Value = Damage> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        4 => (index(), index(), any::<u8>()).prop_map(|(line, at, to)| Damage::Byte { line, at, to }),
        1 => index().prop_map(Damage::Cut),
        1 => index().prop_map(Damage::Drop),
        1 => index().prop_map(Damage::Double),
        1 => (index(), index()).prop_map(|(one, other)| Damage::Swap(one, other)),
        1 => index().prop_map(Damage::Member),
    ]
}

impl Damage {
    fn on(&self, mut text: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        let lines = text.len();
        match self {
            Self::Byte { line, at, to } => {
                let line = &mut text[line.index(lines)];
                let at = at.index(line.len());
                line[at] = *to;
            }
            Self::Cut(at) => text.truncate(at.index(lines)),
            Self::Drop(at) => drop(text.remove(at.index(lines))),
            Self::Double(at) => text.insert(at.index(lines), text[at.index(lines)].clone()),
            Self::Swap(one, other) => text.swap(one.index(lines), other.index(lines)),
            Self::Member(at) => {
                let line = &mut text[at.index(lines)];
                line.pop();
                line.extend(br#","unknown":1}"#);
            }
        }
        text
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_file_that_was_changed_is_refused_and_leaves_no_session(program in program(), damage in damage()) {
        block_on(async {
            let source = MemoryStore::new();
            let id = session(&source, &program).await;
            let text = text(&export(&source, id).await);
            let damaged = damage.on(text.clone());
            if damaged == text {
                return;
            }
            let target = MemoryStore::new();
            let refused = import(&target, parsed(&damaged)).await;
            assert!(
                matches!(&refused, Err(StorageError::Rejected(refused)) if matches!(refused.reason, Rejection::Import { .. })),
                "{damage:?}: {refused:?}"
            );
            assert_eq!(target.sessions(SessionQuery::default(), 10, None).await.unwrap().items, []);
        });
    }
}
