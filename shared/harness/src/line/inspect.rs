//! Inspection (section 2.2): writes nothing and runs no code.

use picofleet_session::storage::{PAGE_MAX, SessionReader, StorageError, SubmissionQuery, TaskFilter, TaskQuery};
use picofleet_session::{CommitError, Json, SubmissionRecord, SubmissionStatus, TaskRecord, TaskState, Tx, TxError};

use super::definitions::Fit;
use super::{LineError, LineOptions, SessionLine, State, Workers};
use crate::inspection::{Inspection, Scheduling, TaskInspection, TaskView};
use crate::kinds::reason;
use crate::task::checkpoint;
use crate::wire::{Answer, Route};

impl SessionLine {
    /// The live work at one point on the line.
    ///
    /// # Errors
    /// [`LineError`].
    pub async fn inspect(&self) -> Result<Inspection, LineError> {
        self.complete_tree().await?;
        let registry = self.inner.options.catalogue.failures();
        let workers = self.inner.options.workers.as_deref();
        let inspection = self
            .session()
            .commit(async |tx| {
                let mut submissions = open_submissions(tx, SubmissionStatus::Queued).await?;
                submissions.extend(open_submissions(tx, SubmissionStatus::Placed).await?);
                submissions.sort_by_key(|submission| submission.id);
                let state = self.state();
                let tasks = state
                    .tree
                    .live
                    .values()
                    .map(|record| TaskInspection { record: record.clone(), state: state.view(record, tx, workers) });
                let (scheduling, tasks) = (state.scheduling, tasks.collect());
                Ok::<_, CommitError>(Inspection { scheduling, tasks, submissions, registry, quarantined: false })
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

/// What is stored of a quarantined session. It is not opened for that.
///
/// # Errors
/// That it can't be read.
pub async fn inspect_quarantined(reader: &dyn SessionReader, options: &LineOptions) -> Result<Inspection, StorageError> {
    let mut tasks = Vec::new();
    let mut cursor = None;
    loop {
        let query = TaskQuery { status: Some(TaskFilter::Live), ..TaskQuery::default() };
        let page = reader.scan_tasks(query, PAGE_MAX, cursor).await?;
        tasks.extend(page.items);
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    let blocked = || TaskView::Blocked { reason: reason::SESSION_QUARANTINED.to_owned(), error: None };
    let tasks = tasks.into_iter().map(|record| TaskInspection { record, state: blocked() }).collect();
    let mut submissions = Vec::new();
    for status in [SubmissionStatus::Queued, SubmissionStatus::Placed] {
        let mut cursor = None;
        loop {
            let page = reader.scan_submissions(SubmissionQuery { conversation_id: None, status: Some(status) }, PAGE_MAX, cursor).await?;
            submissions.extend(page.items);
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
    }
    submissions.sort_by_key(|submission| submission.id);
    let registry = options.catalogue.failures();
    Ok(Inspection { scheduling: Scheduling::Paused, tasks, submissions, registry, quarantined: true })
}

impl State {
    /// Where a live task is.
    fn view(&self, record: &TaskRecord, tx: &Tx, workers: Option<&dyn Workers>) -> TaskView {
        if matches!(record.state, TaskState::Completing { .. }) {
            return TaskView::Completing;
        }
        if self.held.get(&record.id).is_some_and(|held| !held.expired) {
            return TaskView::Running;
        }
        if record.abort_requested {
            let on = self.tree.owned_work(record.id);
            return if on.is_empty() { self.fitting(record, workers) } else { TaskView::Waiting { on } };
        }
        match &record.state {
            TaskState::Waiting { on, .. } => {
                let on: Vec<_> = on.iter().copied().filter(|task| self.tree.live.contains_key(task)).collect();
                if on.is_empty() { self.fitting(record, workers) } else { TaskView::Waiting { on } }
            }
            TaskState::Sleeping { until, .. } if *until > tx.now() => TaskView::Sleeping { until: *until },
            _ => self.fitting(record, workers),
        }
    }

    fn fitting(&self, record: &TaskRecord, workers: Option<&dyn Workers>) -> TaskView {
        match self.fit(record) {
            Fit::Ready { .. } if workers.is_some_and(|workers| self.lacks_worker(record, workers)) => {
                TaskView::Blocked { reason: reason::NO_WORKER.to_owned(), error: None }
            }
            Fit::Ready { migrates } => TaskView::Ready { migrates },
            Fit::Blocked { reason, error } => TaskView::Blocked { reason: reason.to_owned(), error },
        }
    }

    /// Whether a ready task needs a worker and none takes its route. An abort that the line decides itself needs none.
    fn lacks_worker(&self, record: &TaskRecord, workers: &dyn Workers) -> bool {
        let Some(definition) = self.tasks.get(&record.kind) else { return false };
        let decided_here = record.abort_requested && checkpoint(record).is_some_and(|at| definition.abort_decision(at).is_some());
        !decided_here && !workers.take(&Route::of(&record.kind, definition.version()))
    }
}
