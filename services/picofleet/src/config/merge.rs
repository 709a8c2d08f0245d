//! The file with the variables that override it.

use anyhow::{Context as _, bail};
use toml::{Table, Value};

use super::{Config, place};

/// The variables that override the file begin with this.
const PREFIX: &str = "PICOFLEET_";
/// Between the parts of a key in a variable's name.
const SEPARATOR: &str = "__";

/// A variable that overrides the file.
pub(super) struct Override {
    /// Its name.
    pub(super) variable: String,
    /// Its key, with dots, as in `storage.url`.
    pub(super) path: String,
    value: String,
}

/// A configuration and what overrode its file.
pub(super) struct Merged {
    pub(super) config: Config,
    pub(super) overrides: Vec<Override>,
}

/// Reads the file's text and puts the variables over it.
pub(super) fn merge(file: &str, text: &str, variables: impl Iterator<Item = (String, String)>) -> anyhow::Result<Merged> {
    // The whole file first, on its own: its errors then have their line.
    let in_file = |error: toml::de::Error| {
        let at = error.span().map_or_else(|| file.to_owned(), |span| place::line(file, text, span.start));
        anyhow::anyhow!("{at}: {}", without_value(error.message())).context(format!("{file} is no configuration"))
    };
    let alone: Config = toml::from_str(text).map_err(in_file)?;
    let base: Table = toml::from_str(text).map_err(in_file)?;
    let overrides: Vec<Override> = variables.filter_map(of_variable).collect();
    if overrides.is_empty() {
        return Ok(Merged { config: alone, overrides });
    }
    match merged(&base, &overrides)? {
        Ok(config) => Ok(Merged { config, overrides }),
        Err(error) => bail!("{}: {error}", culprits(&base, &overrides, &error).join(", ")),
    }
}

fn of_variable((variable, value): (String, String)) -> Option<Override> {
    let path = variable.strip_prefix(PREFIX).filter(|path| path.contains(SEPARATOR))?;
    let path = path.to_lowercase().replace(SEPARATOR, ".");
    Some(Override { variable, path, value })
}

/// The configuration, or what is wrong with the values.
fn merged<'a>(base: &Table, overrides: impl IntoIterator<Item = &'a Override>) -> anyhow::Result<Result<Config, String>> {
    let mut table = base.clone();
    for own in overrides {
        set(&mut table, own)?;
    }
    Ok(Value::Table(table).try_into().map_err(|error: toml::de::Error| without_value(error.message())))
}

/// The variables that alone make this error; all of them where it takes several.
fn culprits<'a>(base: &Table, overrides: &'a [Override], error: &str) -> Vec<&'a str> {
    let alone = |own: &&Override| matches!(merged(base, [*own]), Ok(Err(own)) if own == error);
    let found: Vec<&str> = overrides.iter().filter(alone).map(|own| own.variable.as_str()).collect();
    if found.is_empty() { overrides.iter().map(|own| own.variable.as_str()).collect() } else { found }
}

/// Puts a variable's value at its key. It is read as TOML where it can be, and is a text otherwise.
fn set(table: &mut Table, own: &Override) -> anyhow::Result<()> {
    let mut keys: Vec<&str> = own.path.split('.').collect();
    let last = keys.pop().with_context(|| format!("{} names no key", own.variable))?;
    let mut place = table;
    for key in keys {
        let inner = place.entry(key).or_insert_with(|| Value::Table(Table::new()));
        let Some(inner) = inner.as_table_mut() else { bail!("{} goes below {key}, which is no table", own.variable) };
        place = inner;
    }
    let parsed = toml::from_str::<Table>(&format!("value = {}", own.value)).ok().and_then(|mut table| table.remove("value"));
    place.insert(last.to_owned(), parsed.unwrap_or_else(|| Value::String(own.value.clone())));
    Ok(())
}

/// How messages that repeat a value begin, and what is said instead.
const REPEATING: [(&str, &str); 4] = [
    ("invalid type: ", "a value of the wrong type"),
    ("invalid value: ", "a wrong value"),
    ("invalid length ", "a wrong number of values"),
    ("unknown variant ", "an unknown word"),
];

/// A message about a value without the value: it may be a secret that was written where none belongs. Names of keys stay.
fn without_value(message: &str) -> String {
    let Some((_, instead)) = REPEATING.iter().find(|(begin, _)| message.starts_with(begin)) else { return message.to_owned() };
    // What is expected stands last, and a value can't be behind it.
    let expected = message.rfind(", expected ").and_then(|at| message.get(at..)).unwrap_or_default();
    format!("{instead}{expected}")
}
