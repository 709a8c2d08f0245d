//! What `picofleet config` prints.

use std::path::PathBuf;

use serde::Serialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{Config, Loaded};
use crate::output::{self, Format};

/// What stands behind a value that nobody set.
const MARK: &str = "  # default";

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

/// A configuration, and the keys in it that nobody set.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    config: &'a Config,
    #[serde(rename = "notSet")]
    not_set: Vec<String>,
}

/// Neither way has secrets in it, see [`super::show`].
pub(crate) fn show(loaded: &Loaded, format: Format) -> anyhow::Result<()> {
    let text = super::show(&loaded.config)?;
    let mut unset: Vec<(String, usize)> = Vec::new();
    if let Ok(table) = DeTable::parse(&text) {
        values(table.get_ref(), "", &mut |path, end| {
            if !loaded.sets(path) {
                unset.push((path.to_owned(), end));
            }
        });
    }
    unset.sort_by_key(|(_, end)| *end);
    match format {
        Format::Json => output::json(&Shown { config: &loaded.config, not_set: unset.into_iter().map(|(path, _)| path).collect() }),
        Format::Table => output::data(&marked(&text, unset.into_iter().map(|(_, end)| end))),
    }
}

/// A text with a mark at the end of each line in which one of these places is; they are in order.
fn marked(text: &str, places: impl IntoIterator<Item = usize>) -> String {
    let (mut marked, mut from) = (String::with_capacity(text.len()), 0);
    for place in places {
        let end = text[place..].find('\n').map_or(text.len(), |more| place + more);
        if end > from {
            marked.push_str(&text[from..end]);
            marked.push_str(MARK);
            from = end;
        }
    }
    marked.push_str(&text[from..]);
    marked
}

/// Every value that is no table, with its key and where it ends.
fn values(table: &DeTable<'_>, above: &str, found: &mut impl FnMut(&str, usize)) {
    for (key, value) in table {
        let path = if above.is_empty() { key.get_ref().to_string() } else { format!("{above}.{}", key.get_ref()) };
        value_of(value, &path, found);
    }
}

fn value_of(value: &Spanned<DeValue<'_>>, path: &str, found: &mut impl FnMut(&str, usize)) {
    match value.get_ref() {
        DeValue::Table(table) => values(table, path, found),
        // Lists of tables, such as models.
        DeValue::Array(items) if items.iter().any(|item| matches!(item.get_ref(), DeValue::Table(_))) => {
            items.iter().enumerate().for_each(|(index, item)| value_of(item, &format!("{path}.{index}"), found));
        }
        _ => found(path, value.span().end),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_marked_once_and_stay_toml() {
        let text = "a = 1\nb = [\n    1,\n]\nc = \"x\"";
        let ends: Vec<usize> = ["1", "]", "\"x\""].iter().map(|end| text.find(end).unwrap() + end.len()).collect();
        let shown = marked(text, ends);
        assert_eq!(shown, "a = 1  # default\nb = [\n    1,\n]  # default\nc = \"x\"  # default");
        assert_eq!(toml::from_str::<toml::Table>(&shown).unwrap(), toml::from_str::<toml::Table>(text).unwrap());
    }
}
