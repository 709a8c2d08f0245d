//! Identities: ids of one session's records, sequences, tokens, sessions and their partitions.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::str::FromStr;

use picofleet_delta::Json;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

/// What an [`Id`] names. The markers exist only at compile time.
pub mod marker {
    use std::marker::PhantomData;

    /// A conversation.
    pub enum Conversation {}
    /// A transcript entry.
    pub enum Entry {}
    /// A submission.
    pub enum Submission {}
    /// A document incarnation.
    pub enum Document {}
    /// A task whose result has the type `R`.
    pub struct Task<R>(PhantomData<fn() -> R>);
}

/// The number of a record in one session: a positive integer below 2^53, a plain number in JSON and SQL.
///
/// All kinds of records share one counter, so that a number names one record of the session (section 2).
pub struct Id<K: ?Sized>(i64, PhantomData<fn() -> Box<K>>);

/// Names a conversation.
pub type ConversationId = Id<marker::Conversation>;
/// Names an entry.
pub type EntryId = Id<marker::Entry>;
/// Names a submission.
pub type SubmissionId = Id<marker::Submission>;
/// Names one incarnation of a document.
pub type DocumentId = Id<marker::Document>;
/// Names a task; `R` is the type of its result.
pub type TaskId<R = Json> = Id<marker::Task<R>>;

/// The largest id: JSON numbers are exact up to here.
pub const ID_MAX: i64 = (1 << 53) - 1;

/// The conversation that every session may have from its beginning (section 2.2).
pub const ROOT_CONVERSATION_ID: ConversationId = Id(1, PhantomData);

/// The first id that a new session mints; 1 is the root conversation's.
pub const FIRST_MINTED_ID: i64 = 2;

/// A number that can't be an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} is no id: ids are integers from 1 to 2^53-1")]
pub struct InvalidId(pub i64);

impl<K: ?Sized> Id<K> {
    /// Names the record with this number.
    ///
    /// # Errors
    /// [`InvalidId`] outside `1..=ID_MAX`.
    pub const fn new(number: i64) -> Result<Self, InvalidId> {
        if number < 1 || number > ID_MAX {
            return Err(InvalidId(number));
        }
        Ok(Self(number, PhantomData))
    }

    /// The plain number, for JSON and SQL.
    #[must_use]
    pub const fn get(self) -> i64 {
        self.0
    }
}

impl<R> TaskId<R> {
    /// Forgets the type of the result.
    #[must_use]
    pub const fn erase(self) -> TaskId {
        Id(self.0, PhantomData)
    }

    /// States the type of the result; nothing checks it.
    #[must_use]
    pub const fn assume<S>(self) -> TaskId<S> {
        Id(self.0, PhantomData)
    }
}

impl<K: ?Sized> Clone for Id<K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K: ?Sized> Copy for Id<K> {}

impl<K: ?Sized> PartialEq for Id<K> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<K: ?Sized> Eq for Id<K> {}

impl<K: ?Sized> PartialOrd for Id<K> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<K: ?Sized> Ord for Id<K> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.cmp(&other.0)
    }
}

impl<K: ?Sized> Hash for Id<K> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl<K: ?Sized> fmt::Debug for Id<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

impl<K: ?Sized> fmt::Display for Id<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<K: ?Sized> Serialize for Id<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(self.0)
    }
}

