//! `picofleet models`: what is configured, and whether it works.

mod probe;

use std::io::Write as _;

use anyhow::{Context as _, bail};
use picofleet_models::registry::Models;
use picofleet_session::Clock;
use serde::Serialize;

use crate::config::Config;
use crate::failure::Failure;
use crate::output::{self, Format};
use crate::terminal;

use probe::{Outcome, Probe, TIMEOUT, probe};

/// Says one line, which may have words of a server in it.
fn say(text: &str) -> anyhow::Result<()> {
    writeln!(std::io::stdout(), "{}", terminal::line(text)).context("write to the terminal")
}

/// The models of a configuration, with keys from this process's environment.
pub(crate) fn models(config: &Config) -> Models {
    Models::new(&config.providers, Clock::system(), |name| std::env::var_os(name))
}

/// What is configured.
#[derive(Serialize)]
struct List {
    models: Vec<Listed>,
    problems: Vec<Problem>,
}

/// A model in the list.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Listed {
    /// As `models test` and `--model` take it.
    model: String,
    api: String,
    context_window: u64,
    max_tokens: u64,
    default: bool,
}

/// A provider that can't be used.
#[derive(Serialize)]
struct Problem {
    provider: String,
    error: String,
}

/// Lists the configured models, and the providers that can't be used.
pub(crate) fn list(config: &Config, format: Format) -> anyhow::Result<()> {
    let models = models(config);
    let default = models.default_model(&config.defaults).map(|model| (model.provider.clone(), model.id.clone()));
    let listed = models.models().map(|model| Listed {
        model: format!("{}/{}", model.provider, model.id),
        api: model.api.clone(),
        context_window: model.context_window,
        max_tokens: model.max_tokens,
        default: default == Some((model.provider.clone(), model.id.clone())),
    });
    let problems = models.problems().map(|(provider, error)| Problem { provider: provider.to_owned(), error: error.with_causes() });
    let list = List { models: listed.collect(), problems: problems.collect() };
    if format == Format::Json {
        return output::json(&list);
    }
    say(&format!("{:<40} {:<20} {:>10} {:>10}", "MODEL", "API", "CONTEXT", "OUTPUT"))?;
    for Listed { model, api, context_window, max_tokens, default } in list.models {
        let name = format!("{model}{}", if default { " (default)" } else { "" });
        say(&format!("{name:<40} {api:<20} {context_window:>10} {max_tokens:>10}"))?;
    }
    for Problem { provider, error } in list.problems {
        say(&format!("provider {provider} can't be used: {error}"))?;
    }
    Ok(())
}

/// What came of one request.
#[derive(Serialize)]
struct Tried {
    what: &'static str,
    /// `null` where it was not tried or does not apply.
    works: Option<bool>,
    detail: String,
}

/// What came of all.
#[derive(Serialize)]
struct Results<'a> {
    model: &'a str,
    results: Vec<Tried>,
}

/// Asks a model for a streamed answer, a tool call and a deliberate error, and says what worked.
pub(crate) async fn test(config: &Config, name: &str, format: Format) -> anyhow::Result<()> {
    let models = models(config);
    let Some((provider, id)) = name.split_once('/') else {
        bail!(Failure::Usage(format!("{name:?} is no PROVIDER/MODEL; `picofleet models list` shows those that are configured")));
    };
    let Some(model) = models.get_model(provider, id) else {
        bail!(Failure::Usage(format!("there is no model {name}; `picofleet models list` shows those that are configured")));
    };
    let table = format == Format::Table;
    if table {
        say(&format!("{name} is asked for three things; each may take up to {} s", TIMEOUT.as_secs()))?;
        say(&format!("{:<16} {:<7} {}", "WHAT", "WORKS", "DETAIL"))?;
    }
    let (mut tally, mut results) = (Tally::default(), Vec::new());
    for what in [Probe::Answer, Probe::Tool, Probe::Error] {
        if table {
            begin(what)?;
        }
        let outcome = match tally.stopped {
            Some(reason) => Outcome::NotTried(reason),
            None => probe(&models, model, what).await,
        };
        let (works, detail) = tally.add(what, outcome);
        if table {
            say(&format!("{:<7} {}", word(works), cut(&detail)))?;
        }
        results.push(Tried { what: what.name(), works, detail: cut(&detail) });
    }
    if !table {
        output::json(&Results { model: name, results })?;
    }
    tally.end()
}

/// Whether something works, as a word.
const fn word(works: Option<bool>) -> &'static str {
    match works {
        Some(true) => "yes",
        Some(false) => "no",
        None => "-",
    }
}

/// Says what is tried, before it may take its time.
fn begin(what: Probe) -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    write!(out, "{:<16} ", what.name()).and_then(|()| out.flush()).context("write to the terminal")
}

/// Most characters of what came of a request: servers answer with whole pages.
const DETAIL_MAX: usize = 2000;

/// The begin of a text, and how much more there is.
fn cut(text: &str) -> String {
    match text.char_indices().nth(DETAIL_MAX) {
        None => text.to_owned(),
        Some((at, _)) => {
            let (begin, rest) = text.split_at(at);
            format!("{begin}... ({} more characters)", rest.chars().count())
        }
    }
}

/// What came of all requests.
#[derive(Default)]
struct Tally {
    tried: usize,
    failed: usize,
    answered: bool,
    /// Why no more requests are made.
    stopped: Option<&'static str>,
}

impl Tally {
    /// Counts one; gives whether it works, and the words about it.
    fn add(&mut self, what: Probe, outcome: Outcome) -> (Option<bool>, String) {
        let (works, detail) = match outcome {
            // Where nothing works, an error says nothing about the model that does not exist.
            Outcome::Works(detail) if what == Probe::Error && !self.answered => {
                (Some(false), format!("an ordinary request fails as well: {detail}"))
            }
            Outcome::Works(detail) => {
                self.answered |= what == Probe::Answer;
                (Some(true), detail)
            }
            Outcome::Fails(detail) => (Some(false), detail),
            Outcome::Stops { detail, reason } => {
                self.stopped = Some(reason);
                (Some(false), detail)
            }
            Outcome::DoesNotApply(reason) | Outcome::NotTried(reason) => (None, reason.to_owned()),
        };
        self.tried += usize::from(works.is_some());
        self.failed += usize::from(works == Some(false));
        (works, detail)
    }

    fn end(self) -> anyhow::Result<()> {
        if self.failed > 0 {
            let rest = self.stopped.map(|reason| format!("; the rest was {reason}")).unwrap_or_default();
            bail!("{} of {} did not work{rest}", self.failed, self.tried);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_detail_is_cut() {
        assert_eq!(cut(&"é".repeat(2000)), "é".repeat(2000));
        assert_eq!(cut(&"é".repeat(2003)), format!("{}... (3 more characters)", "é".repeat(2000)));
    }
}
