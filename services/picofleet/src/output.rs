//! What commands print: tables for people, JSON for programs. All of it is data and goes to standard output; remarks go to standard error.

use std::io::{self, IsTerminal, Write as _};

use anyhow::Context as _;
use clap::ValueEnum;
use picofleet_session::{Json, Millis};
use serde::Serialize;

use crate::terminal;

/// How data is printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub(crate) enum Format {
    /// For people
    #[default]
    Table,
    /// One JSON value
    Json,
}

/// The format that a command line asks for which could not be read as a whole.
pub(crate) fn asked(arguments: impl Iterator<Item = std::ffi::OsString>) -> Format {
    let words: Vec<String> = arguments.map(|word| word.to_string_lossy().into_owned()).take_while(|word| word != "--").collect();
    let joined = words.iter().any(|word| matches!(word.as_str(), "-ojson" | "-o=json" | "--output=json"));
    let apart = words.windows(2).any(|pair| matches!(pair[0].as_str(), "-o" | "--output") && pair[1] == "json");
    if joined || apart { Format::Json } else { Format::Table }
}

/// Prints data. Somebody who reads no further, such as `head`, is no failure.
pub(crate) fn data(text: &str) -> anyhow::Result<()> {
    match io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("write to standard output"),
    }
}

/// Prints a value as JSON. What a terminal would obey is escaped, which means the same to a program.
pub(crate) fn json(value: &(impl Serialize + ?Sized)) -> anyhow::Result<()> {
    let json = Json::from_serde_envelope(value).context("write as JSON")?;
    data(&format!("{}\n", terminal::json(&json.to_string())))
}

/// Says something beside the data.
pub(crate) fn remark(text: &str) -> anyhow::Result<()> {
    writeln!(io::stderr(), "{}", terminal::line(text)).context("write to standard error")
}

/// Whether an output shows colors.
pub(crate) fn colors(output: &impl IsTerminal) -> bool {
    output.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty())
}

/// Text in bold, where that is shown.
pub(crate) fn bold(text: &str) -> String {
    if colors(&io::stdout()) { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
}

/// A time as a date, in UTC.
pub(crate) fn time(at: Millis) -> String {
    let (days, rest) = (at.0.div_euclid(86_400_000), at.0.rem_euclid(86_400_000));
    let (year, month, day) = date(days);
    let seconds = rest / 1000;
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}Z", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// The date of a day counted from 1970-01-01: years that begin in March, in eras of 400 of them.
const fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + if month <= 2 { 1 } else { 0 };
    (year, month, day_of_year - (153 * shifted + 2) / 5 + 1)
}

/// Rows in columns.
pub(crate) struct Table {
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(head: &[&'static str]) -> Self {
        Self { head: head.to_vec(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| terminal::line(&cell)).collect());
    }

    /// The text, its head in bold. The last column is as wide as its cells are.
    pub(crate) fn text(&self) -> String {
        self.laid_out(bold)
    }

    /// The text without colors.
    pub(crate) fn plain(&self) -> String {
        self.laid_out(str::to_owned)
    }

    fn laid_out(&self, headed: impl Fn(&str) -> String) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
            cells.chain([self.head[column].len()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        let line = |cells: &[String]| {
            let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
            padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        let head: Vec<String> = self.head.iter().map(|name| (*name).to_owned()).collect();
        let mut text = format!("{}\n", headed(&line(&head)));
        for row in &self.rows {
            text.push_str(&line(row));
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_found_in_a_wrong_command_line() {
        for (line, format) in [
            ("-o json nonsense", Format::Json),
            ("inspect --nonsense --output json", Format::Json),
            ("inspect -ojson", Format::Json),
            ("inspect --output=json", Format::Json),
            ("inspect -o table", Format::Table),
            ("run -- -o json", Format::Table),
            ("run -o", Format::Table),
        ] {
            assert_eq!(asked(line.split(' ').map(Into::into)), format, "{line}");
        }
    }

    #[test]
    fn times_are_dates() {
        for (at, text) in [
            (0, "1970-01-01 00:00:00Z"),
            (951_782_400_000, "2000-02-29 00:00:00Z"),
            (1_700_000_000_999, "2023-11-14 22:13:20Z"),
            (-1, "1969-12-31 23:59:59Z"),
            (4_107_542_399_000, "2100-02-28 23:59:59Z"),
            (4_107_542_400_000, "2100-03-01 00:00:00Z"),
        ] {
            assert_eq!(time(Millis(at)), text);
        }
    }

    #[test]
    fn columns_are_as_wide_as_their_cells() {
        let mut table = Table::new(&["A", "LONG"]);
        table.row(["äöü\n".to_owned(), "x".to_owned()]);
        assert_eq!(table.text(), "A      LONG\näöü\\n  x\n");
    }
}
