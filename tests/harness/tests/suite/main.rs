//! Scenarios of the harness.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test panics where it can not go on")]

mod abort_waits;
mod aborts;
mod anchors;
mod asks;
mod background;
mod background_subagents;
mod calls;
mod cascade;
mod closing;
mod compaction;
mod compaction_blocking;
mod compaction_kill;
mod compaction_kit;
mod compaction_placing;
mod compaction_selection;
mod completing;
mod configuration;
mod conversations;
mod crash;
mod crash_left;
mod creation;
mod damage;
mod events;
mod events_order;
mod fail_fast;
mod generation;
mod host_waits;
mod inbox;
mod inbox_ops;
mod init;
mod inspect;
mod inspection;
mod kill_matrix;
mod many_calls;
mod opening;
mod outage;
mod ownership;
mod phases;
mod prompt;
mod queueing;
mod recovery;
mod reload;
mod replacement;
mod resting;
mod rounds;
mod stale;
mod subagents;
mod tasks;
mod throttle;
mod tools;
mod usage;
mod views;
mod waits;
mod watches;
mod withdrawn;

use picofleet_harness::frame::Frame;
use picofleet_harness::line::{ConversationWatch, Followed};
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

/// The next frame that fits.
async fn frame(watch: &mut ConversationWatch, mut fits: impl FnMut(&Frame) -> bool) -> Frame {
    let next = async {
        loop {
            match watch.next().await {
                Followed::Frame(frame) if fits(&frame) => return *frame,
                Followed::Frame(_) => {}
                other => panic!("{other:?} in the place of a frame"),
            }
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), next).await.expect("the frame comes")
}

/// An object without fields.
fn empty() -> picofleet_session::Json {
    picofleet_session::Json::object::<&str, picofleet_session::Json>([])
}
