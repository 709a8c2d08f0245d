//! The configuration: defaults in code, then one TOML file, then `PICOFLEET_<SECTION>__<KEY>` variables. Unknown keys are errors.

mod check;
mod merge;
mod place;
pub(crate) mod print;
mod store;

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use picofleet_models::config::{Defaults, Providers};
use picofleet_models::registry::read_file;
use serde::{Deserialize, Serialize, Serializer};

pub use store::{StoreUrl, StoreUrlError};

/// The file that is read where none is named, if it is there.
const DEFAULT_FILE: &str = "picofleet.toml";

/// Most bytes of the file. One that is larger is another one.
const FILE_MAX: u64 = 1 << 20;

/// What a process is configured to.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where models are.
    pub providers: Providers,
    /// What a new conversation gets.
    pub defaults: Defaults,
    /// Where sessions are kept.
    pub storage: Storage,
    /// What tools reach.
    pub tools: Tools,
}

/// The `[storage]` table. Shown without the password of a database.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Storage {
    /// `sqlite:PATH`, `jsonl:DIR`, `postgres://USER@HOST/DATABASE` or `memory:`; see [`StoreUrl`].
    #[serde(serialize_with = "without_password")]
    pub url: String,
    /// Whether a loss of power is provided for; see [`StoreUrl::open`].
    pub fsync: bool,
}

fn without_password<S: Serializer>(url: &str, to: S) -> Result<S::Ok, S::Error> {
    match url.parse() {
        Ok(StoreUrl::Postgres(url)) => to.collect_str(&url),
        _ => to.serialize_str(url),
    }
}

impl fmt::Debug for Storage {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Storage").field("url", &self.url.parse::<StoreUrl>()).field("fsync", &self.fsync).finish()
    }
}

impl Default for Storage {
    fn default() -> Self {
        Self { url: "sqlite:./picofleet.db".to_owned(), fsync: true }
    }
}

/// The `[tools]` table.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tools {
    /// The folder that tools work in.
    pub workspace: PathBuf,
    /// Who runs commands and owns new files; without it the user of this process. Only root can choose another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<User>,
}

impl Default for Tools {
    fn default() -> Self {
        Self { workspace: PathBuf::from("./workspace"), user: None }
    }
}

/// A user of the system, by numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct User {
    /// The user's id.
    pub id: u32,
    /// The group's id.
    pub group: u32,
}

/// A configuration and the file that it came from.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// The file; `None` without one.
    pub file: Option<PathBuf>,
    /// The text of the file.
    text: String,
    overrides: Vec<merge::Override>,
}

impl Loaded {
    /// Reads the file that is named, or `picofleet.toml` where it is there, and the variables.
    ///
    /// # Errors
    /// A file that can't be read, a value that is wrong and values that don't fit together, each with its line or its variable.
    pub fn read(file: Option<&Path>, variables: impl Iterator<Item = (OsString, OsString)>) -> anyhow::Result<Self> {
        let file = match file {
            Some(file) => Some(file.to_owned()),
            None => default_file(Path::new(DEFAULT_FILE))?,
        };
        let text = file.as_deref().map(read).transpose()?.unwrap_or_default();
        let name = file.as_deref().map(|file| file.display().to_string()).unwrap_or_default();
        let merge::Merged { config, overrides } = parse(&name, &text, variables)?;
        Ok(Self { config, file, text, overrides })
    }

    /// Whether the file or a variable sets a key, such as `storage.url`.
    fn sets(&self, path: &str) -> bool {
        place::of("", &self.text, &self.overrides, path).is_some()
    }
}

/// The file, if it is there. One that can't be looked at is not taken for none, and a link that leads nowhere is there.
fn default_file(file: &Path) -> anyhow::Result<Option<PathBuf>> {
    match file.symlink_metadata() {
        Ok(_) => Ok(Some(file.to_owned())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("look for the configuration {}", file.display())),
    }
}

fn read(file: &Path) -> anyhow::Result<String> {
    let text = read_file(file, FILE_MAX).and_then(|bytes| String::from_utf8(bytes).map_err(std::io::Error::other));
    text.with_context(|| format!("read the configuration {}", file.display()))
}

fn parse(file: &str, text: &str, variables: impl Iterator<Item = (OsString, OsString)>) -> anyhow::Result<merge::Merged> {
    let merged = merge::merge(file, text, variables)?;
    let place = |path: &str| place::of(file, text, &merged.overrides, path).map(|place| format!("{place}: ")).unwrap_or_default();
    let problems: Vec<String> = check::check(&merged.config).iter().map(|problem| format!("{}{problem}", place(&problem.path))).collect();
    if !problems.is_empty() {
        bail!("the configuration does not hold together:\n  {}", problems.join("\n  "));
    }
    Ok(merged)
}

/// The configuration as TOML. It holds no secrets: keys are named by their variable or file and never read into it, and headers and
/// members that may hold one are hidden where they are written.
///
/// # Errors
/// That it can't be written as TOML.
pub fn show(config: &Config) -> anyhow::Result<String> {
    toml::to_string_pretty(config).context("write the configuration as TOML")
}

#[cfg(test)]
mod tests;
