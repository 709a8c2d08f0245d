//! What an invocation says (`protocol.md` 3): numbered, one at a time, the last one answered again.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::FutureExt as _;
use picofleet_session::{
    Bound, CommitError, InvocationId, InvocationRow, Json, TaskError, TaskId, TaskOutcome, TaskRecord, TaskState, Tx, Violation,
};
use sha2::{Digest as _, Sha256};

use super::aside::{ends_opening, ends_session};
use super::park::sleep_rejection;
use super::row::stored;
use super::{Held, LineError, SessionLine, chain};
use crate::guard::Guard;
use crate::inspection::Scheduling;
use crate::step::{Mode, PhaseEnd, Step, StepFacts, step};
use crate::task::{LineTask, NextState, checkpoint, reads};
use crate::wire::{Answer, Next, Refusal, Said};

/// How a saying came out inside its commit.
enum Outcome {
    Answer(Answer),
    /// Nothing is written, and the number is not used up.
    Refused(Refusal),
}

/// Why a saying is not the next one.
enum Numbered {
    /// What is answered.
    Answer(Answer),
    /// The number was another saying before: the invocation breaks the protocol.
    Another,
}

/// Rolls a commit back with what is answered.
pub(super) enum Rollback {
    Refused(Refusal),
    /// The saying was taken already.
    Answered(Answer),
    Failed(CommitError),
}

impl From<CommitError> for Rollback {
    fn from(error: CommitError) -> Self {
        Self::Failed(error)
    }
}

impl SessionLine {
    /// Takes the next saying of an invocation.
    pub(super) async fn say(&self, task: TaskId, invocation: InvocationId, number: u32, said: Said) -> Result<Answer, LineError> {
        // The last phase's own commits are over; what comes now stays for the next opening (section 5.1).
        if self.scheduling() == Scheduling::Closing {
            return Ok(Answer::Refused(Refusal::Gone));
        }
        let digest = digest(&said);
        let steps = matches!(said, Said::PhaseEnd(_));
        if let Said::Finish(finish) = said {
            return Ok(self.say_finish(task, invocation, number, digest, *finish).await);
        }
        match (self.admit_saying(task, invocation, number, &digest), &said) {
            (Err(answer), _) => return Ok(answer),
            (Ok(held), Said::Decide { version, .. }) if !reads(&*held.definition, *version) => {
                return Ok(self.unread(task, invocation, *version, &*held.definition));
            }
            (Ok(_), _) => {}
        }
        let bound = self.bound(task);
        let merged = AtomicBool::new(false);
        let commit = async |said: Said, merges: bool| {
            let taking = async |tx: &Tx| {
                // Both again on the line: it may have been closed, or the same saying landed, while this one waited for it.
                self.unsealed().map_err(|_| Rollback::Refused(Refusal::Gone))?;
                let held = self.admit_saying(task, invocation, number, &digest).map_err(Rollback::Answered)?;
                let outcome = self.apply_saying(tx, task, &held, said).await?;
                let answer = match outcome {
                    Outcome::Answer(answer) => answer,
                    Outcome::Refused(refusal) => return Err(Rollback::Refused(refusal)),
                };
                self.store_reservation(tx, task).await.map_err(CommitError::from)?;
                let stored = Some(stored(&answer, held.mode)?);
                tx.put_invocation(InvocationRow { task_id: task, invocation, number, digest: Some(digest.clone()), answer: stored });
                let ends = merges && matches!(answer, Answer::Said { next: Some(Next::Stop), .. });
                if ends && let Some(step) = self.owner_step(tx, task).await? {
                    merged.store(true, Ordering::Relaxed);
                    self.owner_goes_on(tx, step).await?;
                }
                Ok::<_, Rollback>(answer)
            };
            self.session().commit_bound(bound, taking).await
        };
        let again = said.clone();
        let result = match commit(said, true).await {
            // What the owner's step came to says nothing about the task: the owner takes it by itself then.
            Err(Rollback::Failed(error)) if merged.load(Ordering::Relaxed) && !ends_opening(&error) => {
                tracing::debug!(task = %task, error = %error, "the owner's step failed in the commit of its task, and is left to a worker");
                commit(again, false).await
            }
            result => result,
        };
        match result {
            Ok(answer) => {
                self.settle_saying(task, invocation, number, digest, &answer);
                Ok(answer)
            }
            Err(Rollback::Refused(refusal)) => Ok(Answer::Refused(refusal)),
            Err(Rollback::Answered(answer)) => Ok(answer),
            Err(Rollback::Failed(error)) => self.failed_saying(task, invocation, error, steps).await,
        }
    }

