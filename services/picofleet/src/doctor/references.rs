//! What records say of each other.

use picofleet_session::{ConversationRecord, EntryId, InputState, ROOT_CONVERSATION_ID, SubmissionState, WriteState};

use super::model::{Kind, Model};

impl Model {
    pub(super) fn check_references(&mut self) {
        if !self.kinds.is_empty() && !self.conversations.contains_key(&ROOT_CONVERSATION_ID) {
            self.add("reference", "the root conversation is not there".to_owned());
        }
        for record in self.conversations.values().cloned().collect::<Vec<_>>() {
            self.check_conversation(&record);
        }
        let lost: Vec<_> = self.authors.iter().filter(|task| !self.tasks.contains_key(task)).copied().collect();
        for task in lost {
            self.add("reference", format!("entries were appended by task {task}, which is not there"));
        }
        for record in self.submissions.values().cloned().collect::<Vec<_>>() {
            if !self.conversations.contains_key(&record.conversation_id) {
                self.add(
                    "reference",
                    format!("submission {} is in conversation {}, which is not there", record.id, record.conversation_id),
                );
            }
            for entry in entries(&record.state).into_iter().flatten().filter(|entry| !self.is(entry.get(), Kind::Entry)).collect::<Vec<_>>()
            {
                self.add("submission", format!("submission {} names entry {entry}, which is not there", record.id));
            }
        }
    }

    fn check_conversation(&mut self, record: &ConversationRecord) {
        let id = record.id;
        if let Some(parent) = record.parent {
            let older = parent.conversation_id < id && self.conversations.contains_key(&parent.conversation_id);
            if !older || !self.is(parent.at.get(), Kind::Entry) {
                let what = format!("conversation {id} is a fork of {} at entry {}, which is not there", parent.conversation_id, parent.at);
                self.add("reference", what);
            }
        }
        if let Some(owner) = record.owner {
            match self.tasks.get(&owner.task_id).map(|task| task.conversation_id) {
                None => self.add("reference", format!("conversation {id} belongs to task {}, which is not there", owner.task_id)),
                Some(conversation) if conversation != owner.conversation_id => {
                    let what = format!(
                        "conversation {id} says that its task {} is in conversation {}, and it is in {conversation}",
                        owner.task_id, owner.conversation_id
                    );
                    self.add("reference", what);
                }
                Some(_) => {}
            }
        }
    }
}

/// The entries that a submission names.
fn entries(state: &SubmissionState) -> [Option<EntryId>; 2] {
    match state {
        SubmissionState::Input(InputState::Queued) | SubmissionState::Write(WriteState::Queued | WriteState::Unanswered { .. }) => {
            [None, None]
        }
        SubmissionState::Input(InputState::Placed { entry }) | SubmissionState::Write(WriteState::Done { entry }) => [Some(*entry), None],
        SubmissionState::Input(InputState::Done { entry, answer }) => [Some(*entry), Some(*answer)],
        SubmissionState::Input(InputState::Unanswered { entry, .. }) => [*entry, None],
    }
}
