//! The file with the variables that override it.

use std::ffi::OsString;

use anyhow::{Context as _, bail};
use toml::{Table, Value};

use super::{Config, place};

/// The variables that override the file begin with this.
const PREFIX: &str = "PICOFLEET_";
/// Between the parts of a key in a variable's name.
const SEPARATOR: &str = "__";

/// A variable that overrides the file.
#[derive(Clone, Debug)]
pub(super) struct Override {
    /// Its name.
    pub(super) variable: String,
    /// Its key, with dots, as in `storage.url`.
    pub(super) path: String,
    /// The parts of the key.
    keys: Vec<String>,
    value: String,
}

/// A configuration and what overrode its file.
pub(super) struct Merged {
    pub(super) config: Config,
    pub(super) overrides: Vec<Override>,
}

/// Reads the file's text and puts the variables over it.
pub(super) fn merge(file: &str, text: &str, variables: impl Iterator<Item = (OsString, OsString)>) -> anyhow::Result<Merged> {
    // The whole file first, on its own: its errors then have their line.
    let in_file = |error: toml::de::Error| {
        let at = error.span().map_or_else(|| file.to_owned(), |span| place::line(file, text, span.start));
        // A key that is not known is in the message.
        let about_value =
            REPEATING.iter().any(|(begin, _)| error.message().starts_with(begin)) || error.message().starts_with("missing field ");
        let key = error.span().filter(|_| about_value).and_then(|span| place::key(text, span.start));
        let key = key.map(|key| format!("{key}: ")).unwrap_or_default();
        anyhow::anyhow!("{at}: {key}{}", told(error.message())).context(format!("{file} is no configuration"))
    };
    let alone: Config = toml::from_str(text).map_err(in_file)?;
    let base = Value::Table(toml::from_str(text).map_err(in_file)?);
    let overrides: Vec<Override> = variables.filter_map(|variable| of_variable(&base, variable).transpose()).collect::<Result<_, _>>()?;
    if overrides.is_empty() {
        return Ok(Merged { config: alone, overrides });
    }
    match merged(&base, &overrides)? {
        Ok(config) => Ok(Merged { config, overrides }),
        Err(error) => bail!("{}: {error}", culprits(&base, &overrides, &error).join(", ")),
    }
}

/// What a variable overrides; `None` for variables that are none of ours, which may have any bytes.
fn of_variable(base: &Value, (name, value): (OsString, OsString)) -> anyhow::Result<Option<Override>> {
    let variable = name.to_string_lossy().into_owned();
    let Some(path) = variable.strip_prefix(PREFIX).filter(|path| path.contains(SEPARATOR)) else { return Ok(None) };
    let Some(value) = name.to_str().and_then(|_| value.into_string().ok()) else {
        bail!("{variable}: its name or its value is not UTF-8; correct or unset it");
    };
    let keys = keys(base, path).with_context(|| format!("{variable} can't be put over the file"))?;
    Ok(Some(Override { path: keys.join("."), keys, variable, value }))
}

/// The keys that a variable's name stands for. Names of variables have neither small letters nor dashes, so that the file's own way to
/// write a key counts; a key that it has not is taken in small letters.
fn keys(base: &Value, path: &str) -> anyhow::Result<Vec<String>> {
    let mut place = Some(base);
    let mut keys = Vec::new();
    for part in path.split(SEPARATOR) {
        let key = match place {
            Some(Value::Table(table)) => own_key(table, part)?,
            _ => part.to_lowercase(),
        };
        place = match place {
            Some(Value::Array(items)) => key.parse::<usize>().ok().and_then(|index| items.get(index)),
            place => place.and_then(|place| place.get(&key)),
        };
        keys.push(key);
    }
    Ok(keys)
}

fn own_key(table: &Table, part: &str) -> anyhow::Result<String> {
    let fits: Vec<&String> = table.keys().filter(|key| folded(key) == folded(part)).collect();
    match *fits {
        [] => Ok(part.to_lowercase()),
        [key] => Ok(key.clone()),
        _ => bail!("the file has several keys that are meant by {part}: {fits:?}; change the file instead"),
    }
}

