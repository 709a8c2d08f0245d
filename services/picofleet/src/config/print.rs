//! What `picofleet config` prints.

use std::path::PathBuf;

use serde::Serialize;

use super::{Config, Loaded};
use crate::output::{self, Format};

/// What is said of a configuration that is good.
#[derive(Serialize)]
struct Checked<'a> {
    /// The file; none where there are only defaults.
    file: Option<&'a PathBuf>,
    providers: usize,
    models: usize,
}

pub(crate) fn checked(loaded: &Loaded, format: Format) -> anyhow::Result<()> {
    let providers = &loaded.config.providers;
    let models = providers.values().map(|provider| provider.models.len()).sum();
    let checked = Checked { file: loaded.file.as_ref(), providers: providers.len(), models };
    if format == Format::Json {
        return output::json(&checked);
    }
    let file = checked.file.map_or_else(|| "no file, only defaults".to_owned(), |file| file.display().to_string());
    output::data(&format!(
        "ok: {file}; {} providers, {models} models\nproviders that can't be used now, for want of a key or a file: `picofleet models list` shows them\n",
        providers.len()
    ))
}

/// Neither way has secrets in it, see [`super::show`].
pub(crate) fn show(config: &Config, format: Format) -> anyhow::Result<()> {
    match format {
        Format::Json => output::json(config),
        Format::Table => output::data(&super::show(config)?),
    }
}
