//! The end of a run: its inputs settle and the live document lets go of it (section 6).

use picofleet_session::{EntryId, Json, Settlement, SubmissionId, TaskRecord, Tx, TxError};

use crate::live::{LIVE, Run};

/// How a run ends for its inputs.
#[derive(Clone, Debug)]
pub(crate) enum RunEnd<'a> {
    /// Answered.
    Done(EntryId),
    /// Not answered.
    Unanswered {
        /// Why, as a stable word.
        reason: &'a str,
        /// More about it.
        detail: Option<Json>,
    },
    /// The run goes on in a successor, with its inputs open.
    HandedOn,
}

/// Ends the run of a generation, if it has one: settles the inputs and removes `run`, `generation` and `tools`. Answers the inputs.
pub(crate) async fn end_run(tx: &Tx, task: &TaskRecord, end: RunEnd<'_>) -> Result<Vec<SubmissionId>, TxError> {
    let live = tx.doc(&LIVE, task.conversation_id).await?;
    let run = live.draft.key("run").get().and_then(|run| run.to::<Run>().ok());
    let Some(run) = run.filter(|run| run.task_id == task.id) else { return Ok(Vec::new()) };
    for id in &run.inputs {
        let settlement = match &end {
            RunEnd::Done(answer) => Settlement::Done { answer: *answer },
            RunEnd::Unanswered { reason, detail } => Settlement::Unanswered { reason: (*reason).to_owned(), detail: detail.clone() },
            RunEnd::HandedOn => continue,
        };
        tx.settle_submission(*id, settlement).await?;
    }
    for key in ["run", "generation", "tools"] {
        live.draft.key(key).remove()?;
    }
    Ok(run.inputs)
}
