//! `picofleet models`: what is configured, and whether it works.

mod probe;

use std::io::Write as _;

use anyhow::{Context as _, bail};
use picofleet_models::registry::Models;
use picofleet_session::Clock;

use crate::config::Config;
use crate::failure::Failure;
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

/// Lists the configured models, and the providers that can't be used.
pub(crate) fn list(config: &Config) -> anyhow::Result<()> {
    let models = models(config);
    let default = models.default_model(&config.defaults).map(|model| (model.provider.clone(), model.id.clone()));
    say(&format!("{:<40} {:<20} {:>10} {:>10}", "MODEL", "API", "CONTEXT", "OUTPUT"))?;
    for model in models.models() {
        let mark = if default == Some((model.provider.clone(), model.id.clone())) { " (default)" } else { "" };
        let name = format!("{}/{}{mark}", model.provider, model.id);
        say(&format!("{name:<40} {:<20} {:>10} {:>10}", model.api, model.context_window, model.max_tokens))?;
    }
    for (provider, error) in models.problems() {
        say(&format!("provider {provider} can't be used: {}", error.with_causes()))?;
    }
    Ok(())
}

/// Asks a model for a streamed answer, a tool call and a deliberate error, and says what worked.
pub(crate) async fn test(config: &Config, name: &str) -> anyhow::Result<()> {
    let models = models(config);
    let Some((provider, id)) = name.split_once('/') else {
        bail!(Failure::Usage(format!("{name:?} is no PROVIDER/MODEL; `picofleet models list` shows those that are configured")));
    };
    let Some(model) = models.get_model(provider, id) else {
        bail!(Failure::Usage(format!("there is no model {name}; `picofleet models list` shows those that are configured")));
    };
    say(&format!("{name} is asked for three things; each may take up to {} s", TIMEOUT.as_secs()))?;
    say(&format!("{:<16} {:<7} {}", "WHAT", "WORKS", "DETAIL"))?;
    let mut tally = Tally::default();
    for what in [Probe::Answer, Probe::Tool, Probe::Error] {
        begin(what)?;
        let outcome = match tally.stopped {
            Some(reason) => Outcome::NotTried(reason),
            None => probe(&models, model, what).await,
        };
        let (works, detail) = tally.add(what, outcome);
        say(&format!("{works:<7} {}", cut(&detail)))?;
    }
    tally.end()
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
    /// Counts one; gives the words about it.
    fn add(&mut self, what: Probe, outcome: Outcome) -> (&'static str, String) {
        let (works, detail) = match outcome {
            // Where nothing works, an error says nothing about the model that does not exist.
            Outcome::Works(detail) if what == Probe::Error && !self.answered => {
                ("no", format!("an ordinary request fails as well: {detail}"))
            }
            Outcome::Works(detail) => {
                self.answered |= what == Probe::Answer;
                ("yes", detail)
            }
            Outcome::Fails(detail) => ("no", detail),
            Outcome::Stops { detail, reason } => {
                self.stopped = Some(reason);
                ("no", detail)
            }
            Outcome::DoesNotApply(reason) | Outcome::NotTried(reason) => ("-", reason.to_owned()),
        };
        self.tried += usize::from(works != "-");
        self.failed += usize::from(works == "no");
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
