//! The configuration (`design.md` 10): defaults in code, then one TOML file, then `PICOFLEET_<SECTION>__<KEY>` variables. Unknown keys are
//! errors.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use picofleet_models::config::{Defaults, Providers, check};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

/// The variables that override the file begin with this.
const PREFIX: &str = "PICOFLEET_";
/// Between the parts of a key in a variable's name.
const SEPARATOR: &str = "__";
/// The file that is read where none is named, if it is there.
const DEFAULT_FILE: &str = "picofleet.toml";

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

/// The `[storage]` table.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Storage {
    /// `sqlite:PATH` or `memory:`.
    pub url: String,
}

impl Default for Storage {
    fn default() -> Self {
        Self { url: "sqlite:./picofleet.db".to_owned() }
    }
}

/// The `[tools]` table.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tools {
    /// The folder that tools work in.
    pub workspace: PathBuf,
}

impl Default for Tools {
    fn default() -> Self {
        Self { workspace: PathBuf::from("./workspace") }
    }
}

/// A configuration and the file that it came from.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// The file; `None` without one.
    pub file: Option<PathBuf>,
}

impl Loaded {
    /// Reads the file that is named, or `picofleet.toml` where it is there, and the variables.
    ///
    /// # Errors
    /// A file that can't be read, with the line of what is wrong in it; a variable that fits no key; values that don't fit together.
    pub fn read(file: Option<&Path>, variables: impl Iterator<Item = (String, String)>) -> anyhow::Result<Self> {
        let file = match file {
            Some(file) => Some(file.to_owned()),
            None => Path::new(DEFAULT_FILE).exists().then(|| PathBuf::from(DEFAULT_FILE)),
        };
        let text = file.as_deref().map(read).transpose()?.unwrap_or_default();
        let config = parse(file.as_deref(), &text, variables)?;
        let problems: Vec<String> = check(&config.providers, &config.defaults).iter().map(ToString::to_string).collect();
        if !problems.is_empty() {
            let of = file.as_deref().map_or_else(|| "the configuration".to_owned(), |file| file.display().to_string());
            bail!("{of} does not hold together:\n  {}", problems.join("\n  "));
        }
        Ok(Self { config, file })
    }
}

fn read(file: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("read the configuration {}", file.display()))
}

fn parse(file: Option<&Path>, text: &str, variables: impl Iterator<Item = (String, String)>) -> anyhow::Result<Config> {
    let name = file.map_or_else(String::new, |file| file.display().to_string());
    // The whole file first, on its own: its errors then name their line.
    let in_file = |error: toml::de::Error| anyhow::anyhow!(located(text, &error)).context(format!("{name} is no configuration"));
    toml::from_str::<Config>(text).map_err(in_file)?;
    let mut table: Table = toml::from_str(text).map_err(in_file)?;
    let mut overridden = Vec::new();
    for (variable, value) in variables {
        let Some(path) = variable.strip_prefix(PREFIX).filter(|path| path.contains(SEPARATOR)) else { continue };
        set(&mut table, &variable, &path.to_lowercase(), value)?;
        overridden.push(variable);
    }
    Value::Table(table).try_into().with_context(|| format!("the configuration with {} is not valid", overridden.join(", ")))
}

/// An error with its line. What stands behind the key is left out: it may be a secret that was written where none belongs.
fn located(text: &str, error: &toml::de::Error) -> String {
    let Some(line) = error.span().and_then(|span| text.get(..span.start)).map(|before| before.matches('\n').count()) else {
        return error.message().to_owned();
    };
    let shown = text.lines().nth(line).unwrap_or_default();
    let shown = shown.split_once('=').map_or_else(|| shown.to_owned(), |(key, _)| format!("{}= ...", key));
    format!("line {}, `{}`: {}", line + 1, shown.trim(), error.message())
}

/// Puts a variable's value at its key. It is read as TOML where it can be, and is a text otherwise.
fn set(table: &mut Table, variable: &str, path: &str, value: String) -> anyhow::Result<()> {
    let mut keys: Vec<&str> = path.split(SEPARATOR).collect();
    let Some(last) = keys.pop() else { return Ok(()) };
    let mut place = table;
    for key in keys {
        let inner = place.entry(key).or_insert_with(|| Value::Table(Table::new()));
        let Some(inner) = inner.as_table_mut() else { bail!("{variable} goes below {key}, which is no table") };
        place = inner;
    }
    let parsed = toml::from_str::<Table>(&format!("value = {value}")).ok().and_then(|mut table| table.remove("value"));
    place.insert(last.to_owned(), parsed.unwrap_or(Value::String(value)));
    Ok(())
}

/// The configuration as TOML. It holds no secrets: keys are named by their variable or file and never read into it, and headers that may
/// hold one are hidden where they are written.
///
/// # Errors
/// That it can't be written as TOML.
pub fn show(config: &Config) -> anyhow::Result<String> {
    toml::to_string_pretty(config).context("write the configuration as TOML")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "[providers.local]\napi = \"openai-completions\"\nbase_url = \"http://127.0.0.1:1\"\napi_key_env = \"KEY\"\n";

    fn parsed(text: &str, variables: &[(&str, &str)]) -> anyhow::Result<Config> {
        parse(Some(Path::new("p.toml")), text, variables.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())))
    }

    fn error(text: &str, variables: &[(&str, &str)]) -> String {
        format!("{:#}", parsed(text, variables).unwrap_err())
    }

    #[test]
    fn variables_override_the_file() {
        let config = parsed(FILE, &[("PICOFLEET_PROVIDERS__LOCAL__BASE_URL", "http://127.0.0.1:2"), ("PICOFLEET_VECTORS", "x")]).unwrap();
        assert_eq!(config.providers["local"].base_url.as_deref(), Some("http://127.0.0.1:2"));
        assert_eq!(config.storage.url, "sqlite:./picofleet.db");
        let config = parsed("", &[("PICOFLEET_STORAGE__URL", "memory:")]).unwrap();
        assert_eq!(config.storage.url, "memory:");
    }

    #[test]
    fn an_error_names_its_line_or_its_variable() {
        let unknown = error("[storage]\nurl = \"memory:\"\nspeed = 3\n", &[]);
        assert!(unknown.contains("line 3") && unknown.contains("speed"), "{unknown}");
        let broken = error("[storage\n", &[]);
        assert!(broken.contains("p.toml") && broken.contains("line 1"), "{broken}");
        let variable = error("", &[("PICOFLEET_STORAGE__SPEED", "3")]);
        assert!(variable.contains("PICOFLEET_STORAGE__SPEED"), "{variable}");
        let below = error("", &[("PICOFLEET_STORAGE__URL", "memory:"), ("PICOFLEET_STORAGE__URL__X", "1")]);
        assert!(below.contains("no table"), "{below}");
    }

    #[test]
    fn headers_are_hidden() {
        let config = parsed(&format!("{FILE}headers = {{ authorization = \"hunter2\", accept = \"text\" }}\n"), &[]);
        let shown = show(&config.unwrap()).unwrap();
        assert!(!shown.contains("hunter2") && shown.contains("KEY"), "{shown}");
    }
}
