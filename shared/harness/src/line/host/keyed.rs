//! Calls that are done once: the answer is stored under the caller's key in the commit of the call (`protocol.md` 3).

use picofleet_session::storage::RequestRow;
use picofleet_session::{CommitError, Json, Millis, Tx, TxError, Violation};
use sha2::{Digest as _, Sha256};

use crate::line::{LineError, SessionLine, chain};
use crate::wire::{Answer, HostCall, HostFailure};

/// The longest key, in bytes.
const KEY_MAX: usize = 255;

/// A key with the digest of its call.
pub(in crate::line) struct Key {
    key: String,
    digest: String,
}

impl Key {
    /// The key of a call, and the call.
    pub(in crate::line) fn of(call: HostCall) -> Result<(Option<Self>, HostCall), HostFailure> {
        let HostCall::Keyed { key, call } = call else { return Ok((None, call)) };
        if key.is_empty() || key.len() > KEY_MAX {
            return Err(HostFailure::InvalidField {
                field: "key".to_owned(),
                why: format!("it has {} bytes; 1 to {KEY_MAX} are allowed", key.len()),
            });
        }
        let commits = matches!(
            *call,
            HostCall::Submit { .. }
                | HostCall::Configure { .. }
                | HostCall::Patch { .. }
                | HostCall::Withdraw { .. }
                | HostCall::AbortSubmission { .. }
                | HostCall::CreateConversation { .. }
                | HostCall::Fork { .. }
                | HostCall::Reset { .. }
                | HostCall::Compact { .. }
        );
        if !commits {
            return Err(HostFailure::InvalidField {
                field: "key".to_owned(),
                why: "this call takes none; it can be repeated as it is".to_owned(),
            });
        }
        let text = Json::from_serde(&*call).map_err(|error| HostFailure::Invalid(error.to_string()))?.to_vec();
        let digest = Sha256::digest(&text).iter().map(|byte| format!("{byte:02x}")).collect();
        Ok((Some(Self { key, digest }), *call))
    }

    /// The key of the same call with a closure, which is another call.
    pub(in crate::line) fn with_closure(self) -> Self {
        Self { digest: format!("closure:{}", self.digest), ..self }
    }

    /// The row that answers a repetition.
    pub(in crate::line) fn row(self, answer: &Answer, at: Millis) -> Result<RequestRow, CommitError> {
        let answer = Json::from_serde(answer).map_err(|error| unreadable(&error))?;
        Ok(RequestRow { key: self.key, digest: self.digest, answer, at })
    }
}

impl SessionLine {
    /// One commit of a call. With a key that was answered before it writes nothing and gives that answer; else the answer is stored with
    /// it, unless the call failed: a failure writes nothing and may be another one the next time.
    pub(super) async fn keyed<F>(&self, key: Option<Key>, change: F) -> Result<Answer, LineError>
    where
        F: AsyncFnOnce(&Tx) -> Result<Answer, CommitError>,
    {
        let answer = self
            .session()
            .commit(async |tx| {
                self.unsealed()?;
                if let Some(key) = &key
                    && let Some(answer) = self.answered(key).await?
                {
                    return Ok(answer);
                }
                let answer = change(tx).await?;
                if let Answer::Failed(failure) = answer {
                    return Err(Refused::Failure(failure));
                }
                if let Some(key) = key {
                    tx.put_request(key.row(&answer, tx.now())?);
                }
                Ok(answer)
            })
            .await;
        match answer {
            Ok(answer) => Ok(answer),
            Err(Refused::Failure(failure)) => Ok(Answer::Failed(failure)),
            Err(Refused::Commit(error)) => Err(error.into()),
        }
    }

    /// The answer that is stored under a key, if there is one.
    pub(in crate::line) async fn answered(&self, key: &Key) -> Result<Option<Answer>, Refused> {
        let row = self.session().store().request(key.key.clone()).await.map_err(|error| CommitError::from(TxError::from(error)))?;
        let Some(row) = row else { return Ok(None) };
        if row.digest != key.digest {
            return Err(Refused::Failure(HostFailure::KeyReused { key: key.key.clone() }));
        }
        Ok(Some(row.answer.to().map_err(|error| unreadable(&error))?))
    }
}

/// Why a call's commit rolled back.
pub(in crate::line) enum Refused {
    /// The call failed.
    Failure(HostFailure),
    /// The commit failed.
    Commit(CommitError),
}

impl From<CommitError> for Refused {
    fn from(error: CommitError) -> Self {
        Self::Commit(error)
    }
}

fn unreadable(error: &dyn std::fmt::Display) -> CommitError {
    CommitError::Invalid(Violation::Decision { why: format!("the answer of a request key: {error}") })
}

/// An error as what the caller can do about it. What only says that the session is not here stays an error.
pub(in crate::line) fn failure(error: LineError) -> Result<HostFailure, LineError> {
    match error {
        LineError::Commit(CommitError::Invalid(violation)) => Ok(match violation {
            Violation::UnknownConversation { conversation } => {
                HostFailure::NotFound { what: "conversation".to_owned(), id: conversation.get() }
            }
            Violation::UnknownTask { task } => HostFailure::NotFound { what: "task".to_owned(), id: task.get() },
            other => HostFailure::Invalid(chain(&other)),
        }),
        LineError::Commit(CommitError::Failed(failed)) => Ok(HostFailure::OutcomeUnknown(chain(&failed))),
        LineError::Commit(error @ (CommitError::Draft(_) | CommitError::Definition(_) | CommitError::Rejected(_))) => {
            Ok(HostFailure::Invalid(chain(&error)))
        }
        other => Err(other),
    }
}
