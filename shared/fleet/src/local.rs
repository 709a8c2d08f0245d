//! The local transport: a call within the process.

use std::sync::Arc;

use futures::future::BoxFuture;
use picofleet_harness::transport::{CallError, Transport};
use picofleet_harness::wire::{Answer, Beat, BeatAnswer, Request};
use picofleet_session::{Json, SessionId};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The coordinator's half: the only entry into a session's line.
pub trait LineServer: Send + Sync + 'static {
    /// Answers a message to the line of a session, which it opens where nobody has.
    fn handle(&self, session: SessionId, request: Request) -> BoxFuture<'_, Result<Answer, CallError>>;

    /// Answers the beat of a worker, for the sessions that it has.
    fn beat(&self, beat: Beat) -> BoxFuture<'_, Result<BeatAnswer, CallError>>;
}

/// Calls a coordinator of the same process.
#[derive(Clone)]
pub struct Local {
    server: Arc<dyn LineServer>,
    encoded: bool,
}

impl Local {
    /// Hands messages over as they are.
    #[must_use]
    pub fn plain(server: Arc<dyn LineServer>) -> Self {
        Self { server, encoded: false }
    }

    /// Encodes and decodes every message and answer on the way.
    #[must_use]
    pub fn encoded(server: Arc<dyn LineServer>) -> Self {
        Self { server, encoded: true }
    }
}

impl Transport for Local {
    fn call(&self, session: SessionId, request: Request) -> BoxFuture<'_, Result<Answer, CallError>> {
        Box::pin(async move {
            if !self.encoded {
                return self.server.handle(session, request).await;
            }
            let request = round_trip(session, &request)?;
            let answer = self.server.handle(session, request).await?;
            round_trip(session, &answer)
        })
    }

    fn beat(&self, beat: Beat) -> BoxFuture<'_, Result<BeatAnswer, CallError>> {
        Box::pin(async move {
            if !self.encoded {
                return self.server.beat(beat).await;
            }
            let failed = |why| CallError::Beat { why };
            let answer = self.server.beat(coded(&beat).map_err(failed)?).await?;
            coded(&answer).map_err(failed)
        })
    }
}

/// A message as the other side of a network would read it.
fn round_trip<T: Serialize + DeserializeOwned>(session: SessionId, message: &T) -> Result<T, CallError> {
    coded(message).map_err(|why| CallError::Encoding { session, why })
}

fn coded<T: Serialize + DeserializeOwned>(message: &T) -> Result<T, String> {
    let mut text = Vec::new();
    Json::from_serde_envelope(message).map_err(|error| error.to_string())?.write(&mut text);
    Json::parse_envelope(&text).map_err(|error| error.to_string())?.to().map_err(|error| error.to_string())
}
