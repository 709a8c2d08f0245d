//! Scenarios of the harness.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test panics where it can not go on")]

mod aborts;
mod background;
mod calls;
mod configuration;
mod conversations;
mod crash;
mod generation;
mod inbox;
mod inspect;
mod kill_matrix;
mod opening;
mod outage;
mod phases;
mod prompt;
mod recovery;
mod replacement;
mod stale;
mod subagents;
mod tasks;
mod tools;
mod usage;
mod waits;
mod withdrawn;

use picofleet_session::{InputState, SubmissionRecord, SubmissionState, WriteState};

/// Why a submission is unanswered; empty where it is not.
fn reason(record: &SubmissionRecord) -> &str {
    match &record.state {
        SubmissionState::Input(InputState::Unanswered { reason, .. }) | SubmissionState::Write(WriteState::Unanswered { reason, .. }) => {
            reason
        }
        _ => "",
    }
}

/// More about an input that is unanswered, as text.
fn detail(record: &SubmissionRecord) -> String {
    let SubmissionState::Input(InputState::Unanswered { detail: Some(detail), .. }) = &record.state else { return String::new() };
    detail.as_str().map(std::borrow::Cow::into_owned).unwrap_or_default()
}

/// An object without fields.
fn empty() -> picofleet_session::Json {
    picofleet_session::Json::object::<&str, picofleet_session::Json>([])
}
