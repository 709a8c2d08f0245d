//! The network between workers, hosts and coordinators: messages are late, lost, doubled and out of order, and whole sides are cut off.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use picofleet_coordinator::Coordinator;
use picofleet_fleet::LineServer as _;
use picofleet_harness::transport::{CallError, Transport};
use picofleet_harness::wire::{Answer, Beat, BeatAnswer, Request};
use picofleet_session::{Json, SessionId};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::world::World;

/// How long a message waits for an answer that was lost, before its sender gives up on it.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// The coordinator that messages go to, with the token that ends it.
#[derive(Clone)]
pub(crate) struct Reached {
    pub(crate) coordinator: Coordinator,
    pub(crate) killed: CancellationToken,
}

/// The network. Clones are one.
#[derive(Clone)]
pub(crate) struct Network {
    world: World,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    current: Option<Reached>,
    /// Nothing gets through until then.
    outage: Option<Instant>,
}

/// One side's access. A side that is frozen neither sends nor hears.
#[derive(Clone)]
pub(crate) struct Side {
    network: Network,
    frozen: Arc<Mutex<Option<Instant>>>,
}

impl Network {
    /// A network without a coordinator.
    #[must_use]
    pub(crate) fn new(world: World) -> Self {
        Self { world, shared: Arc::default() }
    }

    /// A new side of it.
    #[must_use]
    pub(crate) fn side(&self) -> Side {
        Side { network: self.clone(), frozen: Arc::default() }
    }

    /// Messages go to this coordinator from now on.
    pub(crate) fn set(&self, reached: Option<Reached>) {
        self.shared().current = reached;
    }

    pub(crate) fn current(&self) -> Option<Reached> {
        self.shared().current.clone()
    }

    /// Cuts everybody off for a time.
    pub(crate) fn cut(&self, time: Duration) {
        self.shared().outage = Some(Instant::now() + time);
    }

    /// Waits until messages get through.
    pub(crate) async fn through(&self) {
        loop {
            let until = self.shared().outage.filter(|until| *until > Instant::now());
            match until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => return,
            }
        }
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Side {
    /// The side neither sends nor hears for a time.
    pub(crate) fn freeze(&self, time: Duration) {
        *self.frozen.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + time);
    }

    pub(crate) async fn thawed(&self) {
        loop {
            let until = self.frozen.lock().unwrap_or_else(PoisonError::into_inner).filter(|until| *until > Instant::now());
            match until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => return,
            }
        }
    }

    async fn send(&self, session: SessionId, request: Request) -> Result<Answer, CallError> {
        let world = &self.network.world;
        self.thawed().await;
        self.network.through().await;
        let late = world.fault(25);
        if late {
            world.count("request late");
        }
        tokio::time::sleep(world.pause(if late { 3_000 } else { 30 })).await;
        if world.fault(40) {
            world.count("request lost");
            return self.nothing(session).await;
        }
        let Some(reached) = self.network.current() else { return self.nothing(session).await };
        let request = coded(session, &request)?;
        if world.fault(40) && repeats(&request) {
            world.count("request doubled");
            let (again, doubled) = (reached.clone(), request.clone());
            let late = world.pause(2_000);
            tokio::spawn(async move {
                tokio::time::sleep(late).await;
                let answer = again.coordinator.handle(session, doubled);
                tokio::select! {
                    () = again.killed.cancelled() => {}
                    _ = answer => {}
                }
            });
        }
        let answer = tokio::select! {
            biased;
            () = reached.killed.cancelled() => return self.nothing(session).await,
            answer = reached.coordinator.handle(session, request) => answer?,
        };
        self.thawed().await;
        self.network.through().await;
        if world.fault(40) {
            world.count("answer lost");
            return self.nothing(session).await;
        }
        tokio::time::sleep(world.pause(30)).await;
        coded(session, &answer)
    }

    async fn nothing<T>(&self, session: SessionId) -> Result<T, CallError> {
        tokio::time::sleep(ANSWER_MAX).await;
        Err(CallError::NoAnswer(session))
    }
}

/// Whether a network may deliver a message twice although its sender sent it once: a hold belongs to its sender.
const fn repeats(request: &Request) -> bool {
    !matches!(request, Request::Begin { .. } | Request::Ask { .. } | Request::Release { .. })
}

impl Transport for Side {
    fn call(&self, session: SessionId, request: Request) -> BoxFuture<'_, Result<Answer, CallError>> {
        Box::pin(self.send(session, request))
    }

    fn beat(&self, beat: Beat) -> BoxFuture<'_, Result<BeatAnswer, CallError>> {
        Box::pin(async move {
            let lost = |why: &str| CallError::Beat { why: why.to_owned() };
            let world = &self.network.world;
            self.thawed().await;
            self.network.through().await;
            tokio::time::sleep(world.pause(30)).await;
            if world.fault(20) {
                world.count("beat lost");
                return Err(lost("lost"));
            }
            let reached = self.network.current().ok_or_else(|| lost("nobody is there"))?;
            let answer = tokio::select! {
                biased;
                () = reached.killed.cancelled() => Err(lost("it died")),
                answer = reached.coordinator.beat(beat) => answer,
            };
            self.thawed().await;
            self.network.through().await;
            answer
        })
    }
}

/// A message as the other side of a network would read it.
fn coded<T: Serialize + DeserializeOwned>(session: SessionId, message: &T) -> Result<T, CallError> {
    let encoding = |why: String| CallError::Encoding { session, why };
    let mut text = Vec::new();
    Json::from_serde_envelope(message).map_err(|error| encoding(error.to_string()))?.write(&mut text);
    Json::parse_envelope(&text).and_then(|json| json.to()).map_err(|error| encoding(error.to_string()))
}