    /// A decision of a version that this line does not read: the invocation is lost, and another worker may speak the right one.
    fn unread(&self, task: TaskId, invocation: InvocationId, version: u32, definition: &dyn LineTask) -> Answer {
        self.cut_off(task, invocation);
        let (kind, own) = (definition.name(), definition.decision_version());
        let why =
            format!("a decision of {kind} has version {version}, and this line reads {own} and the one before: roll coordinators first");
        tracing::warn!(task = %task, "{why}");
        Answer::Refused(Refusal::Protocol(why))
    }

    /// What the commits of a task's invocation belong to.
    pub(super) fn bound(&self, task: TaskId) -> Bound {
        Bound { conversation: self.conversation_of(task), task: Some(task) }
    }

    /// Progress: one document row, no number, no task row.
    pub(super) async fn progress(
        &self,
        task: TaskId,
        invocation: InvocationId,
        (number, whole): (u32, bool),
        decision: Json,
    ) -> Result<Answer, LineError> {
        let held = self.state().held.get(&task).filter(|held| held.invocation == invocation).cloned();
        let Some(held) = held.filter(|held| held.unstored.is_none() && self.scheduling() != Scheduling::Closing) else {
            return Ok(Answer::Refused(Refusal::Gone));
        };
        let result = self
            .session()
            .commit_bound(self.bound(task), async |tx| {
                self.unsealed().map_err(|_| Rollback::Refused(Refusal::Gone))?;
                let Some(record) = self.gated(tx, task, Mode::Run).await? else { return Err(Rollback::Refused(Refusal::Gone)) };
                self.follows(task, invocation, number, whole)?;
                match apply(&*held.definition, tx, &record, decision).await? {
                    (NextState::Stay, _) => Ok(()),
                    _ => Err(Rollback::Refused(Refusal::Protocol("progress changes no state".to_owned()))),
                }
            })
            .await;
        match result {
            Ok(()) => Ok(Answer::Done),
            Err(Rollback::Refused(refusal)) => Ok(Answer::Refused(refusal)),
            Err(Rollback::Answered(answer)) => Ok(answer),
            Err(Rollback::Failed(error)) => {
                // Whether it landed is not known, or it did not: the next one has to be whole.
                if let Some(held) = self.state().held.get_mut(&task).filter(|held| held.invocation == invocation) {
                    held.progress = 0;
                }
                match error {
                    CommitError::Draft(_) => Ok(Answer::Refused(Refusal::Resync)),
                    // Run again at once it would only be refused again.
                    CommitError::Rejected(_) => {
                        let why = chain(&error);
                        self.put_aside(task, why.clone());
                        self.ended(task, invocation);
                        Ok(Answer::Refused(Refusal::Rejected(why)))
                    }
                    error => Err(error.into()),
                }
            }
        }
    }

    /// Whether progress stands on what the line has. On the line; the next one follows this one from here on.
    fn follows(&self, task: TaskId, invocation: InvocationId, number: u32, whole: bool) -> Result<(), Rollback> {
        let mut state = self.state();
        let held = state.held.get_mut(&task).filter(|held| held.invocation == invocation);
        let held = held.ok_or(Rollback::Refused(Refusal::Gone))?;
        let guards = &self.inner.options.guards;
        if guards.stops(Guard::Repeated, number <= held.progress) {
            return Err(Rollback::Answered(Answer::Done));
        }
        if guards.stops(Guard::Resync, !whole && number != held.progress.saturating_add(1)) {
            return Err(Rollback::Refused(Refusal::Resync));
        }
        held.progress = number;
        Ok(())
    }

    pub(super) fn conversation_of(&self, task: TaskId) -> Option<picofleet_session::ConversationId> {
        self.state().tree.lineage.get(&task).map(|lineage| lineage.conversation)
    }

    /// Checks the invocation and the number; the answer for one that is not the next.
    pub(super) fn admit_saying(&self, task: TaskId, invocation: InvocationId, number: u32, digest: &str) -> Result<Held, Answer> {
        let admitted = self.numbered(task, invocation, number, digest);
        if let Err(Numbered::Another) = admitted {
            self.cut_off(task, invocation);
        }
        admitted.map_err(|refused| match refused {
            Numbered::Answer(answer) => answer,
            Numbered::Another => Answer::Refused(Refusal::Protocol(format!("saying {number} was another one before"))),
        })
    }

    /// Ends an invocation that broke the protocol or can't go on. It counts as lost, so that a task that always comes to this parks.
    fn cut_off(&self, task: TaskId, invocation: InvocationId) {
        self.state().lost.insert(task);
        self.ended(task, invocation);
    }

