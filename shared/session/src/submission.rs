//! Submissions: awaitable records of inputs and writes (sections 2 and 6).

use picofleet_delta::Json;
use serde::{Deserialize, Serialize};

use crate::{ConversationId, EntryId, SubmissionId};

/// One submission and how far it came.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(try_from = "Wire", into = "Wire")]
pub struct SubmissionRecord {
    /// Its id.
    pub id: SubmissionId,
    /// The conversation that it was submitted to.
    pub conversation_id: ConversationId,
    /// The caller's key; one key names one submission of the conversation.
    pub request_id: Option<String>,
    /// Its type and status.
    pub state: SubmissionState,
}

/// The type of a submission with its status.
#[derive(Clone, PartialEq, Debug)]
pub enum SubmissionState {
    /// A user input.
    Input(InputState),
    /// A passive entry write.
    Write(WriteState),
}

/// The life of an input: queued, placed, then done or unanswered.
#[derive(Clone, PartialEq, Debug)]
pub enum InputState {
    /// Waits in the inbox.
    Queued,
    /// Its user entry is in the transcript.
    Placed {
        /// The user entry.
        entry: EntryId,
    },
    /// Answered.
    Done {
        /// The user entry.
        entry: EntryId,
        /// The entry that answers it.
        answer: EntryId,
    },
    /// Ended without an answer.
    Unanswered {
        /// The user entry, if it was placed.
        entry: Option<EntryId>,
        /// Why, as a stable word.
        reason: String,
        /// More about it.
        detail: Option<Json>,
    },
}

/// The life of a write: queued, then done or unanswered.
#[derive(Clone, PartialEq, Debug)]
pub enum WriteState {
    /// Waits in the inbox.
    Queued,
    /// In the transcript.
    Done {
        /// The entry.
        entry: EntryId,
    },
    /// Could not be placed.
    Unanswered {
        /// Why, as a stable word.
        reason: String,
        /// More about it.
        detail: Option<Json>,
    },
}

/// The status of a submission without its data, for queries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SubmissionStatus {
    /// Waits in the inbox.
    Queued,
    /// In the transcript, unanswered.
    Placed,
    /// Ended well.
    Done,
    /// Ended without an answer or a place.
    Unanswered,
}

impl SubmissionStatus {
    /// The word that is stored and sent.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Placed => "placed",
            Self::Done => "done",
            Self::Unanswered => "unanswered",
        }
    }
}

/// How a submission ends.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "camelCase")]
pub enum Settlement {
    /// A placed input is answered.
    Done {
        /// The entry that answers it.
        answer: EntryId,
    },
    /// It ends without an answer.
    Unanswered {
        /// Why, as a stable word.
        reason: String,
        /// More about it.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        detail: Option<Json>,
    },
}

impl SubmissionRecord {
    /// Its status.
    #[must_use]
    pub const fn status(&self) -> SubmissionStatus {
        match &self.state {
            SubmissionState::Input(InputState::Queued) | SubmissionState::Write(WriteState::Queued) => SubmissionStatus::Queued,
            SubmissionState::Input(InputState::Placed { .. }) => SubmissionStatus::Placed,
            SubmissionState::Input(InputState::Done { .. }) | SubmissionState::Write(WriteState::Done { .. }) => SubmissionStatus::Done,
            SubmissionState::Input(InputState::Unanswered { .. }) | SubmissionState::Write(WriteState::Unanswered { .. }) => {
                SubmissionStatus::Unanswered
            }
        }
    }

    /// Whether it is done or unanswered.
    #[must_use]
    pub const fn settled(&self) -> bool {
        matches!(self.status(), SubmissionStatus::Done | SubmissionStatus::Unanswered)
    }

    /// The record once its entry is in the transcript; `None` unless it is queued.
    #[must_use]
    pub fn place(&self, entry: EntryId) -> Option<SubmissionRecord> {
        let state = match &self.state {
            SubmissionState::Input(InputState::Queued) => SubmissionState::Input(InputState::Placed { entry }),
            SubmissionState::Write(WriteState::Queued) => SubmissionState::Write(WriteState::Done { entry }),
            SubmissionState::Input(_) | SubmissionState::Write(_) => return None,
        };
        Some(SubmissionRecord { state, ..self.clone() })
    }

    /// The record once it is settled. A settled one stays as it is; `None` where `settlement` answers what is not a placed input.
    #[must_use]
    pub fn settle(&self, settlement: Settlement) -> Option<SubmissionRecord> {
        if self.settled() {
            return Some(self.clone());
        }
        let state = match (&self.state, settlement) {
            (SubmissionState::Input(InputState::Placed { entry }), Settlement::Done { answer }) => {
                SubmissionState::Input(InputState::Done { entry: *entry, answer })
            }
            (SubmissionState::Input(_) | SubmissionState::Write(_), Settlement::Done { .. }) => return None,
            (SubmissionState::Input(input), Settlement::Unanswered { reason, detail }) => {
                let entry = if let InputState::Placed { entry } = input { Some(*entry) } else { None };
                SubmissionState::Input(InputState::Unanswered { entry, reason, detail })
            }
            (SubmissionState::Write(_), Settlement::Unanswered { reason, detail }) => {
                SubmissionState::Write(WriteState::Unanswered { reason, detail })
            }
        };
        Some(SubmissionRecord { state, ..self.clone() })
    }
}

