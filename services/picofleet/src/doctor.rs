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
use picofleet_session::storage::{FINDINGS_MAX, Finding, PAGE_MAX, SessionQuery, SessionRecord, SessionState, StorageError, Store};
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
    pub(crate) store: StoreArgs,
}

/// What was looked at and found.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    store: String,
    sessions: u64,
    findings: Vec<Explained>,
    /// What is no damage and worth to know.
    notes: Vec<Explained>,
    /// There were so many findings that looking ended there.
    more: bool,
    /// There were more notes than were kept.
    more_notes: bool,
}

/// A finding with what it means.
#[derive(Serialize)]
struct Explained {
    #[serde(flatten)]
    finding: Finding,
    meaning: &'static str,
    advice: &'static str,
}

/// What was found, findings apart from notes: notes keep no finding out.
#[derive(Default)]
struct Found {
    findings: Vec<Explained>,
    notes: Vec<Explained>,
    more_notes: bool,
}

impl Found {
    fn add(&mut self, finding: Finding) {
        let (level, meaning, advice) = explain(finding.rule);
        let to = if level == Level::Note { &mut self.notes } else { &mut self.findings };
        if to.len() < FINDINGS_MAX {
            to.push(Explained { finding, meaning, advice });
        } else if level == Level::Note {
            self.more_notes = true;
        }
    }

    fn full(&self) -> bool {
        self.findings.len() >= FINDINGS_MAX
    }

    fn report(self, url: &StoreUrl, sessions: u64) -> Report {
        let more = self.full();
        Report { store: url.to_string(), sessions, findings: self.findings, notes: self.notes, more, more_notes: self.more_notes }
    }
}

pub(crate) async fn doctor(args: DoctorArgs, config: &Config, format: Format) -> anyhow::Result<()> {
    let (url, store) = args.store.look(config).await?;
    let mut found = Found::default();
    let sessions = match args.session {
        Some(id) => {
            one(&*store, &url, id, &mut found).await?;
            1
        }
        None => everything(&*store, &mut found).await?,
    };
    let report = found.report(&url, sessions);
    match format {
        Format::Json => output::json(&report)?,
        Format::Table => output::data(&report.text())?,
    }
    match report.findings.len() {
        0 => Ok(()),
        count if report.more => bail!("{count} findings in {url}, and perhaps more: looking ended there"),
        1 => bail!("1 finding in {url}"),
        count => bail!("{count} findings in {url}"),
    }
}

/// A session that is asked for.
async fn one(store: &dyn Store, url: &StoreUrl, id: SessionId, found: &mut Found) -> anyhow::Result<()> {
    match store.session(id).await {
        Err(StorageError::Corrupt(corruption)) => {
            // Only JSON lines have files of a session.
            let rule = if matches!(url, StoreUrl::Jsonl(_)) { "files" } else { "record" };
            found.add(Finding::of_session(rule, id, corruption.to_string()));
            Ok(())
        }
        Err(error) => Err(anyhow!(error).context(format!("look at session {id}"))),
        Ok(None) => Err(stores::no_session(url, id)),
        Ok(Some(record)) => session(store, &record, found).await,
    }
}

/// The store itself and all of its sessions. Says how many there were.
async fn everything(store: &dyn Store, found: &mut Found) -> anyhow::Result<u64> {
    store.examine().await?.into_iter().for_each(|finding| found.add(finding));
    let (mut sessions, mut cursor) = (0, None);
    loop {
        let page = match store.sessions(SessionQuery::default(), PAGE_MAX, cursor).await {
            Err(StorageError::Corrupt(corruption)) => {
                found.add(Finding::of_store("record", corruption.to_string()));
                return Ok(sessions);
            }
            page => page?,
        };
        for record in page.items {
            if found.full() {
                return Ok(sessions);
            }
            sessions += 1;
            session(store, &record, found).await?;
        }
        cursor = page.next;
        if cursor.is_none() {
            return Ok(sessions);
        }
    }
}

async fn session(store: &dyn Store, record: &SessionRecord, found: &mut Found) -> anyhow::Result<()> {
    if record.state == SessionState::Quarantined {
        found.add(Finding::of_session("quarantine", record.id, "the session is quarantined"));
    }
    examine(store, record.id, found).await
}

/// What a session has, as of one commit.
async fn examine(store: &dyn Store, id: SessionId, found: &mut Found) -> anyhow::Result<()> {
    let mut model = Model::default();
    let read = read(store, id, &mut model).await;
    let whole = match read {
        Ok(()) => true,
        // It was deleted meanwhile.
        Err(StorageError::NotFound { .. }) => return Ok(()),
        Err(StorageError::Corrupt(corruption)) => {
            found.add(Finding::of_session("record", id, format!("{}: {}", corruption.what, corruption.why)));
            false
        }
        Err(error) => return Err(anyhow!(error).context(format!("look at session {id}"))),
    };
    for (rule, what) in model.finish(whole) {
        found.add(Finding::of_session(rule, id, what));
    }
    Ok(())
}

async fn read(store: &dyn Store, id: SessionId, model: &mut Model) -> Result<(), StorageError> {
    let mut lines = store.export(id).await?;
    while let Some(line) = lines.next().await {
        model.take(line?);
    }
    Ok(())
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
        if self.more_notes {
            text.push_str(&format!("more than {FINDINGS_MAX} notes: the rest was left out\n"));
        }
        let result = if self.findings.is_empty() { "no findings" } else { "findings above" };
        text.push_str(&format!("{}: {} sessions looked at, {result}\n", terminal::line(&self.store), self.sessions));
        text
    }
}
