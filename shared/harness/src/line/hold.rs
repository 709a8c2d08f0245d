//! Holds (`design.md` 1): the line stays in one open transaction while a closure runs elsewhere, at most for a bounded time. Its reads are
//! answered from the state that the transaction stands on; its end replays what it wrote.

mod land;
mod make;
mod read;

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use picofleet_session::storage::{Head, StorageError};
use picofleet_session::{
    Bound, CommitError, ConversationId, DocumentAddress, InvocationId, Json, Point, StoredDocument, TaskId, TaskRecord, Tx,
};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use self::make::{Made, Shown};
use super::host::keyed::failure;
use super::say::Rollback;
use super::{Held, LineError, SessionLine, refused};
use crate::wire::{Answer, Begin, Begun, Finish, HoldId, Refusal, Written};

/// How many holds of one session wait or are open at once. Tasks have one each; the rest of the hosts asks again.
const HOLDS_MAX: usize = 64;

/// A hold, as the messages about it find it.
pub(super) struct Hold {
    by: Option<(TaskId, InvocationId)>,
    begun: watch::Receiver<Option<Answer>>,
    done: watch::Receiver<Option<Answer>>,
    taking: Mutex<Taking>,
    release: CancellationToken,
    /// The documents of the conversation that the commit makes.
    shown: OnceLock<Shown>,
}

/// Whether the end of the closure was taken.
enum Taking {
    Open(oneshot::Sender<Ending>),
    /// With this digest.
    Taken(String),
}

/// The end of a closure.
struct Ending {
    digest: String,
    written: Written,
    /// What a task's closure decided, and the number of its saying.
    said: Option<(u32, Finish)>,
}

/// The hold's own ends of its channels.
struct Ends {
    begun: watch::Sender<Option<Answer>>,
    ending: oneshot::Receiver<Ending>,
    release: CancellationToken,
}

/// What a landed closure is answered, with the saying that it was.
struct Landed {
    answer: Answer,
    saying: Option<(u32, String)>,
}

/// Why a hold came to nothing.
enum Lost {
    Rollback(Rollback),
    /// Its time was over.
    Expired,
    /// Somebody gave it up.
    Released,
}

impl From<CommitError> for Lost {
    fn from(error: CommitError) -> Self {
        Self::Rollback(Rollback::Failed(error))
    }
}

impl From<Rollback> for Lost {
    fn from(rollback: Rollback) -> Self {
        Self::Rollback(rollback)
    }
}

const GONE: Answer = Answer::Refused(Refusal::Gone);

impl SessionLine {
    /// Opens a hold, and answers once it has the line. The same hold is answered again.
    pub(super) async fn begin(&self, id: HoldId, begin: Begin) -> Answer {
        match self.open_hold(id, begin) {
            Ok(hold) => answered(&hold.begun).await,
            Err(refusal) => Answer::Refused(refusal),
        }
    }

    /// Gives a hold up.
    pub(super) fn give_up(&self, id: HoldId) {
        if let Some(hold) = self.find_hold(id) {
            hold.release.cancel();
        }
    }

    /// Takes the end of a host's closure. Its answer is stored under the hold's name.
    pub(super) async fn finish(&self, id: HoldId, written: Written) -> Result<Answer, LineError> {
        let digest = super::say::digest(&written);
        match self.find_hold(id) {
            Some(hold) if hold.by.is_none() => Ok(hold.end(Ending { digest, written, said: None }).await),
            Some(_) => Ok(GONE),
            None => match self.session().store().request(request_key(id)).await? {
                Some(row) if row.digest == digest => Ok(row.answer.to().unwrap_or(GONE)),
                _ => Ok(GONE),
            },
        }
    }

    /// Takes the saying that ends a task's closure.
    pub(super) async fn say_finish(&self, task: TaskId, invocation: InvocationId, number: u32, digest: String, finish: Finish) -> Answer {
        // Looked for first: a hold that lands meanwhile has its answer stored before it is forgotten.
        let hold = self.find_hold(finish.hold).filter(|hold| hold.by == Some((task, invocation)));
        if let Err(answer) = self.admit_saying(task, invocation, number, &digest) {
            return answer;
        }
        let Some(hold) = hold else { return GONE };
        let written = finish.writes.clone();
        hold.end(Ending { digest, written, said: Some((number, finish)) }).await
    }

    pub(super) fn find_hold(&self, id: HoldId) -> Option<Arc<Hold>> {
        self.state().holds.get(&id).cloned()
    }

