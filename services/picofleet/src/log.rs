//! What goes wrong without ending a command, on standard error: warnings and errors of this program's own crates.
//!
//! The same text is said again only after a while, so that what waits for a full disk says so and does not fill a screen.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::terminal;

/// How long a text that was said is not said again.
const AGAIN: Duration = Duration::from_secs(60);
/// How many texts are remembered for that; with more, all are forgotten.
const TEXTS_MAX: usize = 256;

/// Shows warnings and errors from now on. Where the application has a subscriber of its own, that one has them.
pub(crate) fn show() {
    // It fails only where the application has chosen already, and that stands.
    let _ = tracing::subscriber::set_global_default(Log { said: Said::default() });
}

struct Log {
    said: Said,
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::WARN && metadata.target().starts_with("picofleet")
    }

    fn max_level_hint(&self) -> Option<tracing::level_filters::LevelFilter> {
        Some(tracing::level_filters::LevelFilter::WARN)
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let text = text.line();
        if self.said.first(&text, Instant::now()) {
            let level = if *event.metadata().level() == Level::ERROR { "failure" } else { "warning" };
            // Errors repeat what servers and files say. Nothing is left to do where this can't be written.
            let _ = writeln!(std::io::stderr(), "{level}: {}", terminal::line(&text));
        }
    }

    // Spans are not shown.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The texts that were said lately.
#[derive(Default)]
struct Said(Mutex<HashMap<String, Instant>>);

impl Said {
    /// Whether a text is to be said now.
    fn first(&self, text: &str, now: Instant) -> bool {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if said.get(text).is_some_and(|at| now.duration_since(*at) < AGAIN) {
            return false;
        }
        if said.len() >= TEXTS_MAX {
            said.clear();
        }
        said.insert(text.to_owned(), now);
        true
    }
}

/// An event as a text: its message, why, and the rest in brackets.
#[derive(Default)]
struct Text {
    message: String,
    why: String,
    rest: String,
}

impl Text {
    fn line(self) -> String {
        let Self { mut message, why, rest } = self;
        if !why.is_empty() {
            message = format!("{message}: {why}");
        }
        if rest.is_empty() { message } else { format!("{message} ({rest})") }
    }

    fn add(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        let (to, separator) = match field.name() {
            "message" => (&mut self.message, ""),
            "error" | "why" => (&mut self.why, ": "),
            name => {
                let separator = if self.rest.is_empty() { "" } else { ", " };
                // A String takes whatever is written.
                let _ = write!(self.rest, "{separator}{name} {value}");
                return;
            }
        };
        if !to.is_empty() {
            to.push_str(separator);
        }
        let _ = to.write_fmt(value);
    }
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format_args!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, format_args!("{value}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_said_again_only_after_a_while() {
        let (said, now) = (Said::default(), Instant::now());
        assert!(said.first("a", now) && said.first("b", now));
        assert!(!said.first("a", now) && !said.first("a", now + AGAIN / 2));
        assert!(said.first("a", now + AGAIN) && !said.first("a", now + AGAIN));
    }

    #[test]
    fn the_texts_that_are_remembered_have_a_bound() {
        let (said, now) = (Said::default(), Instant::now());
        for number in 0..3 * TEXTS_MAX {
            assert!(said.first(&number.to_string(), now));
            assert!(said.0.lock().unwrap().len() <= TEXTS_MAX);
        }
    }

    #[test]
    fn an_event_is_a_line() {
        let text = Text { message: "it failed".to_owned(), why: "the disk is full".to_owned(), rest: "task 3".to_owned() };
        assert_eq!(text.line(), "it failed: the disk is full (task 3)");
    }
}