    fn numbered(&self, task: TaskId, invocation: InvocationId, number: u32, digest: &str) -> Result<Held, Numbered> {
        let mut state = self.state();
        let guards = &self.inner.options.guards;
        let Some(held) = state.held.get_mut(&task).filter(|held| !guards.stops(Guard::Gone, held.invocation != invocation)) else {
            return Err(Numbered::Answer(Answer::Refused(Refusal::Gone)));
        };
        // A saying names the invocation as a beat does; one that had expired is alive after all.
        held.heard = true;
        held.expired = false;
        let held = held.clone();
        if number == held.number.saturating_add(1) {
            return Ok(held);
        }
        let repeated = held.last.as_ref().filter(|(last, _)| number == held.number && last == digest);
        match (&held.last, repeated) {
            (_, Some((_, answer))) if guards.stops(Guard::Repeated, true) => Err(Numbered::Answer(answer.clone())),
            (_, Some(_)) => Ok(held),
            (Some(_), _) if number == held.number => Err(Numbered::Another),
            _ if number < held.number => Err(Numbered::Answer(Answer::Refused(Refusal::Superseded))),
            _ => {
                let why = format!("saying {number} came behind {}", held.number);
                Err(Numbered::Answer(Answer::Refused(Refusal::Protocol(why))))
            }
        }
    }

    pub(super) fn settle_saying(&self, task: TaskId, invocation: InvocationId, number: u32, digest: String, answer: &Answer) {
        let mut state = self.state();
        let ended = matches!(answer, Answer::Said { next: Some(Next::Stop), .. });
        if matches!(answer, Answer::Said { next: Some(_), .. }) {
            state.aside.remove(task);
        }
        if let Some(held) = state.held.get_mut(&task).filter(|held| held.invocation == invocation) {
            held.number = number;
            held.last = Some((digest, answer.clone()));
            if let Answer::Said { next: Some(Next::Continue(record)), .. } = answer {
                held.began_at = checkpoint(record).cloned().unwrap_or(Json::null());
            }
            if ended {
                state.held.remove(&task);
            }
        }
        drop(state);
        self.inner.changed.notify_waiters();
    }

    /// A commit that failed without effect faults the task, except the step's own: its invocation ends and the next reservation runs the
    /// phase again (section 5.1). One that belongs to nobody any more is passed on.
    pub(super) async fn failed_saying(
        &self,
        task: TaskId,
        invocation: InvocationId,
        error: CommitError,
        steps: bool,
    ) -> Result<Answer, LineError> {
        match error {
            CommitError::Closed | CommitError::NotOwner | CommitError::Failed(_) => Err(error.into()),
            CommitError::Rejected(_) if steps => {
                let why = chain(&error);
                // Before the task is ready again, so that it is not reserved at once.
                self.put_aside(task, why.clone());
                self.ended(task, invocation);
                Ok(Answer::Refused(Refusal::Rejected(why)))
            }
            other => {
                let message = chain(&other);
                let faulted = self.fault(task, TaskError { message: message.clone(), detail: None }).await;
                let faulted = faulted.map_err(|error| self.end_damaged(error));
                if let Err(error) = &faulted
                    && !ends_session(error)
                {
                    self.put_aside(task, chain(error));
                }
                self.ended(task, invocation);
                faulted?;
                Ok(Answer::Refused(Refusal::Rejected(message)))
            }
        }
    }

    /// The running record, unless the invocation may not commit any more (section 5.4).
    pub(super) async fn gated(&self, tx: &Tx, task: TaskId, mode: Mode) -> Result<Option<TaskRecord>, CommitError> {
        let record = self.found_by(tx, task).await?.filter(|record| matches!(record.state, TaskState::Running { .. }));
        let guards = &self.inner.options.guards;
        Ok(record.filter(|record| !guards.stops(Guard::AbortGate, mode == Mode::Run && record.abort_requested)))
    }

    async fn apply_saying(&self, tx: &Tx, task: TaskId, held: &Held, said: Said) -> Result<Outcome, CommitError> {
        match said {
            Said::Decide { decision, last, .. } => {
                let Some(record) = self.gated(tx, task, held.mode).await? else { return Ok(Outcome::Refused(Refusal::Gone)) };
                let (next, answer) = apply(&*held.definition, tx, &record, decision).await?;
                if self.inner.options.guards.stops(Guard::StalePlan, next == NextState::Stale) {
                    return Ok(Outcome::Refused(Refusal::Stale));
                }
                let record = self.put_state(tx, record, next, held.mode).await?;
                let next = if last { Some(self.step(tx, record, &PhaseEnd::Returned, held).await?) } else { None };
                Ok(Outcome::Answer(Answer::Said { answer, next }))
            }
            Said::Memo { name, candidate } => {
                let Some(record) = self.gated(tx, task, held.mode).await? else { return Ok(Outcome::Refused(Refusal::Gone)) };
                let memos = record.memos.clone().unwrap_or_else(|| Json::object::<&str, Json>([]));
                if let Some(first) = memos.get(&name) {
                    return Ok(Outcome::Answer(Answer::Said { answer: first.clone(), next: None }));
                }
                let fields =
                    memos.as_object().into_iter().flat_map(|memos| memos.iter().map(|(key, value)| (key.to_owned(), value.clone())));
                let memos = Json::object(fields.chain(std::iter::once((name, candidate.clone()))));
                tx.put_task(TaskRecord { memos: Some(memos), ..record }).await?;
                Ok(Outcome::Answer(Answer::Said { answer: candidate, next: None }))
            }
            // Taken before, by the hold that it ends.
            Said::Finish(_) => Ok(Outcome::Refused(Refusal::Gone)),
            Said::PhaseEnd(error) => {
                let Some(record) = self.found_by(tx, task).await? else { return Ok(Outcome::Refused(Refusal::Gone)) };
                let ended = error.map_or(PhaseEnd::Returned, PhaseEnd::Failed);
                let next = self.step(tx, record, &ended, held).await?;
                Ok(Outcome::Answer(Answer::Said { answer: Json::null(), next: Some(next) }))
            }
        }
    }

