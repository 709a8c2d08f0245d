//! What a task's row keeps of its invocation, beside the number: the last answer, and that it is an abort handler. A takeover goes on with
//! both.

use picofleet_session::{CommitError, InvocationId, InvocationRow, Json, TaskId, Violation};

use super::aside::ends_session;
use super::{LineError, SessionLine};
use crate::step::Mode;
use crate::wire::{Answer, Next};

/// Stands beside the answer in the row of an abort handler.
const ABORT: &str = "abort";

/// An answer as it is stored, to be given again. It carries a record, so that it may nest deeper than a value.
pub(super) fn stored(answer: &Answer, mode: Mode) -> Result<Json, CommitError> {
    let unstored = |error| CommitError::Invalid(Violation::Decision { why: format!("the answer can't be stored: {error}") });
    let answer = Json::from_serde_envelope(answer).map_err(unstored)?;
    Ok(match (mode, answer.as_object()) {
        (Mode::Abort, Some(fields)) => {
            let fields = fields.iter().map(|(key, value)| (key.to_owned(), value.clone()));
            Json::object(fields.chain(std::iter::once((ABORT.to_owned(), Json::from(true)))))
        }
        // A saying is answered with an object.
        _ => answer,
    })
}

/// The last answer of an invocation, and what it runs.
pub(super) fn kept(row: &InvocationRow) -> (Option<Answer>, Mode) {
    let Some(kept) = &row.answer else { return (None, Mode::Run) };
    let Some(fields) = kept.as_object().filter(|fields| fields.iter().any(|(key, _)| key == ABORT)) else {
        return (kept.to().ok(), Mode::Run);
    };
    let answer = Json::object(fields.iter().filter(|(key, _)| *key != ABORT).map(|(key, value)| (key.to_owned(), value.clone())));
    (answer.to().ok(), Mode::Abort)
}

/// Whether an invocation had ended, by its own saying or because it was given back, before its process was gone.
pub(super) fn ended_in_order(row: &InvocationRow) -> bool {
    matches!(kept(row).0, Some(Answer::Said { next: Some(Next::Stop), .. }))
}

/// The row of an invocation that ended in order, as the line decided: no restart is counted for it at the next opening.
pub(super) fn ended(row: InvocationRow) -> InvocationRow {
    let answer = Json::from_serde(&Answer::Said { answer: Json::null(), next: Some(Next::Stop) }).ok();
    InvocationRow { digest: None, answer, ..row }
}

impl SessionLine {
    /// Writes down that an invocation which was just reserved runs an abort handler, before its worker hears of it. Where it has said
    /// something already, its row says so too.
    ///
    /// # Errors
    /// What ends the session. Where storage only refuses it, the handler is begun anew behind a takeover.
    pub(super) async fn keep_mode(&self, task: TaskId, invocation: InvocationId) -> Result<(), LineError> {
        let kept = self
            .session()
            .commit(async |tx| {
                let aborts = self.state().held.get(&task).is_some_and(|held| held.invocation == invocation && held.number == 0);
                if aborts {
                    let answer = Some(Json::object([(ABORT, true)]));
                    tx.put_invocation(InvocationRow { task_id: task, invocation, number: 0, digest: None, answer });
                }
                Ok::<_, CommitError>(())
            })
            .await
            .map_err(LineError::from);
        match kept {
            Err(error) if !ends_session(&error) => {
                tracing::warn!(task = %task, error = %error, "that an invocation runs an abort handler was not stored");
                Ok(())
            }
            kept => kept,
        }
    }
}

#[cfg(test)]
mod tests {
    use picofleet_session::TaskId;

    use super::*;

    #[test]
    fn a_row_gives_back_what_was_stored() {
        let row = |answer| InvocationRow {
            task_id: TaskId::new(3).unwrap(),
            invocation: InvocationId::random(),
            number: 1,
            digest: None,
            answer,
        };
        let said = Answer::Said { answer: Json::from(7), next: Some(Next::Stop) };
        for mode in [Mode::Run, Mode::Abort] {
            assert_eq!(kept(&row(Some(stored(&said, mode).unwrap()))), (Some(said.clone()), mode));
            assert!(ended_in_order(&row(Some(stored(&said, mode).unwrap()))));
        }
        assert_eq!(kept(&row(None)), (None, Mode::Run));
        assert_eq!(kept(&row(Some(Json::object([(ABORT, true)])))), (None, Mode::Abort));
        assert!(ended_in_order(&ended(row(None))));
    }
}
