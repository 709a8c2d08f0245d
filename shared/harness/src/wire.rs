//! What workers, hosts and the line say to each other (`protocol.md` 3). Every message can be encoded; nothing in one is a pointer.

mod follow;
mod hold;
mod host;
mod read;
mod watch;

use picofleet_session::{CommitToken, InvocationId, Json, Seq, SessionId, TaskError, TaskId, TaskRecord, Transcript};
use serde::{Deserialize, Serialize};

use crate::kinds::{COMPACTION, GENERATION, TOOL};
use crate::step::Mode;

pub use follow::{Follow, FollowCall, Following};
pub use hold::{Begin, Begun, Finish, HoldId, ReadFailure, StoreAnswer, StoreRead, Written};
pub use host::{HostCall, HostFailure};
pub use read::{Paged, Read};
pub use watch::{WatchCall, WatchChange, WatchFrame, WatchId, Watched};

/// The random name of one run of a worker process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WorkerId(pub InvocationId);

/// Where a task is pulled from (`design.md` 7).
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Route(pub String);

impl Route {
    /// The route of tasks of a kind, in the version of its definition: an old worker never takes a task that it can't run.
    #[must_use]
    pub fn of(kind: &str, version: u32) -> Self {
        Self(match kind {
            GENERATION => "generation".to_owned(),
            COMPACTION => "compaction".to_owned(),
            TOOL => "tool.default".to_owned(),
            kind => format!("custom.{}.v{version}", encoded(kind)),
        })
    }

    /// The kind of the tasks on it; `None` for text that is no route.
    #[must_use]
    pub fn kind(&self) -> Option<String> {
        match self.0.as_str() {
            "generation" => Some(GENERATION.to_owned()),
            "compaction" => Some(COMPACTION.to_owned()),
            tool if tool.starts_with("tool.") => Some(TOOL.to_owned()),
            custom => custom.strip_prefix("custom.")?.rsplit_once(".v").and_then(|(kind, _)| decoded(kind)),
        }
    }
}

/// A name as one word of a subject: everything but letters, digits, `-` and `_` becomes `%XX`.
fn encoded(name: &str) -> String {
    name.bytes().fold(String::with_capacity(name.len()), |mut word, byte| {
        if byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_' {
            word.push(char::from(byte));
        } else {
            use std::fmt::Write as _;
            // Writing to a String does not fail.
            let _ = write!(word, "%{byte:02X}");
        }
        word
    })
}

fn decoded(word: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        if *first == b'%' {
            let hex = std::str::from_utf8(behind.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(hex, 16).ok()?);
            rest = behind.get(2..)?;
        } else {
            bytes.push(*first);
            rest = behind;
        }
    }
    String::from_utf8(bytes).ok()
}

/// That a task is ready. It carries no state: lost, doubled or late ones change nothing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hint {
    /// The session.
    pub session: SessionId,
    /// The task.
    pub task: TaskId,
    /// Its route.
    pub route: Route,
}

/// What the line tells a worker by itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Signal {
    /// Stop an invocation, and say when it has ended.
    Cancel {
        /// The session.
        session: SessionId,
        /// The task.
        task: TaskId,
        /// The invocation.
        invocation: InvocationId,
    },
}

/// The definition of a task as one side has it. Its name is the task's kind.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Definition {
    /// The version of its records.
    pub version: u32,
    /// The build of its code.
    pub build: String,
}

/// That a worker is alive, and what runs there. Volatile: it is never stored (`protocol.md` 4).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Beat {
    /// The worker.
    pub worker: WorkerId,
    /// One above the last beat's.
    pub counter: u64,
    /// The invocations that run there.
    pub invocations: Vec<Invoked>,
    /// How many more it could take.
    pub free: u32,
    /// It takes no more work, and hands over what it can.
    pub draining: bool,
    /// The routes whose tasks it has the code for.
    #[serde(default)]
    pub routes: Vec<Route>,
}

/// Names an invocation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Invoked {
    /// The session.
    pub session: SessionId,
    /// The task.
    pub task: TaskId,
    /// The invocation.
    pub invocation: InvocationId,
}

/// The answer to a beat.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct BeatAnswer {
    /// The beat that is answered.
    pub counter: u64,
    /// Invocations that are to stop and to say when they have.
    pub cancels: Vec<InvocationId>,
    /// Invocations that are over: whatever they still do counts for nothing.
    pub gone: Vec<InvocationId>,
}

