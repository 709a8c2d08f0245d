//! Inspection (section 2.2): writes nothing and runs no code.

use picofleet_session::storage::{PAGE_MAX, SubmissionQuery};
use picofleet_session::{CommitError, Json, SubmissionRecord, SubmissionStatus, TaskRecord, TaskState, Tx, TxError};

use super::definitions::Fit;
use super::{LineError, SessionLine, State};
use crate::inspection::{Inspection, TaskInspection, TaskView};
use crate::wire::Answer;

impl SessionLine {
    /// The live work at one point on the line.
    ///
    /// # Errors
    /// [`LineError`].
    pub async fn inspect(&self) -> Result<Inspection, LineError> {
        self.complete_tree().await?;
        let inspection = self
            .session()
            .commit(async |tx| {
                let mut submissions = open_submissions(tx, SubmissionStatus::Queued).await?;
                submissions.extend(open_submissions(tx, SubmissionStatus::Placed).await?);
                submissions.sort_by_key(|submission| submission.id);
                let state = self.state();
                let tasks = state.tree.live.values().map(|record| TaskInspection { record: record.clone(), state: state.view(record, tx) });
                Ok::<_, CommitError>(Inspection { scheduling: state.scheduling, tasks: tasks.collect(), submissions })
            })
            .await?;
        Ok(inspection)
    }

    pub(super) async fn inspected(&self) -> Result<Answer, LineError> {
        let inspection = self.inspect().await?;
        // Records are JSON by construction.
        Ok(Answer::Value(Json::from_serde(&inspection).unwrap_or(Json::null())))
    }
}

async fn open_submissions(tx: &Tx, status: SubmissionStatus) -> Result<Vec<SubmissionRecord>, TxError> {
    let mut found = Vec::new();
    let mut cursor = None;
    loop {
        let query = SubmissionQuery { conversation_id: None, status: Some(status) };
        let page = tx.scan_submissions(query, PAGE_MAX, cursor).await?;
        found.extend(page.items);
        cursor = page.next;
        if cursor.is_none() {
            return Ok(found);
        }
    }
}

impl State {
    /// Where a live task is.
    fn view(&self, record: &TaskRecord, tx: &Tx) -> TaskView {
        if matches!(record.state, TaskState::Completing { .. }) {
            return TaskView::Completing;
        }
        if self.held.get(&record.id).is_some_and(|held| !held.expired) {
            return TaskView::Running;
        }
        if record.abort_requested {
            let on = self.tree.owned_work(record.id);
            return if on.is_empty() { self.fitting(record) } else { TaskView::Waiting { on } };
        }
        match &record.state {
            TaskState::Waiting { on, .. } => {
                let on: Vec<_> = on.iter().copied().filter(|task| self.tree.live.contains_key(task)).collect();
                if on.is_empty() { self.fitting(record) } else { TaskView::Waiting { on } }
            }
            TaskState::Sleeping { until, .. } if *until > tx.now() => TaskView::Sleeping { until: *until },
            _ => self.fitting(record),
        }
    }

    fn fitting(&self, record: &TaskRecord) -> TaskView {
        match self.fit(record) {
            Fit::Ready { migrates } => TaskView::Ready { migrates },
            Fit::Blocked { reason, error } => TaskView::Blocked { reason: reason.to_owned(), error },
        }
    }
}
