//! The step between two phases of an invocation (section 5.1), as a pure function.

use picofleet_session::{Json, TaskError, TaskRecord, TaskState};

/// What an invocation runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub enum Mode {
    /// The phases of the task.
    Run,
    /// The abort handler.
    Abort,
}

/// How a phase handler ended.
#[derive(Clone, PartialEq, Debug)]
pub enum PhaseEnd {
    /// No handler has run yet: the step before the first phase.
    Begin,
    /// It returned.
    Returned,
    /// It failed with an error that nobody caught.
    Failed(TaskError),
}

/// What the step looks at besides the record and the end of the phase.
#[derive(Clone, Copy, Debug)]
pub struct StepFacts<'a> {
    /// What the invocation runs.
    pub mode: Mode,
    /// The session takes no new work.
    pub closing: bool,
    /// The checkpoint that the phase began with.
    pub began_at: &'a Json,
    /// Another definition than the invocation's is there and can take the task, or the worker drains.
    pub hand_over: bool,
}

/// What happens next.
#[derive(Clone, PartialEq, Debug)]
pub enum Step {
    /// The invocation ends; the record stays as it is.
    Stop(Stop),
    /// The invocation runs the phase of the record's checkpoint.
    Continue,
    /// The task goes back to `pending`, for a new invocation.
    HandOver,
    /// The task ends `faulted`.
    Fault(TaskError),
}

/// Why an invocation ends without a write of the step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// The task is terminal, completing, waiting or sleeping.
    Parked,
    /// The session closes; the task resumes where it is.
    Closing,
    /// Somebody asked the task to stop: its abort handler comes next.
    AbortRequested,
}

/// Applies the first matching rule of section 5.1.
#[must_use]
pub fn step(record: &TaskRecord, ended: &PhaseEnd, facts: StepFacts<'_>) -> Step {
    let checkpoint = match &record.state {
        TaskState::Running { checkpoint } => checkpoint,
        TaskState::Pending { .. }
        | TaskState::Waiting { .. }
        | TaskState::Sleeping { .. }
        | TaskState::Completing { .. }
        | TaskState::Terminal { .. } => return Step::Stop(Stop::Parked),
    };
    if facts.closing {
        return Step::Stop(Stop::Closing);
    }
    if facts.mode == Mode::Run && record.abort_requested {
        return Step::Stop(Stop::AbortRequested);
    }
    match ended {
        PhaseEnd::Begin => Step::Continue,
        PhaseEnd::Failed(error) => Step::Fault(error.clone()),
        PhaseEnd::Returned if facts.mode == Mode::Abort => Step::Fault(fault("the abort handler returned without an outcome")),
        PhaseEnd::Returned if checkpoint == facts.began_at => Step::Fault(fault("the phase returned without durable progress")),
        PhaseEnd::Returned if facts.hand_over => Step::HandOver,
        PhaseEnd::Returned => Step::Continue,
    }
}

fn fault(message: &str) -> TaskError {
    TaskError { message: message.to_owned(), detail: None }
}

#[cfg(test)]
mod tests {
    use picofleet_session::{ROOT_CONVERSATION_ID, TaskId, TaskOutcome};

    use super::*;

    fn record(state: TaskState, abort_requested: bool) -> TaskRecord {
        TaskRecord {
            id: TaskId::new(9).unwrap(),
            conversation_id: ROOT_CONVERSATION_ID,
            kind: "k".into(),
            version: 1,
            input: Json::null(),
            owner: None,
            background: false,
            abort_requested,
            state,
            memos: None,
            restarts: 0,
            started_at: None,
            ended_at: None,
        }
    }

    fn at(n: i64) -> Json {
        Json::object([("phase", Json::from("p")), ("n", Json::from(n))])
    }

    fn running(n: i64) -> TaskState {
        TaskState::Running { checkpoint: at(n) }
    }

    #[test]
    fn the_first_matching_rule_holds() {
        let began = at(0);
        let facts = StepFacts { mode: Mode::Run, closing: false, began_at: &began, hand_over: false };
        let failed = PhaseEnd::Failed(fault("boom"));
        let terminal = TaskState::Terminal { outcome: TaskOutcome::Completed { result: Json::null() } };
        // 1 before everything.
        let closing = StepFacts { closing: true, ..facts };
        assert_eq!(step(&record(terminal, true), &failed, closing), Step::Stop(Stop::Parked));
        // 2 before 3, 3 before 4.
        assert_eq!(step(&record(running(1), true), &failed, closing), Step::Stop(Stop::Closing));
        assert_eq!(step(&record(running(1), true), &failed, facts), Step::Stop(Stop::AbortRequested));
        assert_eq!(step(&record(running(0), false), &failed, facts), Step::Fault(fault("boom")));
        // 5 and 6.
        assert_eq!(step(&record(running(1), false), &PhaseEnd::Returned, facts), Step::Continue);
        let handing = StepFacts { hand_over: true, ..facts };
        assert_eq!(step(&record(running(1), false), &PhaseEnd::Returned, handing), Step::HandOver);
        assert!(matches!(step(&record(running(0), false), &PhaseEnd::Returned, handing), Step::Fault(_)));
        assert_eq!(step(&record(running(0), false), &PhaseEnd::Begin, handing), Step::Continue);
    }

    #[test]
    fn an_abort_handler_runs_once_and_must_decide() {
        let began = at(0);
        let facts = StepFacts { mode: Mode::Abort, closing: false, began_at: &began, hand_over: true };
        assert_eq!(step(&record(running(0), true), &PhaseEnd::Begin, facts), Step::Continue);
        assert!(matches!(step(&record(running(1), true), &PhaseEnd::Returned, facts), Step::Fault(_)));
    }
}
