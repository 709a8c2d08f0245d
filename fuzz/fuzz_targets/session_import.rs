//! Importing lines: whatever they are, they become a session whose export is those lines, or nothing is there afterwards.
//!
//! An input is the text of an export. Its last line is made anew, so that the hash does not refuse everything.
#![no_main]

use futures::executor::block_on;
use futures::{StreamExt as _, stream};
use libfuzzer_sys::fuzz_target;
use picofleet_session::Millis;
use picofleet_session::storage::{
    ExportLine, ExportWriter, ImportId, ImportTarget, Rejection, SessionQuery, StorageError, Store as _, Tenant,
};
use picofleet_storage::memory::MemoryStore;

/// The lines that can be read, with the last one that belongs to them.
fn lines(text: &[u8]) -> Option<Vec<ExportLine>> {
    let mut lines = Vec::new();
    let mut writer = ExportWriter::default();
    for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let read = ExportLine::from_text(line).ok()?;
        let written = read.to_text().expect("what was read can be written");
        assert!(ExportLine::from_exported(&written).as_ref() == Ok(&read), "what was written is read as it was");
        if !matches!(read, ExportLine::End { .. }) {
            writer.count(&read).expect("it was written above");
            lines.push(read);
        }
    }
    lines.push(writer.end());
    Some(lines)
}

fuzz_target!(|text: &[u8]| {
    let Some(lines) = lines(text) else { return };
    let store = MemoryStore::new();
    let target = ImportTarget { id: ImportId::Keep, tenant: Tenant::default(), at: Millis(1) };
    block_on(async {
        match store.import(target, stream::iter(lines.clone()).map(Ok).boxed()).await {
            Ok(session) => {
                let exported: Vec<_> = store.export(session.id).await.expect("it was imported").collect().await;
                let exported: Vec<ExportLine> = exported.into_iter().map(|line| line.expect("it can be read")).collect();
                // Content of a latest document below its newest base is nothing that anybody can read, and is left out.
                let whole = exported.len() == lines.len();
                assert!(!whole || exported == lines, "other lines");
                let again = MemoryStore::new();
                let target = ImportTarget { id: ImportId::Keep, tenant: Tenant::default(), at: Millis(1) };
                let record = again.import(target, stream::iter(exported.clone()).map(Ok).boxed()).await.expect("an export can be imported");
                let twice: Vec<_> = again.export(record.id).await.expect("it was imported").map(|line| line.expect("it can be read")).collect().await;
                assert!(twice == exported, "an export of an import has other lines");
            }
            Err(StorageError::Rejected(refused)) => {
                assert!(!matches!(refused.reason, Rejection::SessionExists { .. }));
                let left = store.sessions(SessionQuery::default(), 1, None).await.expect("the store works");
                assert!(left.items.is_empty(), "a refused import left a session");
            }
            Err(error) => panic!("{error}"),
        }
    });
});