/// A key without what the name of a variable can't tell.
fn folded(key: &str) -> String {
    key.chars().map(|c| if c.is_alphanumeric() { c.to_ascii_lowercase() } else { '_' }).collect()
}

/// The configuration, or what is wrong with the values.
fn merged<'a>(base: &Value, overrides: impl IntoIterator<Item = &'a Override>) -> anyhow::Result<Result<Config, String>> {
    let mut whole = base.clone();
    for own in overrides {
        set(&mut whole, own)?;
    }
    Ok(whole.try_into().map_err(|error: toml::de::Error| told(error.message())))
}

/// The variables that alone make this error; all of them where it takes several.
fn culprits<'a>(base: &Value, overrides: &'a [Override], error: &str) -> Vec<&'a str> {
    let alone = |own: &&Override| matches!(merged(base, [*own]), Ok(Err(own)) if own == error);
    let found: Vec<&str> = overrides.iter().filter(alone).map(|own| own.variable.as_str()).collect();
    if found.is_empty() { overrides.iter().map(|own| own.variable.as_str()).collect() } else { found }
}

/// Puts a variable's value at its key. It is read as TOML where it can be, and is a text otherwise.
fn set(whole: &mut Value, own: &Override) -> anyhow::Result<()> {
    let mut place = whole;
    let mut above = "the file";
    for key in &own.keys {
        place =
            below(place, key).with_context(|| format!("{} goes below {above}, which is no table and has no such entry", own.variable))?;
        above = key;
    }
    let parsed = toml::from_str::<Table>(&format!("value = {}", own.value)).ok().and_then(|mut table| table.remove("value"));
    *place = parsed.unwrap_or_else(|| Value::String(own.value.clone()));
    Ok(())
}

/// The value at a key of a table, which is made where it lacks, or the entry of an array, which must be there.
fn below<'a>(place: &'a mut Value, key: &str) -> Option<&'a mut Value> {
    match place {
        Value::Table(table) => Some(table.entry(key).or_insert_with(|| Value::Table(Table::new()))),
        Value::Array(items) => items.get_mut(key.parse::<usize>().ok()?),
        _ => None,
    }
}

/// How messages that repeat a value begin, and what is said instead.
const REPEATING: [(&str, &str); 4] = [
    ("invalid type: ", "a value of the wrong type"),
    ("invalid value: ", "a wrong value"),
    ("invalid length ", "a wrong number of values"),
    ("unknown variant ", "an unknown word"),
];

/// What is said about a key in the configuration itself.
const KEY_IN_FILE: &str = "a key is not written into the configuration; set api_key_env to the name of the variable that has it, or \
                           api_key_file to the path of its file, and remove it here";

/// Names under which people write keys, without what stands between their words.
const KEYS: [&str; 8] = ["apikey", "apitoken", "authtoken", "authorization", "key", "password", "secret", "token"];

/// Whether a message is about a member of a provider that is meant to be its key.
fn is_key(message: &str) -> bool {
    let Some((name, rest)) = message.strip_prefix("unknown field `").and_then(|rest| rest.split_once('`')) else { return false };
    let name: String = name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect();
    KEYS.contains(&name.as_str()) && rest.contains("`api_key_env`")
}

/// A message about a value without the value: it may be a secret that was written where none belongs. Names of keys stay.
fn told(message: &str) -> String {
    if is_key(message) {
        return KEY_IN_FILE.to_owned();
    }
    let Some((_, instead)) = REPEATING.iter().find(|(begin, _)| message.starts_with(begin)) else { return message.to_owned() };
    // What is expected stands last, and a value can't be behind it.
    let expected = message.rfind(", expected ").and_then(|at| message.get(at..)).unwrap_or_default();
    format!("{instead}{}", plain(expected))
}

/// What is expected, in words of the file and not of the program.
fn plain(expected: &str) -> String {
    match expected.strip_prefix(", expected ") {
        Some("u16" | "u32" | "u64" | "usize" | "i64") => ", expected a whole number".to_owned(),
        Some(kind) if kind.starts_with("struct ") || kind == "a map" => ", expected a table".to_owned(),
        _ => expected.to_owned(),
    }
}
