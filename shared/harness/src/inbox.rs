//! The inbox document, and what a boundary takes out of it (section 6), as a pure function.

use picofleet_session::message::UserInput;
use picofleet_session::{DocDefinition, DocToken, DraftHead, EntryDraft, EntryId, Initial, Json, Latest, SubmissionId};
use serde::{Deserialize, Serialize};

use crate::config::QueueMode;

/// How many items an inbox holds (`design.md` 13).
pub const INBOX_MAX: usize = 1_000;

/// Kind `pi.inbox`, version 1, latest, fresh in forks; a complete base whenever it is empty.
pub static INBOX: DocToken<InboxState, Latest<Initial>> = DocToken::new("pi.inbox", 1, || DocDefinition {
    initial: InboxState::default,
    migrate: None,
    checkpoint_when: |value, _, _| value.get("items").and_then(Json::as_array).is_none_or(|items| items.is_empty()),
});

/// What waits in a conversation, in the order of the ids.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct InboxState {
    /// The items.
    pub items: Vec<InboxItem>,
}

/// One queued submission.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "camelCase")]
pub enum InboxItem {
    /// A user input that may join a run.
    Steer {
        /// The submission.
        id: SubmissionId,
        /// What the user says.
        content: UserInput,
    },
    /// A user input that begins a run.
    FollowUp {
        /// The submission.
        id: SubmissionId,
        /// What the user says.
        content: UserInput,
    },
    /// A passive entry.
    Write {
        /// The submission.
        id: SubmissionId,
        /// The entry.
        entry: Box<EntryDraft>,
    },
}

impl InboxItem {
    /// The submission.
    #[must_use]
    pub const fn id(&self) -> SubmissionId {
        match self {
            Self::Steer { id, .. } | Self::FollowUp { id, .. } | Self::Write { id, .. } => *id,
        }
    }
}

/// Where a run stands when it looks into the inbox.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Boundary {
    /// Behind a tool round; the run goes on.
    PostTools,
    /// Behind an answer.
    Final,
}

/// What decides a selection besides the inbox.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Selecting {
    /// Where the run stands.
    pub boundary: Boundary,
    /// How many steers.
    pub steering: QueueMode,
    /// How many follow-ups.
    pub follow_up: QueueMode,
    /// Where the active range begins: the newest marker's head.
    pub active_from: Option<EntryId>,
}

/// What a boundary does with an inbox: indexes into its items, in the order of placement.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Selection {
    /// Writes to be placed.
    pub writes: Vec<usize>,
    /// Writes that would bring back what a head cut.
    pub stale: Vec<usize>,
    /// User items to be placed behind the writes.
    pub users: Vec<usize>,
    /// A reset is among the writes.
    pub reset: bool,
}

/// Selects by the order of the ids (section 6). Heads that are placed earlier in the same boundary count.
///
/// A `postTools` boundary that places a reset behaves as a final one: it takes follow-ups too. Ids are minted by the caller, so that a
/// write with its own head is never stale and hides every older target behind it.
#[must_use]
pub fn select(items: &[InboxItem], how: Selecting) -> Selection {
    let mut selection = Selection::default();
    // The start of the active range after the writes so far; a placed own head is above every entry that exists.
    let mut active = Start::from(how.active_from);
    for (index, item) in items.iter().enumerate() {
        let InboxItem::Write { entry, .. } = item else { continue };
        match entry.head {
            None => selection.writes.push(index),
            Some(DraftHead::Itself) => {
                active = Start::New;
                selection.reset = true;
                selection.writes.push(index);
            }
            Some(DraftHead::Entry(target)) if active.hides(target) => selection.stale.push(index),
            Some(DraftHead::Entry(target)) => {
                active = Start::Entry(target);
                selection.writes.push(index);
            }
        }
    }
    let follow_ups = how.boundary == Boundary::Final || selection.reset;
    let (mut steers_left, mut follow_ups_left) = (limit(how.steering), if follow_ups { limit(how.follow_up) } else { 0 });
    for (index, item) in items.iter().enumerate() {
        let left = match item {
            InboxItem::Steer { .. } => &mut steers_left,
            InboxItem::FollowUp { .. } => &mut follow_ups_left,
            InboxItem::Write { .. } => continue,
        };
        if *left > 0 {
            *left -= 1;
            selection.users.push(index);
        }
    }
    selection
}