/// What is asked of a session's line.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Take a task. The same invocation gets the same reservation again.
    Reserve {
        /// The task.
        task: TaskId,
        /// The worker's name for the invocation, and its capability.
        invocation: InvocationId,
        /// The worker.
        worker: WorkerId,
        /// The definition that the worker would run, where it names it (`design.md` 13.8).
        #[serde(default)]
        definition: Option<Definition>,
    },
    /// The next numbered saying of an invocation.
    Say {
        /// The task.
        task: TaskId,
        /// The invocation.
        invocation: InvocationId,
        /// One above the last one's.
        number: u32,
        /// What it says.
        said: Said,
    },
    /// Progress: no saying, and repeated without harm. It stands on the progress before it; where the line has another one, the worker
    /// sends the whole (`protocol.md` 3).
    Progress {
        /// The task.
        task: TaskId,
        /// The invocation.
        invocation: InvocationId,
        /// One above the progress before it, from 1.
        number: u32,
        /// It stands on nothing.
        whole: bool,
        /// The decision.
        decision: Json,
    },
    /// The invocation is over in the worker: nothing of it runs any more.
    Ended {
        /// The task.
        task: TaskId,
        /// The invocation.
        invocation: InvocationId,
    },
    /// A read.
    Read(Read),
    /// A call of a host.
    Host(Box<HostCall>),
    /// Hold the line for a closure. Not numbered: a repetition finds the same hold.
    Begin {
        /// The hold.
        hold: HoldId,
        /// For whom.
        begin: Box<Begin>,
    },
    /// A read of a held line.
    Ask {
        /// The hold.
        hold: HoldId,
        /// The read.
        read: StoreRead,
    },
    /// The end of a host's hold; a task's is a saying. A repetition gets the same answer.
    Finish {
        /// The hold.
        hold: HoldId,
        /// What the closure wrote.
        writes: Box<Written>,
    },
    /// Give a hold up: nothing is written.
    Release {
        /// The hold.
        hold: HoldId,
    },
    /// Watch a document. Not numbered: a repetition gets what was not taken yet.
    Watch {
        /// The watch.
        watch: WatchId,
        /// For which task, and by which invocation: it ends with it. A host's has none, and ends when its reader stays away.
        #[serde(default)]
        by: Option<(TaskId, InvocationId)>,
        /// What is asked.
        call: Box<WatchCall>,
    },
    /// Follow a conversation. A repetition gets the same again.
    Follow(Follow),
}

/// What an invocation says.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Said {
    /// Apply a decision; with `last` it also ends the phase.
    Decide {
        /// The version of the decision type.
        version: u32,
        /// The decision.
        decision: Json,
        /// The step runs in the same commit.
        last: bool,
    },
    /// Keep a value under a name; the first writer wins.
    Memo {
        /// The name.
        name: String,
        /// The value.
        candidate: Json,
    },
    /// The phase handler ended.
    PhaseEnd(Option<TaskError>),
    /// Commit what a closure wrote, and apply what it decided.
    Finish(Box<Finish>),
}

/// How a phase goes on, as the line decided.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Next {
    /// The invocation goes on with the phase of the record.
    Continue(Box<TaskRecord>),
    /// The invocation is over.
    Stop,
}

/// A reserved task.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Reservation {
    /// Its record, running.
    pub record: TaskRecord,
    /// What to run.
    pub mode: Mode,
}

/// Why a task was not reserved, or a saying not taken.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// The task is not there, not ready, or another invocation has it. The hint is done with.
    #[error("the task is not to be reserved")]
    NotReady,
    /// The invocation is over: the worker drops its effects.
    #[error("the invocation is over")]
    Gone,
    /// A later saying was taken already.
    #[error("a later saying was taken already")]
    Superseded,
    /// The saying breaks the protocol; the invocation is over.
    #[error("protocol error: {0}")]
    Protocol(String),
    /// The text that progress stands on is another one; the worker sends the whole.
    #[error("the progress stands on another text")]
    Resync,
    /// What a decision was computed from has changed; the phase runs again.
    #[error("the decision is stale")]
    Stale,
    /// The line refused the commit; the message says why. The task is faulted.
    #[error("{0}")]
    Rejected(String),
    /// The session is not here, or closing: ask again.
    #[error("ask again")]
    AskAgain,
}

/// What the line answers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// To a reservation.
    Reserved(Box<Reservation>),
    /// To a saying.
    Said {
        /// The decision's own answer, or the winning memo.
        answer: Json,
        /// How the phase goes on, where the saying ended it.
        next: Option<Next>,
    },
    /// Done; there is nothing to say.
    Done,
    /// To a read or a host's call.
    Value(Json),
    /// To a read of a context: what it is derived from.
    Transcript(Box<Transcript>),
    /// Not done.
    Refused(Refusal),
    /// A host's call failed.
    Failed(HostFailure),
    /// The line is held.
    Begun(Box<Begun>),
    /// To a read of a held line.
    Stored(Box<StoreAnswer>),
    /// To a call of a watch.
    Watched(Watched),
    /// To a reader of a conversation.
    Following(Following),
}

/// Names a commit: `(seq, token)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Point(pub Seq, pub CommitToken);

/// Reads an optional value that is present: `null` is then a value and not the absence of one.
pub(crate) fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Json>, D::Error> {
    Json::deserialize(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_names_its_kind_whatever_the_kind_is_called() {
        for kind in [GENERATION, COMPACTION, TOOL, "checkout", "app.check out", "a%2Eb.v3", "\u{e9}"] {
            let route = Route::of(kind, 7);
            assert_eq!(route.kind().as_deref(), Some(kind), "{route:?}");
            assert!(!route.0.contains(' '), "{route:?}");
        }
        assert_eq!(Route::of("app.x", 2).0, "custom.app%2Ex.v2");
        for bad in ["", "custom.", "custom.a", "custom.%zz.v1", "custom.%e9.v1"] {
            assert_eq!(Route(bad.into()).kind(), None, "{bad}");
        }
    }
}
