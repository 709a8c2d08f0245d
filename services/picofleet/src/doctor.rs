//! `picofleet doctor`: whether what is stored can be true. It writes nothing, and looks at a store that others use, too: each session as of
//! one commit.
//!
//! The rules are those of `docs/invariants.md` as far as stored state alone can show them, and those of the backends. They are written
//! down here a second time on purpose: a check that asked the code which wrote the records would agree with it.

mod documents;
mod explain;
mod model;
mod references;
mod tasks;
#[cfg(test)]
mod tests;

use anyhow::{anyhow, bail};
use clap::Args;
use futures::StreamExt as _;
use picofleet_session::SessionId;
use picofleet_session::storage::{FINDINGS_MAX, Finding, PAGE_MAX, SessionQuery, SessionState, StorageError, Store};
use serde::Serialize;

use crate::config::{Config, StoreUrl};
use crate::output::{self, Format};
use crate::stores::{self, StoreArgs};
use crate::terminal;
use explain::{Level, explain};
use model::Model;

/// What `picofleet doctor` takes.
#[derive(Args)]
pub(crate) struct DoctorArgs {
    /// Look at one session instead of all, and not at the store around it
    session: Option<SessionId>,
    #[command(flatten)]
    store: StoreArgs,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// What was looked at and found.
#[derive(Serialize)]
struct Report {
    store: String,
    sessions: u64,
    findings: Vec<Explained>,
    /// What is no damage and worth to know.
    notes: Vec<Explained>,
    /// There are more findings than were kept.
    more: bool,
}

/// A finding with what it means.
#[derive(Serialize)]
struct Explained {
    #[serde(flatten)]
    finding: Finding,
    meaning: &'static str,
    advice: &'static str,
}

pub(crate) async fn doctor(args: DoctorArgs, config: &Config) -> anyhow::Result<()> {
    let (url, store) = args.store.look(config).await?;
    let mut found = Vec::new();
    let sessions = match args.session {
        Some(id) => {
            stores::session(&*store, &url, id).await?;
            examine(&*store, id, &mut found).await?;
            1
        }
        None => everything(&*store, &mut found).await?,
    };
    let report = report(&url, sessions, found);
    let count = report.findings.len();
    match args.output {
        Format::Json => output::json(&report)?,
        Format::Table => output::data(&report.text())?,
    }
    match count {
        0 => Ok(()),
        _ if report.more => bail!("more than {count} findings in {url}"),
        1 => bail!("1 finding in {url}"),
        _ => bail!("{count} findings in {url}"),
    }
}

/// The store itself and all of its sessions. Says how many there were.
async fn everything(store: &dyn Store, found: &mut Vec<Finding>) -> anyhow::Result<u64> {
    found.extend(store.examine().await?);
    let (mut sessions, mut cursor) = (0, None);
    loop {
        let page = match store.sessions(SessionQuery::default(), PAGE_MAX, cursor).await {
            Err(StorageError::Corrupt(corruption)) => {
                found.push(Finding::of_store("record", corruption.to_string()));
                return Ok(sessions);
            }
            page => page?,
        };
        for record in page.items {
            sessions += 1;
            if record.state == SessionState::Quarantined {
                found.push(Finding::of_session("quarantine", record.id, "the session is quarantined"));
            }
            examine(store, record.id, found).await?;
            if found.len() > FINDINGS_MAX {
                return Ok(sessions);
            }
        }
        cursor = page.next;
        if cursor.is_none() {
            return Ok(sessions);
        }
    }
}

/// One session, as of one commit.
async fn examine(store: &dyn Store, id: SessionId, found: &mut Vec<Finding>) -> anyhow::Result<()> {
    let mut model = Model::default();
    let read = read(store, id, &mut model).await;
    let whole = match read {
        Ok(()) => true,
        // It was deleted meanwhile.
        Err(StorageError::NotFound { .. }) => return Ok(()),
        Err(StorageError::Corrupt(corruption)) => {
            found.push(Finding::of_session("record", id, format!("{}: {}", corruption.what, corruption.why)));
            false
        }
        Err(error) => return Err(anyhow!(error).context(format!("look at session {id}"))),
    };
    let broken = model.finish(whole);
    found.extend(broken.into_iter().map(|(rule, what)| Finding::of_session(rule, id, what)));
    Ok(())
}

async fn read(store: &dyn Store, id: SessionId, model: &mut Model) -> Result<(), StorageError> {
    let mut lines = store.export(id).await?;
    while let Some(line) = lines.next().await {
        model.take(line?);
    }
    Ok(())
}

fn report(url: &StoreUrl, sessions: u64, mut found: Vec<Finding>) -> Report {
    let more = found.len() > FINDINGS_MAX;
    found.truncate(FINDINGS_MAX);
    let (mut findings, mut notes) = (Vec::new(), Vec::new());
    for finding in found {
        let (level, meaning, advice) = explain(finding.rule);
        let to = if level == Level::Note { &mut notes } else { &mut findings };
        to.push(Explained { finding, meaning, advice });
    }
    Report { store: url.to_string(), sessions, findings, notes, more }
}

impl Report {
    fn text(&self) -> String {
        let mut text = String::new();
        for (word, list) in [("finding", &self.findings), ("note", &self.notes)] {
            for Explained { finding, meaning, advice } in list {
                let of = finding.session.map(|id| format!(" in session {id}")).unwrap_or_default();
                let head = output::bold(&format!("{word} {}", finding.rule));
                text.push_str(&format!("{head}{of}: {}\n", terminal::line(&finding.what)));
                text.push_str(&format!("  means: {meaning}\n  to do: {advice}\n"));
            }
        }
        let result = if self.findings.is_empty() { "no findings" } else { "findings above" };
        text.push_str(&format!("{}: {} sessions looked at, {result}\n", terminal::line(&self.store), self.sessions));
        text
    }
}