    fn open_hold(&self, id: HoldId, begin: Begin) -> Result<Arc<Hold>, Refusal> {
        let mut state = self.state();
        if let Some(hold) = state.holds.get(&id) {
            return if hold.by == begin.by { Ok(Arc::clone(hold)) } else { Err(Refusal::Gone) };
        }
        if let Some((task, invocation)) = begin.by {
            if state.held.get(&task).is_none_or(|held| held.invocation != invocation) {
                return Err(Refusal::Gone);
            }
            // An invocation commits one thing at a time: it has given the other one up.
            state.holds.values().filter(|hold| hold.by == begin.by).for_each(|hold| hold.release.cancel());
        }
        if state.holds.len() >= HOLDS_MAX {
            return Err(Refusal::AskAgain);
        }
        let (begun_in, begun) = watch::channel(None);
        let (done_in, done) = watch::channel(None);
        let (take, ending) = oneshot::channel();
        let release = CancellationToken::new();
        let taking = Mutex::new(Taking::Open(take));
        let hold = Hold { by: begin.by, begun, done, taking, release: release.clone(), shown: OnceLock::new() };
        let hold = Arc::new(hold);
        state.holds.insert(id, Arc::clone(&hold));
        drop(state);
        let line = self.clone();
        let ends = Ends { begun: begun_in, ending, release };
        let mut holding = self.inner.holding.lock().unwrap_or_else(PoisonError::into_inner);
        while holding.try_join_next().is_some() {}
        holding.spawn(async move { line.run_hold(id, begin, ends, done_in).await });
        Ok(hold)
    }

    /// Gives all holds up and waits until they are over: none outlives the line.
    pub(super) async fn end_holds(&self) {
        self.state().holds.values().for_each(|hold| hold.release.cancel());
        let mut holding = std::mem::take(&mut *self.inner.holding.lock().unwrap_or_else(PoisonError::into_inner));
        while holding.join_next().await.is_some() {}
    }

    async fn run_hold(&self, id: HoldId, begin: Begin, mut ends: Ends, done: watch::Sender<Option<Answer>>) {
        let (by, makes) = (begin.by, begin.by.is_none() && begin.make.is_some());
        let forget = Forget { line: self.clone(), id };
        let result = self.hold(id, begin, &mut ends).await;
        let begun = ends.begun.borrow().is_some();
        let answer = match result {
            // By what the host can do about it, as the same call without a closure says it.
            Err(Lost::Rollback(Rollback::Failed(error))) if makes => {
                failure(LineError::Commit(error)).map_or_else(|error| refused(&error), Answer::Failed)
            }
            result => self.conclude_hold(by, result, begun).await,
        };
        if !begun {
            ends.begun.send_replace(Some(answer.clone()));
        }
        done.send_replace(Some(answer));
        drop(forget);
    }

    /// Holds the line until the closure ends, is given up, or its time is over.
    async fn hold(&self, id: HoldId, begin: Begin, ends: &mut Ends) -> Result<Landed, Lost> {
        let task = begin.by.map(|(task, _)| task);
        let conversation = task.and_then(|task| self.conversation_of(task)).or(begin.conversation);
        let bound = Bound { conversation, task };
        self.session()
            .commit_bound(bound, async |tx| {
                let by = match begin.by {
                    Some((task, invocation)) => Some(self.still_held(tx, task, invocation).await?),
                    None => {
                        self.unsealed()?;
                        None
                    }
                };
                let made = match begin.make.as_deref().filter(|_| by.is_none()) {
                    Some(call) => Some(self.make(tx, call.clone()).await?),
                    None => None,
                };
                if let (Some(_), Some(hold)) = (&made, self.find_hold(id)) {
                    hold.shown.get_or_init(|| tx.staged_documents().into());
                }
                let begun = self.begun(tx, &begin, by.as_ref().map(|(record, _)| record.clone()), made.as_ref()).await?;
                ends.begun.send_replace(Some(Answer::Begun(Box::new(begun))));
                let ending = tokio::select! {
                    biased;
                    ending = &mut ends.ending => ending.map_err(|_| Lost::Released)?,
                    () = ends.release.cancelled() => return Err(Lost::Released),
                    () = tokio::time::sleep(self.inner.options.hold) => {
                        // Before the line is free: nothing more is taken from the invocation, and the next reservation counts a restart,
                        // so that closures which are always too long park their task.
                        if let Some((task, _)) = begin.by {
                            let mut state = self.state();
                            state.held.remove(&task);
                            state.lost.insert(task);
                        }
                        return Err(Lost::Expired);
                    }
                };
                // What a task says is looked at where it arrives.
                if by.is_none() {
                    self.unsealed()?;
                }
                let landed = self.land(tx, id, by, made.as_ref().map(|made| made.record.id), ending).await?;
                if let Some(task) = task {
                    self.store_reservation(tx, task).await.map_err(CommitError::from)?;
                }
                if let Some(made) = made {
                    self.finish_made(tx, made).await?;
                }
                Ok(landed)
            })
            .await
    }

