//! Definitions of documents as typed tokens (section 3.1).

use std::any::type_name;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use picofleet_delta::{Json, Op};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{ConversationId, ConversationPolicy, DocumentAddress, LatestFork, Placement, RewindableFork, TaskId};

/// What a document's value can be: anything that serde turns into a JSON object and back.
pub trait DocValue: Serialize + DeserializeOwned + Send + Sync + 'static {}

impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> DocValue for T {}

/// The scope, history and fork policy of a document as a type: what may be asked of it, and with which address, follows from it.
pub trait Scope: 'static {
    /// What names one document of the scope.
    type At: Copy + Send + Sync;

    /// Where the document named so belongs.
    fn placement(at: Self::At) -> Placement;
}

/// A document of the session: `At` is `()`.
pub enum InSession {}

/// A document of a task, retired when the task ends: `At` is its task.
pub enum InTask {}

/// A document of a conversation that keeps its newest value; `F` is [`Current`] or [`Initial`].
pub struct Latest<F>(PhantomData<fn() -> F>);

/// A document of a conversation that keeps every value; `F` is [`AsOf`], [`Current`] or [`Initial`].
pub struct Rewindable<F>(PhantomData<fn() -> F>);

/// A fork gets the value at the fork point.
pub enum AsOf {}

/// A fork gets the value at the time of the fork.
pub enum Current {}

/// A fork gets nothing.
pub enum Initial {}

/// What forks get of a latest document.
pub trait LatestPolicy: 'static {
    /// The policy.
    const FORK: LatestFork;
}

/// What forks get of a rewindable document.
pub trait RewindablePolicy: 'static {
    /// The policy.
    const FORK: RewindableFork;
}

impl LatestPolicy for Current {
    const FORK: LatestFork = LatestFork::Current;
}

impl LatestPolicy for Initial {
    const FORK: LatestFork = LatestFork::Initial;
}

impl RewindablePolicy for AsOf {
    const FORK: RewindableFork = RewindableFork::AsOf;
}

impl RewindablePolicy for Current {
    const FORK: RewindableFork = RewindableFork::Current;
}

impl RewindablePolicy for Initial {
    const FORK: RewindableFork = RewindableFork::Initial;
}

impl Scope for InSession {
    type At = ();

    fn placement((): ()) -> Placement {
        Placement::Session
    }
}

impl Scope for InTask {
    type At = TaskId;

    fn placement(id: TaskId) -> Placement {
        Placement::Task { id }
    }
}

impl<F: LatestPolicy> Scope for Latest<F> {
    type At = ConversationId;

    fn placement(id: ConversationId) -> Placement {
        Placement::Conversation { id, policy: ConversationPolicy::Latest(F::FORK) }
    }
}

impl<F: RewindablePolicy> Scope for Rewindable<F> {
    type At = ConversationId;

    fn placement(id: ConversationId) -> Placement {
        Placement::Conversation { id, policy: ConversationPolicy::Rewindable(F::FORK) }
    }
}

/// What a definition knows when it decides about a checkpoint (section 3.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckpointInfo {
    /// Deltas already stored after the newest base, without this change.
    pub deltas_since_base: u32,
}

/// A stored value that a definition can't bring to its version.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct MigrateError(pub String);

/// Brings a stored value of an older version to the definition's.
pub type Migrate<T> = fn(value: Json, from: u32) -> Result<T, MigrateError>;

/// Decides whether a change is stored as a complete base: the new value, its operations, and what is stored already (section 3.5).
pub type CheckpointWhen = fn(value: &Json, ops: &[Op], info: CheckpointInfo) -> bool;

/// What the kernel needs of a document of which there is one at an address.
pub struct DocDefinition<T> {
    /// The value of one that does not exist yet.
    pub initial: fn() -> T,
    /// Brings older values up; `None` rejects them.
    pub migrate: Option<Migrate<T>>,
    /// When to store a complete value. One that never does lets the replay grow without bound.
    pub checkpoint_when: CheckpointWhen,
}

/// What the kernel needs of a document family.
pub struct FamilyDefinition<T, Seed> {
    /// The value of a member that does not exist yet.
    pub initial: fn(&Seed) -> T,
    /// Brings older values up; `None` rejects them.
    pub migrate: Option<Migrate<T>>,
    /// As in [`DocDefinition`].
    pub checkpoint_when: CheckpointWhen,
}

/// Stores a base once `N` deltas stand on the newest one: bounds replay.
#[must_use]
pub fn every<const N: u32>(_value: &Json, _ops: &[Op], info: CheckpointInfo) -> bool {
    info.deltas_since_base >= N
}

