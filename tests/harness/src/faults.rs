//! A transport between worker and coordinator that a test cuts off, or whose answers it loses.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::BoxFuture;
use picofleet_harness::transport::{CallError, Transport};
use picofleet_harness::wire::{Answer, Beat, BeatAnswer, Request};
use picofleet_session::{InvocationId, SessionId, TaskId};

type Pick = Box<dyn Fn(&Request) -> bool + Send + Sync>;

/// What goes wrong between worker and coordinator. Clones are one.
#[derive(Clone, Default)]
pub struct Faults {
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    cut: AtomicBool,
    /// Where messages go instead.
    elsewhere: Mutex<Option<Arc<dyn Transport>>>,
    lose: Mutex<Option<Pick>>,
    seen: Mutex<Vec<Request>>,
    granted: Mutex<Vec<(TaskId, InvocationId)>>,
}

impl Faults {
    /// Nothing of the worker arrives, beats included, until [`Faults::mend`].
    pub fn cut(&self) {
        self.state.cut.store(true, Ordering::SeqCst);
    }

    /// Messages arrive again.
    pub fn mend(&self) {
        self.state.cut.store(false, Ordering::SeqCst);
    }

    /// Messages of the worker go there from now on.
    pub(crate) fn lead_to(&self, transport: Arc<dyn Transport>) {
        *self.state.elsewhere.lock().unwrap_or_else(PoisonError::into_inner) = Some(transport);
    }

    /// Loses the answer of the next message that is picked.
    pub fn lose_answer(&self, pick: impl Fn(&Request) -> bool + Send + Sync + 'static) {
        *self.state.lose.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(pick));
    }

    /// The messages of the worker that arrived.
    pub fn seen(&self) -> Vec<Request> {
        self.state.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The reservations that the worker was granted, also where their answers were lost; one that was granted twice stands there twice. What
    /// a late hint made it ask for in vain is not among them.
    pub fn granted(&self) -> Vec<(TaskId, InvocationId)> {
        self.state.granted.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many reservations it was granted.
    pub fn reserved(&self) -> usize {
        self.granted().len()
    }

    pub(crate) fn between(&self, inner: Arc<dyn Transport>) -> Arc<dyn Transport> {
        *self.state.elsewhere.lock().unwrap_or_else(PoisonError::into_inner) = None;
        Arc::new(Faulty { faults: self.clone(), inner })
    }

    fn is_cut(&self) -> bool {
        self.state.cut.load(Ordering::SeqCst)
    }

    fn loses(&self, request: &Request) -> bool {
        let mut lose = self.state.lose.lock().unwrap_or_else(PoisonError::into_inner);
        let loses = lose.as_ref().is_some_and(|pick| pick(request));
        if loses {
            *lose = None;
        }
        loses
    }
}

struct Faulty {
    faults: Faults,
    inner: Arc<dyn Transport>,
}

impl Faulty {
    fn inner(&self) -> Arc<dyn Transport> {
        let elsewhere = self.faults.state.elsewhere.lock().unwrap_or_else(PoisonError::into_inner);
        elsewhere.as_ref().map_or_else(|| Arc::clone(&self.inner), Arc::clone)
    }
}

impl Transport for Faulty {
    fn call(&self, session: SessionId, request: Request) -> BoxFuture<'_, Result<Answer, CallError>> {
        Box::pin(async move {
            if self.faults.is_cut() {
                return Err(CallError::NoAnswer(session));
            }
            self.faults.state.seen.lock().unwrap_or_else(PoisonError::into_inner).push(request.clone());
            let loses = self.faults.loses(&request);
            let reserves = if let Request::Reserve { task, invocation, .. } = &request { Some((*task, *invocation)) } else { None };
            let answer = self.inner().call(session, request).await;
            if let (Some(granted), Ok(Answer::Reserved(_))) = (reserves, &answer) {
                self.faults.state.granted.lock().unwrap_or_else(PoisonError::into_inner).push(granted);
            }
            // What was under way when the line was cut has no answer either.
            if loses || self.faults.is_cut() { Err(CallError::NoAnswer(session)) } else { answer }
        })
    }

    fn beat(&self, beat: Beat) -> BoxFuture<'_, Result<BeatAnswer, CallError>> {
        Box::pin(async move {
            if self.faults.is_cut() {
                return Err(CallError::Beat { why: "cut off".to_owned() });
            }
            self.inner().beat(beat).await
        })
    }
}
