//! Scenarios of the harness.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test panics where it can not go on")]

mod anchors;
mod background;
mod calls;
mod cascade;
mod completing;
mod configuration;
mod conversations;
mod crash;
mod crash_left;
mod fail_fast;
mod generation;
mod host_waits;
mod inbox;
mod init;
mod inspection;
mod kill_matrix;
mod opening;
mod outage;
mod ownership;
mod prompt;
mod queueing;
mod stale;
mod subagents;
mod tasks;
mod tools;
mod usage;
mod watches;
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