/// Names one document definition. The kind is stored and stays; the version rises when the value's shape changes.
pub struct DocToken<T, S: Scope> {
    /// The stored kind.
    pub kind: &'static str,
    /// The version of the value's shape, from 1.
    pub version: u32,
    definition: fn() -> DocDefinition<T>,
    scope: PhantomData<fn() -> S>,
}

/// Names one definition of a document family, whose members have keys.
pub struct FamilyToken<T, Seed, S: Scope> {
    /// The stored kind.
    pub kind: &'static str,
    /// The version of the value's shape, from 1.
    pub version: u32,
    definition: fn() -> FamilyDefinition<T, Seed>,
    scope: PhantomData<fn() -> S>,
}

impl<T, S: Scope> DocToken<T, S> {
    /// A token.
    ///
    /// # Panics
    /// For version 0; in a constant that is an error at compile time.
    #[must_use]
    pub const fn new(kind: &'static str, version: u32, definition: fn() -> DocDefinition<T>) -> Self {
        assert!(version > 0, "versions start at 1");
        Self { kind, version, definition, scope: PhantomData }
    }
}

impl<T, Seed, S: Scope> FamilyToken<T, Seed, S> {
    /// A token.
    ///
    /// # Panics
    /// For version 0; in a constant that is an error at compile time.
    #[must_use]
    pub const fn new(kind: &'static str, version: u32, definition: fn() -> FamilyDefinition<T, Seed>) -> Self {
        assert!(version > 0, "versions start at 1");
        Self { kind, version, definition, scope: PhantomData }
    }
}

/// A definition whose code failed, or whose token does not fit what is stored.
#[non_exhaustive]
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DefinitionError {
    /// `initial`, `migrate` or `checkpoint_when` panicked.
    #[error("{call} of document {kind} panicked: {message}")]
    Panicked {
        /// The function.
        call: &'static str,
        /// The document's kind.
        kind: &'static str,
        /// What it said.
        message: String,
    },
    /// A value that is no strict JSON object.
    #[error("{call} of document {kind} must give a strict JSON object: {why}")]
    NotJson {
        /// The function.
        call: &'static str,
        /// The document's kind.
        kind: &'static str,
        /// What is wrong.
        why: String,
    },
    /// The stored value can't be brought to the token's version.
    #[error("document {kind}: migration from version {from} to {to} failed: {why}")]
    Migration {
        /// The document's kind.
        kind: &'static str,
        /// The stored version.
        from: u32,
        /// The token's version.
        to: u32,
        /// Why.
        why: String,
    },
    /// The stored value is of an older version and the definition has no `migrate`.
    #[error("document {kind} is stored at version {from} and its definition of version {to} has no migrate")]
    NoMigration {
        /// The document's kind.
        kind: &'static str,
        /// The stored version.
        from: u32,
        /// The token's version.
        to: u32,
    },
    /// The stored value is of a newer version than the token.
    #[error("document {kind} is stored at version {stored}, which is newer than version {known} of its definition; use a newer program")]
    TooNew {
        /// The document's kind.
        kind: &'static str,
        /// The stored version.
        stored: u32,
        /// The token's version.
        known: u32,
    },
    /// The token says another scope, history or fork policy than what is stored.
    #[error("document {address} does not match the supplied definition semantics")]
    Semantics {
        /// The document.
        address: DocumentAddress,
    },
    /// The value does not have the type that the token names.
    #[error("document {kind} is no {ty}: {why}")]
    Type {
        /// The document's kind.
        kind: &'static str,
        /// The type.
        ty: &'static str,
        /// What is wrong.
        why: String,
    },
}

type MakeInitial<'a> = Box<dyn Fn() -> Result<Json, String> + Send + Sync + 'a>;
type MakeMigrated = Arc<dyn Fn(Json, u32) -> Result<Json, Result<MigrateError, String>> + Send + Sync>;

/// A definition at an address without its type: what the transaction works with.
pub(crate) struct Located<'a> {
    pub(crate) address: DocumentAddress,
    pub(crate) placement: Placement,
    pub(crate) rules: Rules,
    initial: MakeInitial<'a>,
}

/// The part of a definition that outlives an acquisition.
#[derive(Clone)]
pub(crate) struct Rules {
    pub(crate) kind: &'static str,
    pub(crate) version: u32,
    checkpoint_when: CheckpointWhen,
    migrate: Option<MakeMigrated>,
}

