//! Admission and boundaries (section 6): how submissions get into a conversation. Everything here runs inside one commit of the line.

mod admit;
mod boundary;
mod place;

use picofleet_session::message::UserInput;
use picofleet_session::{EntryDraft, Json};
use serde::{Deserialize, Deserializer, Serialize};

pub use admit::{Admission, admit, withdraw, withdraw_inputs};
pub(crate) use boundary::{Continuation, final_boundary_with, place, would_place_users};
pub use boundary::{Placed, start_run};
pub(crate) use place::Facts;

/// What is submitted (section 2.2).
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SubmissionDraft {
    /// The caller's key: the same key in a conversation is the same submission.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// What it is.
    #[serde(flatten)]
    pub body: SubmissionBody,
}

/// An input or a write.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum SubmissionBody {
    /// A user input.
    #[serde(rename_all = "camelCase")]
    Input {
        /// What the user says.
        content: UserInput,
        /// What happens while the conversation is busy.
        #[serde(skip_serializing_if = "Option::is_none")]
        when_busy: Option<WhenBusy>,
    },
    /// A passive entry.
    Write {
        /// The entry.
        entry: EntryDraft,
    },
}

/// What happens to an input while the conversation is busy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WhenBusy {
    /// It joins the run at the next boundary.
    Steer,
    /// It begins the next run.
    FollowUp,
    /// It is refused.
    Reject,
}

impl SubmissionDraft {
    /// A user input that waits its turn.
    #[must_use]
    pub fn input(content: impl Into<UserInput>) -> Self {
        Self { request_id: None, body: SubmissionBody::Input { content: content.into(), when_busy: None } }
    }

    /// A passive entry.
    #[must_use]
    pub fn write(entry: EntryDraft) -> Self {
        Self { request_id: None, body: SubmissionBody::Write { entry } }
    }

    /// With the caller's key.
    #[must_use]
    pub fn request_id(mut self, key: impl Into<String>) -> Self {
        self.request_id = Some(key.into());
        self
    }

    /// With what happens while the conversation is busy; a write always waits.
    #[must_use]
    pub fn when_busy(mut self, when: WhenBusy) -> Self {
        if let SubmissionBody::Input { when_busy, .. } = &mut self.body {
            *when_busy = Some(when);
        }
        self
    }
}

/// The flat form that is sent. A struct, so that nothing is buffered while it is read, and unknown fields are errors.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Wire {
    #[serde(default)]
    request_id: Option<String>,
    r#type: String,
    #[serde(default)]
    content: Option<Json>,
    #[serde(default)]
    when_busy: Option<WhenBusy>,
    #[serde(default)]
    entry: Option<EntryDraft>,
}

impl<'de> Deserialize<'de> for SubmissionDraft {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error as _;
        let wire = Wire::deserialize(deserializer)?;
        let body = match (wire.r#type.as_str(), wire.content, wire.when_busy, wire.entry) {
            ("input", Some(content), when_busy, None) => {
                SubmissionBody::Input { content: content.to().map_err(D::Error::custom)?, when_busy }
            }
            ("write", None, None, Some(entry)) => SubmissionBody::Write { entry },
            ("input" | "write", ..) => {
                return Err(D::Error::custom("an input has `content` and may have `whenBusy`, a write has `entry`"));
            }
            (other, ..) => return Err(D::Error::custom(format!("{other:?} is neither `input` nor `write`"))),
        };
        Ok(Self { request_id: wire.request_id, body })
    }
}
