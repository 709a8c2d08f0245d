//! The rules of waits and sleeps (section 5.5).

use picofleet_session::storage::StorageError;
use picofleet_session::{JoinPolicy, Millis, TaskId, TaskRecord, Tx, TxError};

use super::SessionLine;

/// The last time that every client can show: 100,000,000 days after 1970.
const UNTIL_MAX: i64 = 8_640_000_000_000_000;

impl SessionLine {
    /// Why a task may not wait for `on`, if it may not.
    pub(super) async fn wait_rejection(
        &self,
        tx: &Tx,
        record: &TaskRecord,
        on: &[TaskId],
        policy: JoinPolicy,
    ) -> Result<Option<String>, TxError> {
        let id = record.id;
        let tree = self.candidate_tree(tx).await?;
        let above = tree.held_by(id);
        for other in on {
            if *other == id {
                return Ok(Some(format!("task {id} cannot wait for itself")));
            }
            let live = tree.live.get(other).map(|task| task.owner);
            let owner = match live {
                Some(owner) => Some(owner),
                None => self.owner_of(*other).await?,
            };
            let Some(owner) = owner else {
                return Ok(Some(format!("task {id} cannot wait for task {other}, which does not exist")));
            };
            if above.contains(other) {
                return Ok(Some(format!("task {id} cannot wait for task {other}, which is on its owner chain and can't finish first")));
            }
            if policy == JoinPolicy::FailFast && owner != Some(id) {
                return Ok(Some(format!("task {id} cannot wait failFast for task {other}, which it does not own; use allSettled")));
            }
        }
        Ok(tree.wait_cycle(id, on).map(|cycle| {
            let names: Vec<String> = cycle.iter().map(ToString::to_string).collect();
            format!("task {id} would close a wait cycle: {}", names.join(" -> "))
        }))
    }

    /// The owner of a stored task; nothing where there is no such task.
    async fn owner_of(&self, task: TaskId) -> Result<Option<Option<TaskId>>, StorageError> {
        Ok(self.session().store().task(task).await?.map(|task| task.owner))
    }
}

/// Why a task may not sleep until a time, if it may not.
pub(super) fn sleep_rejection(task: TaskId, until: Millis) -> Option<String> {
    (!(0..=UNTIL_MAX).contains(&until.0))
        .then(|| format!("task {task} cannot sleep until {}: a time is 0 to {UNTIL_MAX} milliseconds after 1970", until.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x037_times_that_are_none_are_refused() {
        let task = TaskId::new(3).unwrap();
        assert!(sleep_rejection(task, Millis(-1)).unwrap().contains("cannot sleep until -1"));
        assert!(sleep_rejection(task, Millis(UNTIL_MAX + 1)).is_some());
        assert_eq!(sleep_rejection(task, Millis(0)), None);
        assert_eq!(sleep_rejection(task, Millis(UNTIL_MAX)), None);
    }
}