/// The flat form that is stored and sent.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wire {
    id: SubmissionId,
    conversation_id: ConversationId,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    request_id: Option<String>,
    r#type: WireType,
    status: SubmissionStatus,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    entry: Option<EntryId>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    answer: Option<EntryId>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "crate::wire::present")]
    detail: Option<Json>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum WireType {
    Input,
    Write,
}

#[derive(Debug, thiserror::Error)]
#[error("submission {id} has no valid state: a {kind:?} that is {status:?} has other fields")]
struct InvalidSubmission {
    id: SubmissionId,
    kind: WireType,
    status: SubmissionStatus,
}

impl TryFrom<Wire> for SubmissionRecord {
    type Error = InvalidSubmission;

    fn try_from(wire: Wire) -> Result<Self, InvalidSubmission> {
        use SubmissionStatus::{Done, Placed, Queued, Unanswered};
        let invalid = InvalidSubmission { id: wire.id, kind: wire.r#type, status: wire.status };
        let state = match (wire.r#type, wire.status, wire.entry, wire.answer, wire.reason, wire.detail) {
            (WireType::Input, Queued, None, None, None, None) => SubmissionState::Input(InputState::Queued),
            (WireType::Input, Placed, Some(entry), None, None, None) => SubmissionState::Input(InputState::Placed { entry }),
            (WireType::Input, Done, Some(entry), Some(answer), None, None) => SubmissionState::Input(InputState::Done { entry, answer }),
            (WireType::Input, Unanswered, entry, None, Some(reason), detail) => {
                SubmissionState::Input(InputState::Unanswered { entry, reason, detail })
            }
            (WireType::Write, Queued, None, None, None, None) => SubmissionState::Write(WriteState::Queued),
            (WireType::Write, Done, Some(entry), None, None, None) => SubmissionState::Write(WriteState::Done { entry }),
            (WireType::Write, Unanswered, None, None, Some(reason), detail) => {
                SubmissionState::Write(WriteState::Unanswered { reason, detail })
            }
            _ => return Err(invalid),
        };
        Ok(SubmissionRecord { id: wire.id, conversation_id: wire.conversation_id, request_id: wire.request_id, state })
    }
}

impl From<SubmissionRecord> for Wire {
    fn from(record: SubmissionRecord) -> Self {
        let status = record.status();
        let (r#type, entry, answer, reason, detail) = match record.state {
            SubmissionState::Input(state) => {
                let (entry, answer, reason, detail) = match state {
                    InputState::Queued => (None, None, None, None),
                    InputState::Placed { entry } => (Some(entry), None, None, None),
                    InputState::Done { entry, answer } => (Some(entry), Some(answer), None, None),
                    InputState::Unanswered { entry, reason, detail } => (entry, None, Some(reason), detail),
                };
                (WireType::Input, entry, answer, reason, detail)
            }
            SubmissionState::Write(state) => {
                let (entry, reason, detail) = match state {
                    WriteState::Queued => (None, None, None),
                    WriteState::Done { entry } => (Some(entry), None, None),
                    WriteState::Unanswered { reason, detail } => (None, Some(reason), detail),
                };
                (WireType::Write, entry, None, reason, detail)
            }
        };
        Wire {
            id: record.id,
            conversation_id: record.conversation_id,
            request_id: record.request_id,
            r#type,
            status,
            entry,
            answer,
            reason,
            detail,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(state: SubmissionState) -> SubmissionRecord {
        SubmissionRecord {
            id: SubmissionId::new(5).unwrap(),
            conversation_id: crate::ROOT_CONVERSATION_ID,
            request_id: Some("r".into()),
            state,
        }
    }

    fn entry(id: i64) -> EntryId {
        EntryId::new(id).unwrap()
    }

    #[test]
    fn the_stored_form_is_flat_and_checked() {
        let done = record(SubmissionState::Input(InputState::Done { entry: entry(6), answer: entry(7) }));
        let text = Json::from_serde(&done).unwrap();
        assert_eq!(text.to_string(), r#"{"id":5,"conversationId":1,"requestId":"r","type":"input","status":"done","entry":6,"answer":7}"#);
        assert_eq!(text.to::<SubmissionRecord>().unwrap(), done);
        for bad in [
            r#"{"id":5,"conversationId":1,"type":"write","status":"placed","entry":6}"#,
            r#"{"id":5,"conversationId":1,"type":"input","status":"done","entry":6}"#,
            r#"{"id":5,"conversationId":1,"type":"input","status":"unanswered"}"#,
        ] {
            assert!(Json::parse(bad.as_bytes()).unwrap().to::<SubmissionRecord>().is_err(), "{bad}");
        }
    }

    #[test]
    fn only_a_placed_input_is_answered_and_the_first_settlement_stays() {
        let queued = record(SubmissionState::Input(InputState::Queued));
        assert_eq!(queued.settle(Settlement::Done { answer: entry(9) }), None);
        let placed = queued.place(entry(6)).unwrap();
        assert_eq!(placed.place(entry(7)), None);
        let done = placed.settle(Settlement::Done { answer: entry(9) }).unwrap();
        let again = done.settle(Settlement::Unanswered { reason: "aborted".into(), detail: None }).unwrap();
        assert_eq!(again, done);
        let write = record(SubmissionState::Write(WriteState::Queued));
        assert_eq!(write.settle(Settlement::Done { answer: entry(9) }), None);
        assert!(write.place(entry(6)).unwrap().settled());
    }
}