impl<'de, K: ?Sized> Deserialize<'de> for Id<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Id::new(i64::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

/// The number of a commit in its session; it rises by one with each (section 2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seq(pub i64);

impl Seq {
    /// The next commit's.
    #[must_use]
    pub const fn next(self) -> Seq {
        Seq(self.0 + 1)
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of a partition's owner, one higher with each new owner; 0 where nobody leases partitions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub i64);

/// Milliseconds since 1970-01-01 UTC.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Millis(pub i64);

/// A text that is not the 32 hexadecimal digits of a token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no token: tokens are 32 hexadecimal digits")]
pub struct InvalidToken(pub String);

macro_rules! random_token {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(u128);

        impl $name {
            /// A new one, from the system's random numbers.
            #[must_use]
            pub fn random() -> Self {
                Self(Uuid::new_v4().as_u128() ^ Uuid::new_v4().as_u128().rotate_left(64))
            }

            /// The one with these bits.
            #[must_use]
            pub const fn from_bits(bits: u128) -> Self {
                Self(bits)
            }

            /// Its bits.
            #[must_use]
            pub const fn bits(self) -> u128 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = InvalidToken;

            fn from_str(text: &str) -> Result<Self, InvalidToken> {
                let digits = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
                match u128::from_str_radix(text, 16) {
                    Ok(bits) if digits => Ok(Self(bits)),
                    _ => Err(InvalidToken(text.to_owned())),
                }
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
            }
        }
    };
}

random_token! {
    /// The random name of one commit: `(seq, token)` names it, never `seq` alone (`protocol.md` 1).
    CommitToken
}

random_token! {
    /// The random name of one reservation of a task, and its worker's capability (`protocol.md` 3).
    InvocationId
}

/// Names a session everywhere.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionId(Uuid);

impl SessionId {
    /// A new one that sorts by the time of its making.
    #[must_use]
    pub fn random() -> Self {
        Self(Uuid::now_v7())
    }

    /// The one that `key` has for `tenant`: a version 8 UUID of both, so that create-or-use needs no map (`protocol.md` 3).
    #[must_use]
    pub fn from_key(tenant: &str, key: &str) -> Self {
        let mut hash = Sha256::new();
        hash.update((tenant.len() as u64).to_be_bytes());
        hash.update(tenant.as_bytes());
        hash.update(key.as_bytes());
        let digest: [u8; 32] = hash.finalize().into();
        Self(Uuid::new_v8(first_bytes(&digest)))
    }

    /// The one with these 16 bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }

    /// Its 16 bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }

    /// Its partition among `count`: the first 64 bits of the SHA-256 of its bytes, modulo the count (`protocol.md` 4).
    #[must_use]
    pub fn partition(&self, count: PartitionCount) -> u16 {
        let digest: [u8; 32] = Sha256::digest(self.as_bytes()).into();
        let bits = u64::from_be_bytes(first_bytes(&digest));
        let partition = bits % u64::from(count.get());
        u16::try_from(partition).unwrap_or(u16::MAX)
    }
}

/// The first `N` of 32 bytes.
fn first_bytes<const N: usize>(digest: &[u8; 32]) -> [u8; N] {
    std::array::from_fn(|i| digest[i])
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A text that is no session id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no session id: session ids are UUIDs")]
pub struct InvalidSessionId(pub String);

impl FromStr for SessionId {
    type Err = InvalidSessionId;

    fn from_str(text: &str) -> Result<Self, InvalidSessionId> {
        Uuid::try_parse(text).map(Self).map_err(|_| InvalidSessionId(text.to_owned()))
    }
}

/// How many partitions the sessions of a store hash to; never 0, fixed when the store is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PartitionCount(std::num::NonZeroU16);

impl PartitionCount {
    /// The count of a new store.
    pub const DEFAULT: PartitionCount = match std::num::NonZeroU16::new(256) {
        Some(count) => PartitionCount(count),
        None => PartitionCount(std::num::NonZeroU16::MIN),
    };

    /// `count` partitions; `None` for 0.
    #[must_use]
    pub fn new(count: u16) -> Option<Self> {
        std::num::NonZeroU16::new(count).map(Self)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0.get()
    }
}

impl Default for PartitionCount {
    fn default() -> Self {
        Self::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_positive_and_exact_in_json() {
        assert!(EntryId::new(0).is_err());
        assert!(EntryId::new(-1).is_err());
        assert!(EntryId::new(ID_MAX).is_ok());
        assert_eq!(EntryId::new(ID_MAX + 1), Err(InvalidId(ID_MAX + 1)));
    }

    #[test]
    fn tokens_round_trip_as_32_digits() {
        let token = CommitToken::from_bits(0xab);
        assert_eq!(token.to_string(), "000000000000000000000000000000ab");
        assert_eq!(token.to_string().parse(), Ok(token));
        assert!("+0000000000000000000000000000ab1".parse::<CommitToken>().is_err());
        assert!("ab".parse::<CommitToken>().is_err());
        assert_ne!(CommitToken::random(), CommitToken::random());
    }

    #[test]
    fn a_key_names_one_session_for_each_tenant() {
        assert_eq!(SessionId::from_key("a", "k"), SessionId::from_key("a", "k"));
        assert_ne!(SessionId::from_key("a", "bk"), SessionId::from_key("ab", "k"));
    }

    #[test]
    fn the_partition_of_a_session_is_fixed() {
        // A golden value: another one would move every stored session.
        let id = SessionId::from_bytes([7; 16]);
        assert_eq!(id.partition(PartitionCount::DEFAULT), 90);
        assert_eq!(id.partition(PartitionCount::new(1).unwrap()), 0);
    }
}