const fn limit(mode: QueueMode) -> usize {
    match mode {
        QueueMode::All => usize::MAX,
        QueueMode::OneAtATime => 1,
    }
}

/// Where the active range begins.
#[derive(Clone, Copy)]
enum Start {
    Beginning,
    Entry(EntryId),
    /// At an entry that the same commit appends.
    New,
}

impl Start {
    fn from(entry: Option<EntryId>) -> Self {
        entry.map_or(Self::Beginning, Self::Entry)
    }

    /// Whether placing a head at `target` would bring back what was cut.
    fn hides(self, target: EntryId) -> bool {
        match self {
            Self::Beginning => false,
            Self::Entry(start) => target < start,
            Self::New => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: i64) -> SubmissionId {
        SubmissionId::new(n).unwrap()
    }

    fn entry(n: i64) -> EntryId {
        EntryId::new(n).unwrap()
    }

    fn steer(n: i64) -> InboxItem {
        InboxItem::Steer { id: id(n), content: "s".into() }
    }

    fn follow_up(n: i64) -> InboxItem {
        InboxItem::FollowUp { id: id(n), content: "f".into() }
    }

    fn write(n: i64, head: Option<DraftHead>) -> InboxItem {
        InboxItem::Write { id: id(n), entry: Box::new(EntryDraft { head, ..EntryDraft::new("w") }) }
    }

    const FINAL: Selecting =
        Selecting { boundary: Boundary::Final, steering: QueueMode::OneAtATime, follow_up: QueueMode::OneAtATime, active_from: None };
    const POST_TOOLS: Selecting = Selecting { boundary: Boundary::PostTools, ..FINAL };

    #[test]
    fn writes_come_first_and_user_items_in_id_order() {
        let items = [steer(1), follow_up(2), write(3, None), steer(4), follow_up(5)];
        assert_eq!(select(&items, FINAL), Selection { writes: vec![2], users: vec![0, 1], ..Selection::default() });
        assert_eq!(select(&items, POST_TOOLS), Selection { writes: vec![2], users: vec![0], ..Selection::default() });
        let all = Selecting { steering: QueueMode::All, ..FINAL };
        assert_eq!(select(&items, all).users, [0, 1, 3]);
    }

    #[test]
    fn a_reset_at_post_tools_takes_follow_ups_too() {
        let items = [follow_up(1), write(2, Some(DraftHead::Itself))];
        assert_eq!(select(&items, POST_TOOLS), Selection { writes: vec![1], users: vec![0], reset: true, ..Selection::default() });
    }

    #[test]
    fn a_head_before_the_active_range_is_stale_and_heads_of_the_same_boundary_count() {
        let summary = |n, at| write(n, Some(DraftHead::Entry(entry(at))));
        let reset = |n| write(n, Some(DraftHead::Itself));
        let from = |at| Selecting { active_from: Some(entry(at)), ..FINAL };
        assert_eq!(select(&[summary(9, 70)], from(150)).stale, [0]);
        assert_eq!(select(&[summary(9, 150)], from(150)).writes, [0], "the start itself is not older");
        assert_eq!(select(&[reset(8), summary(9, 70)], FINAL), Selection { writes: vec![0], stale: vec![1], reset: true, users: vec![] });
        assert_eq!(select(&[summary(8, 70), reset(9)], FINAL).writes, [0, 1]);
        assert_eq!(select(&[summary(8, 90), summary(9, 70)], FINAL), Selection { writes: vec![0], stale: vec![1], ..Selection::default() });
        assert_eq!(select(&[summary(8, 70), summary(9, 90)], FINAL).writes, [0, 1]);
    }
}