impl<'a> Located<'a> {
    pub(crate) fn singleton<T: DocValue, S: Scope>(token: &DocToken<T, S>, at: S::At) -> Located<'a> {
        let definition = (token.definition)();
        let initial = definition.initial;
        Located::new(token.kind, token.version, None, S::placement(at), definition.migrate, definition.checkpoint_when, move || {
            object(&initial())
        })
    }

    pub(crate) fn member<T: DocValue, I: Sync, S: Scope>(token: &FamilyToken<T, I, S>, at: S::At, key: &str, seed: &'a I) -> Located<'a> {
        let definition = (token.definition)();
        let initial = definition.initial;
        let key = Some(key.to_owned());
        Located::new(token.kind, token.version, key, S::placement(at), definition.migrate, definition.checkpoint_when, move || {
            object(&initial(seed))
        })
    }

    /// For reads and retirement, which never create.
    pub(crate) fn existing_member<T: DocValue, I, S: Scope>(token: &FamilyToken<T, I, S>, at: S::At, key: &str) -> Located<'a> {
        let definition = (token.definition)();
        let key = Some(key.to_owned());
        Located::new(token.kind, token.version, key, S::placement(at), definition.migrate, definition.checkpoint_when, || {
            Err("a read creates nothing".to_owned())
        })
    }

    fn new<T: DocValue>(
        kind: &'static str,
        version: u32,
        key: Option<String>,
        placement: Placement,
        migrate: Option<Migrate<T>>,
        checkpoint_when: CheckpointWhen,
        initial: impl Fn() -> Result<Json, String> + Send + Sync + 'a,
    ) -> Located<'a> {
        let address = DocumentAddress { kind: kind.to_owned(), scope: placement.scope(), key };
        let migrate = migrate.map(|migrate| -> MakeMigrated {
            Arc::new(move |value, from| {
                let migrated = migrate(value, from).map_err(Ok)?;
                object(&migrated).map_err(Err)
            })
        });
        Located { address, placement, rules: Rules { kind, version, checkpoint_when, migrate }, initial: Box::new(initial) }
    }

    /// The first value.
    pub(crate) fn initial(&self) -> Result<Json, DefinitionError> {
        let kind = self.rules.kind;
        guarded("initial()", kind, || (self.initial)())?.map_err(|why| DefinitionError::NotJson { call: "initial()", kind, why })
    }
}

impl Rules {
    /// The rules of a document whose definition is elsewhere: what its commit stored decides whether this one stores a base.
    pub(crate) fn foreign(version: u32, base: bool) -> Self {
        let checkpoint_when: CheckpointWhen = if base { |_, _, _| true } else { |_, _, _| false };
        Self { kind: "of another process", version, checkpoint_when, migrate: None }
    }

    /// Brings a stored value to the token's version (section 3.6).
    pub(crate) fn migrate(&self, value: Json, stored: u32) -> Result<Json, DefinitionError> {
        let (kind, to, from) = (self.kind, self.version, stored);
        match stored.cmp(&to) {
            std::cmp::Ordering::Equal => return Ok(value),
            std::cmp::Ordering::Greater => return Err(DefinitionError::TooNew { kind, stored, known: to }),
            std::cmp::Ordering::Less => {}
        }
        let migrate = self.migrate.as_ref().ok_or(DefinitionError::NoMigration { kind, from, to })?;
        guarded("migrate()", kind, || migrate(value, from))?.map_err(|error| match error {
            Ok(MigrateError(why)) => DefinitionError::Migration { kind, from, to, why },
            Err(why) => DefinitionError::NotJson { call: "migrate()", kind, why },
        })
    }

    /// Whether a change is stored as a base.
    pub(crate) fn checkpoint_when(&self, value: &Json, ops: &[Op], info: CheckpointInfo) -> Result<bool, DefinitionError> {
        guarded("checkpointWhen()", self.kind, || (self.checkpoint_when)(value, ops, info))
    }
}

/// Runs a definition's code; its panic becomes an error of the transaction and nothing else.
fn guarded<R>(call: &'static str, kind: &'static str, run: impl FnOnce() -> R) -> Result<R, DefinitionError> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let message = panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        DefinitionError::Panicked { call, kind, message: message.unwrap_or_else(|| "no message".to_owned()) }
    })
}

/// The JSON object of a value.
pub(crate) fn object<T: Serialize>(value: &T) -> Result<Json, String> {
    let json = Json::from_serde(value).map_err(|error| error.to_string())?;
    if json.as_object().is_some() { Ok(json) } else { Err("it is no object".to_owned()) }
}

/// Reads a typed value.
pub(crate) fn typed<T: DocValue>(kind: &'static str, value: &Json) -> Result<T, DefinitionError> {
    value.to().map_err(|error| DefinitionError::Type { kind, ty: type_name::<T>(), why: error.to_string() })
}

/// Reads the data of a typed entry.
pub(crate) fn typed_data<D: DeserializeOwned>(kind: &'static str, data: Option<&Json>) -> Result<D, DefinitionError> {
    let null = Json::null();
    data.unwrap_or(&null).to().map_err(|error| DefinitionError::Type { kind, ty: type_name::<D>(), why: error.to_string() })
}
