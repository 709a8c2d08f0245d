//! Watches of documents by invocations (section 9.2). Commits hand frames over and never wait for who reads them; an invocation pulls them.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use picofleet_session::{
    CommitError, DocumentAddress, DocumentChange, DocumentId, InvocationId, Point, Publication, Seq, Standing, StoredDocument, TaskId,
    TxError, ValueChange, WATCH_FRAMES_MAX, ops_to_json,
};
use tokio::time::Instant;

use super::{LineError, SessionLine, State};
use crate::inspection::Scheduling;
use crate::wire::{Answer, Refusal, WatchCall, WatchChange, WatchFrame, WatchId, Watched};

/// How many watches one invocation has at once.
const WATCHES_MAX: usize = 64;
/// How many watches all hosts have at once.
const HOST_WATCHES_MAX: usize = 4_096;
/// How long a host may stay away from a watch. Longer than any call waits on the line.
const AWAY_MAX: Duration = Duration::from_secs(180);
/// How many frames one answer has at most.
const BATCH_MAX: usize = 32;

const GONE: Answer = Answer::Refused(Refusal::Gone);

/// The watches of a line.
#[derive(Default)]
pub(super) struct Watches(BTreeMap<WatchId, Watching>);

/// The invocation that watches; `None` for a host.
type Watcher = Option<(TaskId, InvocationId)>;

/// One watch: what its invocation has not taken yet.
struct Watching {
    by: Watcher,
    /// When its reader was here last.
    seen: Instant,
    document: DocumentId,
    /// The version of the value that its reader has behind all frames.
    version: u32,
    /// The number of the newest frame.
    newest: u64,
    /// The number of the newest frame that was sent. It may not have arrived.
    sent: u64,
    frames: VecDeque<WatchFrame>,
}

impl Watching {
    fn new(by: Watcher, document: DocumentId, version: u32, newest: u64) -> Self {
        Self { by, seen: Instant::now(), document, version, newest, sent: newest, frames: VecDeque::new() }
    }

    /// Whether its reader may still come. Those of invocations are forgotten with their invocation.
    fn expected(&self) -> bool {
        self.by.is_some() || self.seen.elapsed() < AWAY_MAX
    }

    fn follow(&mut self, change: &DocumentChange, seq: Seq) {
        match &change.value {
            Some(ValueChange::Changed { version, value, ops, migrated, .. }) => {
                let stands = !migrated && *version == self.version;
                self.version = *version;
                if !stands {
                    self.push(seq, WatchChange::Value(value.clone()), WatchChange::Value(value.clone()));
                } else if !ops.is_empty() {
                    self.push(seq, WatchChange::Ops(ops_to_json(ops)), WatchChange::Value(value.clone()));
                }
            }
            Some(ValueChange::Created { .. } | ValueChange::Copied { .. }) | None => {}
        }
        if change.retired {
            self.push(seq, WatchChange::Retired, WatchChange::Retired);
        }
    }

    /// Keeps a frame. Where too many wait, those that were not sent become one that stands for all of them.
    fn push(&mut self, seq: Seq, change: WatchChange, folded: WatchChange) {
        self.newest += 1;
        let full = self.frames.len() >= WATCH_FRAMES_MAX;
        if full {
            let sent = self.sent;
            self.frames.retain(|frame| frame.number <= sent);
        }
        let change = if full { folded } else { change };
        self.frames.push_back(WatchFrame { number: self.newest, seq, version: self.version, change });
    }

    /// The next frames behind what has arrived.
    fn take(&mut self, seen: u64) -> Vec<WatchFrame> {
        self.seen = Instant::now();
        self.frames.retain(|frame| frame.number > seen);
        let batch: Vec<WatchFrame> = self.frames.iter().take(BATCH_MAX).cloned().collect();
        self.sent = batch.last().map_or(self.sent, |frame| self.sent.max(frame.number));
        batch
    }
}

impl Watches {
    /// Whether somebody who watches is still expected: an invocation that goes on, or a host that was here lately.
    pub(super) fn read(&self) -> bool {
        self.0.values().any(Watching::expected)
    }

    /// Follows a commit.
    pub(super) fn observe(&mut self, publication: &Publication) {
        for change in &publication.documents {
            for watching in self.0.values_mut().filter(|watching| watching.document == change.document.id) {
                watching.follow(change, publication.head.seq);
            }
        }
    }

    /// Forgets the watches of invocations that are over, and of hosts that stay away.
    pub(super) fn retain(&mut self, holds: impl Fn(TaskId, InvocationId) -> bool) {
        self.0.retain(|_, watching| match watching.by {
            Some((task, invocation)) => holds(task, invocation),
            None => watching.expected(),
        });
    }