    /// Puts the state that a decision asks for, with the rules of section 5.5.
    pub(super) async fn put_state(&self, tx: &Tx, record: TaskRecord, next: NextState, mode: Mode) -> Result<TaskRecord, CommitError> {
        let invalid = |why: String| CommitError::Invalid(Violation::Decision { why });
        match &next {
            NextState::Wait { .. } if mode == Mode::Abort => {
                return Err(invalid(format!("the abort handler of task {} cannot wait", record.id)));
            }
            NextState::Sleep { .. } if mode == Mode::Abort => {
                return Err(invalid(format!("the abort handler of task {} cannot sleep", record.id)));
            }
            NextState::Wait { on, policy, .. } => {
                if let Some(why) = self.wait_rejection(tx, &record, on, *policy).await? {
                    return Err(invalid(why));
                }
            }
            NextState::Sleep { until, .. } => {
                if let Some(why) = sleep_rejection(record.id, *until) {
                    return Err(invalid(why));
                }
            }
            _ => {}
        }
        let state = match next {
            NextState::Stay | NextState::Stale => return Ok(record),
            NextState::End(outcome) => return Ok(self.end_task(tx, record, outcome).await?),
            NextState::Checkpoint(checkpoint) => TaskState::Running { checkpoint },
            NextState::Sleep { checkpoint, until } => TaskState::Sleeping { checkpoint, until },
            NextState::Wait { checkpoint, on, policy } => TaskState::Waiting { checkpoint, on, policy },
        };
        let progress = match &state {
            TaskState::Running { checkpoint } | TaskState::Sleeping { checkpoint, .. } | TaskState::Waiting { checkpoint, .. } => {
                crate::task::checkpoint(&record) != Some(checkpoint)
            }
            _ => false,
        };
        let restarts = if progress { 0 } else { record.restarts };
        let record = TaskRecord { state, restarts, ..record };
        tx.put_task(record.clone()).await?;
        Ok(record)
    }

    /// The step between two phases, in the same commit (section 5.1).
    pub(super) async fn step(&self, tx: &Tx, record: TaskRecord, ended: &PhaseEnd, held: &Held) -> Result<Next, CommitError> {
        let closing = self.scheduling() == Scheduling::Closing;
        let hand_over = held.mode == Mode::Run && matches!(ended, PhaseEnd::Returned) && self.hands_over(&record, held);
        let facts = StepFacts { mode: held.mode, closing, began_at: &held.began_at, hand_over };
        match step(&record, ended, facts) {
            Step::Stop(_) => Ok(Next::Stop),
            Step::Continue => Ok(Next::Continue(Box::new(record))),
            Step::HandOver => {
                if let TaskState::Running { checkpoint } = record.state.clone() {
                    tx.put_task(TaskRecord { state: TaskState::Pending { checkpoint }, ..record }).await?;
                }
                Ok(Next::Stop)
            }
            Step::Fault(error) => {
                self.end_task(tx, record, TaskOutcome::Faulted { error }).await?;
                Ok(Next::Stop)
            }
        }
    }
}

/// Applies a decision; a panic of its code is an error of the commit and nothing else.
pub(super) async fn apply(task: &dyn LineTask, tx: &Tx, record: &TaskRecord, decision: Json) -> Result<(NextState, Json), CommitError> {
    let applied = AssertUnwindSafe(task.apply(tx, record, decision)).catch_unwind().await;
    let why = || format!("applying a decision of {} panicked", record.kind);
    applied.unwrap_or_else(|_| Err(CommitError::Invalid(Violation::Decision { why: why() })))
}

/// The digest of a saying: a repetition has the same.
pub(super) fn digest(said: &impl serde::Serialize) -> String {
    let text = Json::from_serde_envelope(said).map(|json| json.to_vec()).unwrap_or_default();
    Sha256::digest(&text).iter().fold(String::with_capacity(64), |mut hex, byte| {
        use std::fmt::Write as _;
        // Writing to a String does not fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}
