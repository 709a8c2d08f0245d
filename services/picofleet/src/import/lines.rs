//! Lines of a file or of standard input, one by one.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use picofleet_session::storage::{ExportLine, Rejection, StorageError};
use tokio::sync::mpsc;

/// Most bytes of a line, so that a file without line feeds doesn't fill the memory: as many as a SQLite store takes in one batch of commits.
/// The other stores have no such bound, and a record that large can't be moved out of them.
const LINE_MAX: u64 = 256 << 20;

/// How many lines are read ahead.
const AHEAD: usize = 8;

type Lines = BoxStream<'static, Result<ExportLine, StorageError>>;

/// The lines, and how many were read so far.
pub(super) fn lines(file: Option<PathBuf>) -> io::Result<(Lines, Arc<AtomicU64>)> {
    let reader: Box<dyn BufRead + Send> = match file {
        None => Box::new(BufReader::new(io::stdin())),
        Some(file) => Box::new(BufReader::with_capacity(256 << 10, File::open(file)?)),
    };
    let (sender, mut receiver) = mpsc::channel(AHEAD);
    let count = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&count);
    // A thread of its own, which nobody joins: it may wait for standard input when the import has failed already.
    std::thread::Builder::new().name("picofleet-import".to_owned()).spawn(move || {
        let mut source = Source { reader, number: 0, line: Vec::new() };
        while let Some(line) = source.next() {
            counted.store(source.number, Ordering::Relaxed);
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    })?;
    Ok((stream::poll_fn(move |cx| receiver.poll_recv(cx)).boxed(), count))
}

struct Source {
    reader: Box<dyn BufRead + Send>,
    number: u64,
    line: Vec<u8>,
}

impl Source {
    fn next(&mut self) -> Option<Result<ExportLine, StorageError>> {
        self.line.clear();
        match (&mut self.reader).take(LINE_MAX + 1).read_until(b'\n', &mut self.line) {
            Ok(0) => return None,
            Ok(_) => {}
            Err(error) => return Some(Err(StorageError::failed(format!("read line {}", self.number + 1), error))),
        }
        self.number += 1;
        let text = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
        let line =
            if text.len() as u64 > LINE_MAX { Err(format!("it has more than {LINE_MAX} bytes")) } else { ExportLine::from_exported(text) };
        Some(line.map_err(|why| Rejection::Import { line: self.number, why }.into()))
    }
}
