//! Sending a call until it is answered.

use std::sync::Arc;
use std::time::Duration;

use picofleet_session::{Json, SessionId, Transcript};
use serde::de::DeserializeOwned;

use super::follow::Hubs;
use super::{HostError, SubmitError, random_key};
use crate::transport::{CallError, Transport};
use crate::wire::{Answer, HostCall, HostFailure, Read, Refusal, Request};

/// How often a call without an answer is sent, and the first pause between; it doubles. Together about three seconds.
const ATTEMPTS: u32 = 7;
const PAUSE: Duration = Duration::from_millis(50);

/// A session over a transport.
pub(super) struct Caller {
    transport: Arc<dyn Transport>,
    session: SessionId,
    hubs: Hubs,
}

/// What came back of a call.
enum Sent {
    Answer(Answer),
    /// The session is quarantined.
    Quarantined,
    /// None of the attempts arrived.
    Unavailable(String),
    /// One of the attempts may have arrived.
    Unknown(String),
}

/// A call that is done once, under the caller's key or a random one.
pub(super) fn once(key: Option<String>, call: HostCall) -> HostCall {
    HostCall::Keyed { key: key.unwrap_or_else(random_key), call: Box::new(call) }
}

impl Caller {
    /// The conversations that are observed through it.
    pub(super) const fn hubs(&self) -> &Hubs {
        &self.hubs
    }

    pub(super) fn new(transport: Arc<dyn Transport>, session: SessionId) -> Self {
        Self { transport, session, hubs: Hubs::default() }
    }

    pub(super) const fn transport(&self) -> &Arc<dyn Transport> {
        &self.transport
    }

    pub(super) const fn session(&self) -> SessionId {
        self.session
    }

    /// Reads committed state.
    pub(super) async fn read<T: DeserializeOwned>(&self, read: Read) -> Result<T, HostError> {
        match self.send(Request::Read(read)).await {
            Sent::Answer(answer) => Ok(value(answer)?),
            Sent::Quarantined => Err(HostError::Quarantined(self.session)),
            Sent::Unavailable(why) | Sent::Unknown(why) => Err(HostError::Unavailable(why)),
        }
    }

    /// A read of a context.
    pub(super) async fn transcript(&self, read: Read) -> Result<Transcript, HostError> {
        match self.send(Request::Read(read)).await {
            Sent::Answer(Answer::Transcript(transcript)) => Ok(*transcript),
            Sent::Answer(other) => match value::<Json>(other) {
                Ok(value) => Err(HostError::Answer(format!("{value}"))),
                Err(unanswered) => Err(unanswered.into()),
            },
            Sent::Quarantined => Err(HostError::Quarantined(self.session)),
            Sent::Unavailable(why) | Sent::Unknown(why) => Err(HostError::Unavailable(why)),
        }
    }

    /// A wait or another call that writes nothing.
    pub(super) async fn ask<T: DeserializeOwned>(&self, call: HostCall) -> Result<T, HostError> {
        match self.send(Request::Host(Box::new(call))).await {
            Sent::Answer(answer) => Ok(value(answer)?),
            Sent::Quarantined => Err(HostError::Quarantined(self.session)),
            Sent::Unavailable(why) | Sent::Unknown(why) => Err(HostError::Unavailable(why)),
        }
    }

    /// A call that writes; it has a key, or can be repeated as it is.
    pub(super) async fn write<T: DeserializeOwned>(&self, call: HostCall) -> Result<T, HostError> {
        Ok(value(self.done(call).await?)?)
    }

    /// A submission: its failures have their own kinds.
    pub(super) async fn submit<T: DeserializeOwned>(&self, call: HostCall) -> Result<T, SubmitError> {
        value(self.done(call).await?).map_err(|failure| match failure {
            Unanswered::Failure(failure) => SubmitError::from(failure),
            Unanswered::Error(error) => SubmitError::Host(error),
        })
    }

    async fn done(&self, call: HostCall) -> Result<Answer, HostError> {
        self.request(Request::Host(Box::new(call))).await
    }

    /// The answer to a message that may be sent again.
    pub(super) async fn request(&self, request: Request) -> Result<Answer, HostError> {
        match self.send(request).await {
            Sent::Answer(answer) => Ok(answer),
            Sent::Quarantined => Err(HostError::Quarantined(self.session)),
            Sent::Unavailable(why) => Err(HostError::Unavailable(why)),
            Sent::Unknown(why) => Err(HostError::OutcomeUnknown(why)),
        }
    }

    async fn send(&self, request: Request) -> Sent {
        let mut pause = PAUSE;
        let mut unknown = false;
        let mut attempt = 1;
        loop {
            let why = match self.transport.call(self.session, request.clone()).await {
                Ok(Answer::Refused(Refusal::AskAgain)) => "it is closing, or somebody else has it".to_owned(),
                Ok(Answer::Failed(HostFailure::OutcomeUnknown(why))) => {
                    unknown = true;
                    why
                }
                Ok(answer) => return Sent::Answer(answer),
                Err(CallError::Quarantined(_)) => return Sent::Quarantined,
                Err(error @ CallError::Closed(_)) => {
                    let why = error.to_string();
                    return if unknown { Sent::Unknown(why) } else { Sent::Unavailable(why) };
                }
                Err(CallError::Encoding { why, .. }) => return Sent::Answer(Answer::Failed(HostFailure::Invalid(why))),
                Err(error @ (CallError::Unavailable { .. } | CallError::Beat { .. })) => error.to_string(),
                Err(error @ CallError::NoAnswer(_)) => {
                    unknown = true;
                    error.to_string()
                }
            };
            if attempt == ATTEMPTS {
                return if unknown { Sent::Unknown(why) } else { Sent::Unavailable(why) };
            }
            attempt += 1;
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
    }
}

/// An answer that holds no value.
pub(super) enum Unanswered {
    Failure(HostFailure),
    Error(HostError),
}

impl From<Unanswered> for HostError {
    fn from(unanswered: Unanswered) -> Self {
        match unanswered {
            Unanswered::Failure(failure) => failure.into(),
            Unanswered::Error(error) => error,
        }
    }
}

/// The value of an answer.
pub(super) fn value<T: DeserializeOwned>(answer: Answer) -> Result<T, Unanswered> {
    let value = match answer {
        Answer::Value(value) => value,
        Answer::Done => Json::null(),
        Answer::Failed(failure) => return Err(Unanswered::Failure(failure)),
        Answer::Refused(Refusal::Rejected(why)) => return Err(Unanswered::Error(HostError::Invalid { field: None, why })),
        other => return Err(Unanswered::Error(HostError::Answer(format!("{other:?}")))),
    };
    value.to().map_err(|error| Unanswered::Error(HostError::Answer(error.to_string())))
}
