//! What a task's row keeps of its invocation, beside the number: the last answer, and that it is an abort handler. A takeover goes on with
//! both. It is small: the record that an answer carries is read again.

use picofleet_session::{CommitError, InvocationRow, Json, TaskRecord, Violation};
use serde::{Deserialize, Serialize};

use crate::step::Mode;
use crate::wire::{Answer, Next};

/// The row's `answer`.
#[derive(Serialize, Deserialize)]
struct Kept {
    /// An abort handler has it.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    abort: bool,
    /// It has said something.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    said: Option<Said>,
}

/// An answer to a saying.
#[derive(Serialize, Deserialize)]
struct Said {
    answer: Json,
    /// How the phase went on, where the saying ended it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    step: Option<Step>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Step {
    Continue,
    Stop,
}

fn written(kept: &Kept) -> Result<Json, CommitError> {
    let unstored = |error| CommitError::Invalid(Violation::Decision { why: format!("the answer can't be stored: {error}") });
    // The answer may be as deep as a value may be.
    Json::from_serde_envelope(kept).map_err(unstored)
}

/// What the row of a reservation keeps.
pub(super) fn reserved(mode: Mode) -> Result<Option<Json>, CommitError> {
    match mode {
        Mode::Run => Ok(None),
        Mode::Abort => written(&Kept { abort: true, said: None }).map(Some),
    }
}

/// What the row of a saying keeps: its answer, to be given again.
pub(super) fn stored(answer: &Answer, mode: Mode) -> Result<Json, CommitError> {
    let said = match answer {
        Answer::Said { answer, next } => {
            let step = next.as_ref().map(|next| match next {
                Next::Continue(_) => Step::Continue,
                Next::Stop => Step::Stop,
            });
            Some(Said { answer: answer.clone(), step })
        }
        _ => None,
    };
    written(&Kept { abort: mode == Mode::Abort, said })
}

/// The last answer of an invocation, and what it runs. `record` is the task as it is now: nothing has changed it since that answer.
pub(super) fn kept(row: &InvocationRow, record: &TaskRecord) -> (Option<Answer>, Mode) {
    let Some(kept) = read(row) else { return (None, Mode::Run) };
    let answer = kept.said.map(|said| {
        let next = said.step.map(|step| match step {
            Step::Continue => Next::Continue(Box::new(record.clone())),
            Step::Stop => Next::Stop,
        });
        Answer::Said { answer: said.answer, next }
    });
    (answer, if kept.abort { Mode::Abort } else { Mode::Run })
}

/// Whether an invocation had ended, by its own saying or because it was given back, before its process was gone.
pub(super) fn ended_in_order(row: &InvocationRow) -> bool {
    read(row).and_then(|kept| kept.said).is_some_and(|said| matches!(said.step, Some(Step::Stop)))
}

/// The row of an invocation that ended in order, as the line decided: no restart is counted for it at the next opening.
pub(super) fn ended(row: InvocationRow) -> InvocationRow {
    let kept = Kept { abort: false, said: Some(Said { answer: Json::null(), step: Some(Step::Stop) }) };
    InvocationRow { digest: None, answer: written(&kept).ok(), ..row }
}

fn read(row: &InvocationRow) -> Option<Kept> {
    row.answer.as_ref().and_then(|kept| kept.to().ok())
}

#[cfg(test)]
mod tests {
    use picofleet_session::{InvocationId, TaskId};

    use super::*;

    #[test]
    fn a_row_gives_back_what_was_stored_with_the_record_as_it_is() {
        let row = |answer| InvocationRow {
            task_id: TaskId::new(3).unwrap(),
            invocation: InvocationId::random(),
            number: 1,
            digest: None,
            answer,
        };
        let record: TaskRecord = Json::parse(
            br#"{"id":3,"conversationId":1,"kind":"k","version":1,"background":false,"abortRequested":false,"input":null,"state":{"status":"running","checkpoint":{"phase":"long-and-large"}}}"#,
        )
        .unwrap()
        .to()
        .unwrap();
        for next in [None, Some(Next::Stop), Some(Next::Continue(Box::new(record.clone())))] {
            let said = Answer::Said { answer: Json::from(7), next };
            for mode in [Mode::Run, Mode::Abort] {
                let stored = stored(&said, mode).unwrap();
                assert!(!stored.to_string().contains("large"), "{stored}");
                assert_eq!(kept(&row(Some(stored.clone())), &record), (Some(said.clone()), mode));
                assert_eq!(ended_in_order(&row(Some(stored))), matches!(&said, Answer::Said { next: Some(Next::Stop), .. }));
            }
        }
        assert_eq!(kept(&row(None), &record), (None, Mode::Run));
        assert_eq!(kept(&row(reserved(Mode::Abort).unwrap()), &record), (None, Mode::Abort));
        assert_eq!(reserved(Mode::Run).unwrap(), None);
        assert!(ended_in_order(&ended(row(None))));
    }
}
