//! `picofleet models`: what is configured, and whether it works.

mod probe;

use std::io::Write as _;

use anyhow::{Context as _, bail};
use picofleet_models::registry::Models;
use picofleet_session::Clock;

use crate::config::Config;
use crate::failure::Failure;

pub(crate) use probe::{Outcome, Probe, probe};

fn say(text: &str) -> anyhow::Result<()> {
    writeln!(std::io::stdout(), "{text}").context("write to the terminal")
}

/// The models of a configuration, with keys from this process's environment.
pub(crate) fn models(config: &Config) -> Models {
    Models::new(&config.providers, Clock::system(), |name| std::env::var(name).ok())
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
        let mut text = format!("provider {provider} can't be used: {error}");
        let mut source = std::error::Error::source(error);
        while let Some(cause) = source {
            text.push_str(&format!(": {cause}"));
            source = cause.source();
        }
        say(&text)?;
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
    let (mut tried, mut failed, mut answered) = (0, 0, false);
    say(&format!("{:<16} {:<7} {}", "WHAT", "WORKS", "DETAIL"))?;
    for what in [Probe::Answer, Probe::Tool, Probe::Error] {
        let (works, detail) = match probe(&models, model, what).await {
            // Where nothing works, an error says nothing about the model that does not exist.
            Outcome::Works(detail) if what == Probe::Error && !answered => ("no", format!("an ordinary request fails as well: {detail}")),
            Outcome::Works(detail) => {
                answered |= what == Probe::Answer;
                ("yes", detail)
            }
            Outcome::Fails(detail) => ("no", detail),
            Outcome::DoesNotApply(reason) => ("-", reason.to_owned()),
        };
        tried += usize::from(works != "-");
        failed += usize::from(works == "no");
        say(&format!("{:<16} {works:<7} {detail}", what.name()))?;
    }
    if failed > 0 {
        bail!("{failed} of {tried} did not work");
    }
    Ok(())
}
