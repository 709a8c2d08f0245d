//! `picofleet export`: a session as JSON lines, all of one commit, whoever uses the store meanwhile.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::Args;
use futures::stream::BoxStream;
use futures::{StreamExt as _, TryStreamExt as _};
use picofleet_session::SessionId;
use picofleet_session::storage::{ExportLine, StorageError};
use serde::Serialize;

use crate::config::Config;
use crate::failure::Failure;
use crate::output::{self, Format};
use crate::stores::{self, StoreArgs};

/// What `picofleet export` takes.
#[derive(Args)]
pub(crate) struct ExportArgs {
    /// The session
    session: SessionId,
    /// Where the lines go; without it to standard output
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Replace the file if it is there
    #[arg(long, requires = "file")]
    force: bool,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

type Lines = BoxStream<'static, Result<ExportLine, StorageError>>;

/// What was written.
struct Written {
    lines: u64,
    sha256: String,
}

#[derive(Serialize)]
struct Done {
    session: SessionId,
    file: String,
    lines: u64,
    sha256: String,
}

pub(crate) async fn export(args: ExportArgs, config: &Config, format: Format) -> anyhow::Result<()> {
    if format == Format::Json && args.file.is_none() {
        bail!(Failure::Usage(
            "-o json says what was done and needs a FILE; without one the lines of the session are the output, and JSON already".to_owned()
        ));
    }
    if let Some(file) = args.file.as_deref().filter(|file| !args.force && file.symlink_metadata().is_ok()) {
        bail!(Failure::Usage(format!("{} is there already; name another file, or replace it with --force", file.display())));
    }
    let (url, store) = args.store.look(config).await?;
    stores::session(&*store, &url, args.session).await?;
    let lines = store.export(args.session).await?;
    let written = match &args.file {
        None => write(lines, &mut io::stdout().lock()).await.context("write to standard output")?,
        Some(file) => to_file(lines, file).await?,
    };
    store.close().await?;
    let Written { lines, sha256 } = written;
    match (format, args.file) {
        (Format::Json, Some(file)) => output::json(&Done { session: args.session, file: file.display().to_string(), lines, sha256 }),
        _ => output::remark(&format!("exported session {}: {lines} lines, SHA-256 {sha256}", args.session)),
    }
}

/// Writes the lines and the last one, which says how many there were.
async fn write(mut lines: Lines, to: &mut impl Write) -> anyhow::Result<Written> {
    let mut buffer = BufWriter::with_capacity(256 << 10, to);
    let mut end = None;
    while let Some(line) = lines.try_next().await? {
        buffer.write_all(&line.to_text().map_err(anyhow::Error::msg)?)?;
        buffer.write_all(b"\n")?;
        if let ExportLine::End { count, sha256 } = line {
            end = Some(Written { lines: count, sha256 });
        }
    }
    buffer.flush()?;
    end.context("the store ended the export without its last line")
}

/// Writes a file that appears complete or not at all.
async fn to_file(lines: Lines, file: &Path) -> anyhow::Result<Written> {
    let mut name = file.as_os_str().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let part = PathBuf::from(name);
    let written = to_part(lines, &part, file).await;
    if written.is_err() {
        // The first error counts; what can't be removed has no name that looks complete.
        let _ = std::fs::remove_file(&part);
    }
    let written = written.with_context(|| format!("the export was not written: {} is as it was before", file.display()))?;
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).with_context(|| {
        let (file, folder) = (file.display(), folder.display());
        format!("{file} has the whole export, but its folder {folder} could not be flushed to the disk: a loss of power may take its name; export again")
    })?;
    Ok(written)
}

async fn to_part(lines: Lines, part: &Path, file: &Path) -> anyhow::Result<Written> {
    let mut to = File::create(part).with_context(|| format!("make {}", part.display()))?;
    let written = write(lines.boxed(), &mut to).await.with_context(|| format!("write {}", part.display()))?;
    to.sync_all().with_context(|| format!("flush {} to the disk", part.display()))?;
    std::fs::rename(part, file).with_context(|| format!("give {} its name {}", part.display(), file.display()))?;
    Ok(written)
}