    /// The running record and the invocation, where that may commit. On the line, so that no saying comes between.
    async fn still_held(&self, tx: &Tx, task: TaskId, invocation: InvocationId) -> Result<(TaskRecord, Held), Lost> {
        let gone = || Lost::Rollback(Rollback::Refused(Refusal::Gone));
        self.unsealed().map_err(|_| gone())?;
        let held = self.state().held.get(&task).filter(|held| held.invocation == invocation).cloned().ok_or_else(gone)?;
        let record = self.gated(tx, task, held.mode).await?.ok_or_else(gone)?;
        Ok((record, held))
    }

    async fn begun(&self, tx: &Tx, begin: &Begin, task: Option<TaskRecord>, made: Option<&Made>) -> Result<Begun, CommitError> {
        let store = self.session().store();
        let head = store.head().await.map_err(picofleet_session::TxError::from)?;
        let conversation: Option<ConversationId> = task.as_ref().map(|task| task.conversation_id).or(begin.conversation);
        let conversation = match (made, conversation) {
            (Some(made), _) => Some(made.record.clone()),
            (None, Some(id)) => tx.conversation(id).await?,
            (None, None) => None,
        };
        let mut documents = Vec::with_capacity(begin.documents.len());
        for address in &begin.documents {
            documents.push(self.stored_at(address.clone(), Point::Current).await.map_err(picofleet_session::TxError::from)?);
        }
        let bound_ms = u64::try_from(self.inner.options.hold.as_millis()).unwrap_or(u64::MAX);
        Ok(Begun { head: Head { next_id: tx.next_id(), ..head }, now: tx.now(), bound_ms, task, conversation, documents })
    }

    /// What became of a hold, as its answer. The line is free by now.
    async fn conclude_hold(&self, by: Option<(TaskId, InvocationId)>, result: Result<Landed, Lost>, begun: bool) -> Answer {
        match (result, by) {
            (Ok(landed), Some((task, invocation))) => {
                if let Some((number, digest)) = landed.saying {
                    self.settle_saying(task, invocation, number, digest, &landed.answer);
                }
                landed.answer
            }
            (Ok(landed), None) => landed.answer,
            (Err(Lost::Expired), Some((task, invocation))) => {
                tracing::warn!(task = %task, "a closure held the line for too long; its invocation is lost");
                self.ended(task, invocation);
                GONE
            }
            (Err(Lost::Expired | Lost::Released), _) => GONE,
            (Err(Lost::Rollback(Rollback::Refused(refusal))), _) => Answer::Refused(refusal),
            (Err(Lost::Rollback(Rollback::Answered(answer))), _) => answer,
            (Err(Lost::Rollback(Rollback::Failed(error))), Some((task, invocation))) if begun => {
                self.failed_saying(task, invocation, error, false).await.unwrap_or_else(|error| refused(&error))
            }
            (Err(Lost::Rollback(Rollback::Failed(error))), _) => refused(&LineError::Commit(error)),
        }
    }
}

impl Hold {
    /// Hands the end of the closure over and waits for its answer. A repetition waits for the same one.
    async fn end(&self, ending: Ending) -> Answer {
        {
            let mut taking = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
            let digest = ending.digest.clone();
            match std::mem::replace(&mut *taking, Taking::Taken(digest)) {
                // A hold that is over already takes nothing; its answer says why.
                Taking::Open(take) => drop(take.send(ending)),
                Taking::Taken(digest) if digest == ending.digest => {}
                Taking::Taken(digest) => {
                    *taking = Taking::Taken(digest);
                    return Answer::Refused(Refusal::Protocol("the closure ended in another way before".to_owned()));
                }
            }
        }
        answered(&self.done).await
    }

    /// The document at an address, where the open commit makes it.
    async fn shown(&self, line: &SessionLine, address: &DocumentAddress) -> Result<Option<StoredDocument>, StorageError> {
        match self.shown.get() {
            Some(shown) => shown.find(line, address).await,
            None => Ok(None),
        }
    }

    /// Whether reads are answered: it has the line and the closure has not ended.
    fn reads(&self) -> bool {
        matches!(&*self.begun.borrow(), Some(Answer::Begun(_))) && self.done.borrow().is_none()
    }
}

/// The key under which a host's finish is stored.
fn request_key(id: HoldId) -> String {
    Json::from_serde(&id).ok().and_then(|id| id.as_str().map(|id| format!("hold:{id}"))).unwrap_or_default()
}

async fn answered(from: &watch::Receiver<Option<Answer>>) -> Answer {
    let mut from = from.clone();
    let answer = from.wait_for(Option::is_some).await.ok().and_then(|answer| answer.clone());
    // A hold whose task ended in disorder is gone.
    answer.unwrap_or(GONE)
}

/// Forgets a hold however its task ends.
struct Forget {
    line: SessionLine,
    id: HoldId,
}

impl Drop for Forget {
    fn drop(&mut self) {
        self.line.state().holds.remove(&self.id);
    }
}