    fn begin(&mut self, id: WatchId, watching: Watching) -> Result<(), Refusal> {
        let mine = self.0.iter().filter(|(other, other_watching)| **other != id && other_watching.by == watching.by).count();
        let (who, most) = if watching.by.is_some() { ("an invocation has", WATCHES_MAX) } else { ("hosts have", HOST_WATCHES_MAX) };
        if mine >= most {
            return Err(Refusal::Rejected(format!("{who} {most} watches at most; stop one that is not needed")));
        }
        self.0.insert(id, watching);
        Ok(())
    }
}

impl State {
    /// Whether somebody may watch: a host as long as the line is not closing, an invocation as long as it goes on, too.
    fn watches(&self, by: Watcher) -> bool {
        let goes_on = |(task, invocation)| self.held.get(&task).is_some_and(|held| held.invocation == invocation);
        self.scheduling != Scheduling::Closing && by.is_none_or(goes_on)
    }
}

impl SessionLine {
    /// Answers a call of a watch.
    pub(super) async fn watch_document(&self, id: WatchId, by: Watcher, call: WatchCall) -> Result<Answer, LineError> {
        if !self.state().watches(by) {
            return Ok(GONE);
        }
        match call {
            WatchCall::Begin(address) => self.begin_watch(id, by, address).await,
            WatchCall::Next { document, seen, timeout_ms } => {
                let known = self.state().watches.0.get(&id).is_some_and(|watching| watching.by == by && watching.document == document);
                if !known && let Err(refusal) = self.watch_again(id, by, document, seen).await? {
                    return Ok(Answer::Refused(refusal));
                }
                self.next_frames(id, by, seen, Duration::from_millis(timeout_ms)).await
            }
            WatchCall::Stop => {
                self.state().watches.0.remove(&id);
                Ok(Answer::Done)
            }
        }
    }

    /// The line is held while the value is read and the watch registered, so that no commit falls between the two.
    async fn begin_watch(&self, id: WatchId, by: Watcher, address: DocumentAddress) -> Result<Answer, LineError> {
        let begun = self
            .session()
            .commit(async |_| {
                let Some(stored) = self.stored_at(address, Point::Current).await.map_err(TxError::from)? else {
                    return Ok::<_, CommitError>(Answer::Watched(Watched::Absent));
                };
                let watching = Watching::new(by, stored.record.create.id, stored.version, 0);
                Ok(match self.state().watches.begin(id, watching) {
                    Ok(()) => Answer::Watched(Watched::Begun(Box::new(stored.into()))),
                    Err(refusal) => Answer::Refused(refusal),
                })
            })
            .await?;
        Ok(begun)
    }

    /// Goes on with a watch of an earlier opening: its reader gets the whole value, or hears that the document is gone.
    async fn watch_again(&self, id: WatchId, by: Watcher, document: DocumentId, seen: u64) -> Result<Result<(), Refusal>, LineError> {
        let begun = self
            .session()
            .commit(async |_| {
                let store = self.session().store();
                let stored = store.document(document, Point::Current).await.map_err(TxError::from)?;
                let seq = store.head().await.map_err(TxError::from)?.seq;
                let (version, change) = match stored {
                    Some(StoredDocument { version, value, .. }) => (version, WatchChange::Again(value)),
                    None => (0, WatchChange::Retired),
                };
                let mut watching = Watching::new(by, document, version, seen);
                watching.push(seq, change.clone(), change);
                Ok::<_, CommitError>(self.state().watches.begin(id, watching))
            })
            .await?;
        Ok(begun)
    }

    async fn next_frames(&self, id: WatchId, by: Watcher, seen: u64, timeout: Duration) -> Result<Answer, LineError> {
        let look = || -> super::wait::Look<'_, Answer> {
            let mut state = self.state();
            let open = self.session().standing() == Standing::Open;
            let found = match (open, state.watches(by)) {
                (false, _) => (true, Answer::Refused(Refusal::AskAgain)),
                (true, false) => (true, GONE),
                (true, true) => match state.watches.0.get_mut(&id) {
                    Some(watching) => {
                        let frames = watching.take(seen);
                        (!frames.is_empty(), Answer::Watched(Watched::Frames(frames)))
                    }
                    // It was stopped meanwhile.
                    None => (true, GONE),
                },
            };
            drop(state);
            Box::pin(std::future::ready(Ok(found)))
        };
        Ok(self.until(timeout, look).await?.1)
    }
}
