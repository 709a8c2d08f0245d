//! Keeps the requests to a provider within its limits: how many at a time, how many in a minute, how many tokens in a minute.
//!
//! Whoever comes first is served first. The first in the queue waits for room, the others wait for the first, so a large
//! request is never passed by small ones. The queue and the wait have a bound; beyond it a request fails with a text that
//! [`crate::classify`] takes for transient.
//!
//! A minute is a sliding one: what began in the last 60 seconds counts. Entries of one second are kept together, so the memory
//! is bounded and a request counts for at most a second too long. Time is that of tokio, which tests can pause.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// The window of the limits per minute.
const MINUTE: Duration = Duration::from_secs(60);

/// The time that one entry of the window covers.
const GRAIN: Duration = Duration::from_secs(1);

/// The limits of a provider. Those that are absent do not hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Requests at a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// Requests that begin in a minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u32>,
    /// Tokens of input and output in a minute. A request that is larger goes out when nothing else counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_minute: Option<u64>,
    /// Most requests that wait, at least one. More would only fail later: at this length the last one waits for minutes.
    pub queue_max: usize,
    /// Longest wait, in milliseconds.
    pub wait_max_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { concurrency: None, requests_per_minute: None, tokens_per_minute: None, queue_max: 1000, wait_max_ms: 120_000 }
    }
}

/// A request was not let through. The texts classify as transient.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum LimitError {
    /// It waited for too long.
    #[error(
        "Rate limit of provider {provider}: the request waited {} s for {waits_for} and gave up; raise its limits or try your request again later",
        .waited.as_secs_f64()
    )]
    Waited {
        /// The provider.
        provider: String,
        /// How long.
        waited: Duration,
        /// What there was no room in.
        waits_for: Room,
    },
    /// Too many others wait.
    #[error(
        "Rate limit of provider {provider}: the request waited 0 s, since {queue_max} others wait already; raise its limits or try your request again later"
    )]
    QueueFull {
        /// The provider.
        provider: String,
        /// How many may.
        queue_max: usize,
    },
}

/// What a request waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    /// Those before it in the queue.
    Queue,
    /// The end of a running request.
    Concurrency,
    /// Requests per minute.
    Requests,
    /// Tokens per minute.
    Tokens,
}

impl std::fmt::Display for Room {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Queue => "those before it",
            Self::Concurrency => "a running request to end",
            Self::Requests => "its requests per minute",
            Self::Tokens => "its tokens per minute",
        })
    }
}

/// Lets the requests to one provider through. Clones share the limits.
#[derive(Clone)]
pub struct Limiter(Arc<Shared>);

struct Shared {
    provider: String,
    limits: Limits,
    slots: Option<Arc<Semaphore>>,
    /// Who holds it is first in the queue; tokio hands it on in the order of arrival.
    head: tokio::sync::Mutex<()>,
    waiting: AtomicUsize,
    window: Mutex<Window>,
    /// Told when tokens are given back, so that the first in the queue looks again.
    given_back: Notify,
}

impl Limiter {
    /// The limits of a provider; its name is for errors.
    #[must_use]
    pub fn new(provider: impl Into<String>, limits: Limits) -> Self {
        let slots = limits.concurrency.map(|slots| Arc::new(Semaphore::new(usize::try_from(slots.max(1)).unwrap_or(usize::MAX))));
        Self(Arc::new(Shared {
            provider: provider.into(),
            limits,
            slots,
            head: tokio::sync::Mutex::new(()),
            waiting: AtomicUsize::new(0),
            window: Mutex::default(),
            given_back: Notify::new(),
        }))
    }

    /// Waits until a request of so many tokens may go out. Dropping the future leaves the queue.
    ///
    /// # Errors
    ///
    /// It waited for too long, or too many others wait.
    pub async fn acquire(&self, tokens: u64) -> Result<Permit, LimitError> {
        let own = &self.0;
        let _place = own.enqueue()?;
        let began = Instant::now();
        // Where the wait stands, to tell if it ends there.
        let at = Mutex::new(Room::Queue);
        let wait = Duration::from_millis(own.limits.wait_max_ms);
        match tokio::time::timeout(wait, own.admit(tokens, &at)).await {
            Ok((slot, began_at)) => Ok(Permit { shared: Arc::clone(own), tokens, began_at, _slot: slot }),
            Err(_) => {
                let waits_for = *lock(&at);
                Err(LimitError::Waited { provider: own.provider.clone(), waited: began.elapsed(), waits_for })
            }
        }
    }

    /// Counts one more HTTP request of what was let through already: a retry, or the second request of an answer in two steps. It does not
    /// wait, since its turn is on; the ones behind it do.
    pub(crate) fn count_request(&self) {
        if self.0.limits.requests_per_minute.is_some() {
            let (mut window, now) = (lock(&self.0.window), Instant::now());
            window.expire(now);
            window.add(1, 0, now);
        }
    }
}

impl std::fmt::Debug for Limiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Limiter").field("provider", &self.0.provider).field("limits", &self.0.limits).finish_non_exhaustive()
    }
}

impl Shared {
    fn enqueue(&self) -> Result<Place<'_>, LimitError> {
        let max = self.limits.queue_max;
        let entered =
            self.waiting.fetch_update(Ordering::AcqRel, Ordering::Acquire, |waiting| (waiting < max.max(1)).then_some(waiting + 1));
        match entered {
            Ok(_) => Ok(Place(&self.waiting)),
            Err(_) => Err(LimitError::QueueFull { provider: self.provider.clone(), queue_max: max }),
        }
    }

    /// A slot, if slots are limited, and when the request began to count.
    async fn admit(&self, tokens: u64, at: &Mutex<Room>) -> (Option<OwnedSemaphorePermit>, Instant) {
        let _head = self.head.lock().await;
        *lock(at) = Room::Concurrency;
        let slot = match &self.slots {
            // It is never closed.
            Some(slots) => Arc::clone(slots).acquire_owned().await.ok(),
            None => None,
        };
        loop {
            let given_back = self.given_back.notified();
            let now = Instant::now();
            let Err((room, wait)) = lock(&self.window).take(self.limits, tokens, now) else { return (slot, now) };
            *lock(at) = room;
            // Both are cancel-safe: nothing is taken before there is room.
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = given_back => {}
            }
        }
    }
}

/// A place in the queue, until the request goes out or gives up.
struct Place<'a>(&'a AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Nothing panics while these are held, and what they hold is whole after each statement.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request that may go out. It counts as running until this is dropped.
pub struct Permit {
    shared: Arc<Shared>,
    tokens: u64,
    began_at: Instant,
    _slot: Option<OwnedSemaphorePermit>,
}

impl Permit {
    /// The request is over: says how many tokens it really was.
    pub fn settle(self, tokens: u64) {
        if self.shared.limits.tokens_per_minute.is_none() {
            return;
        }
        lock(&self.shared.window).correct(self.began_at, self.tokens, tokens, Instant::now());
        if tokens < self.tokens {
            self.shared.given_back.notify_one();
        }
    }
}

/// What counts for the limits per minute.
#[derive(Default)]
struct Window {
    entries: VecDeque<Entry>,
    requests: u64,
    tokens: u64,
}

struct Entry {
    first: Instant,
    last: Instant,
    requests: u64,
    tokens: u64,
}

impl Window {
    /// Counts a request if there is room for it; else tells what is full and when to look again.
    fn take(&mut self, limits: Limits, tokens: u64, now: Instant) -> Result<(), (Room, Duration)> {
        self.expire(now);
        let requests_max = limits.requests_per_minute.map_or(u64::MAX, |max| u64::from(max.max(1)));
        let tokens_max = limits.tokens_per_minute.unwrap_or(u64::MAX);
        let room = if self.requests >= requests_max {
            Room::Requests
        } else if self.tokens > 0 && self.tokens.saturating_add(tokens) > tokens_max {
            Room::Tokens
        } else {
            if limits.requests_per_minute.is_some() || limits.tokens_per_minute.is_some() {
                self.add(1, tokens, now);
            }
            return Ok(());
        };
        let next = self.entries.front().map_or(GRAIN, |entry| (entry.last + MINUTE).saturating_duration_since(now));
        // A timer of tokio is exact to the millisecond; 0 would spin.
        Err((room, next.max(Duration::from_millis(1))))
    }

    fn expire(&mut self, now: Instant) {
        while let Some(entry) = self.entries.pop_front_if(|entry| now.saturating_duration_since(entry.last) >= MINUTE) {
            self.requests -= entry.requests;
            self.tokens -= entry.tokens;
        }
    }

    fn add(&mut self, requests: u64, tokens: u64, now: Instant) {
        // So that the sum cannot overflow either.
        let tokens = tokens.min(u64::MAX - self.tokens);
        self.requests += requests;
        self.tokens += tokens;
        match self.entries.back_mut() {
            Some(entry) if now.saturating_duration_since(entry.first) < GRAIN => {
                entry.last = now;
                entry.requests += requests;
                entry.tokens += tokens;
            }
            _ => self.entries.push_back(Entry { first: now, last: now, requests, tokens }),
        }
    }

    /// Counts what is more from now on, and takes what is less out of the entry that counted it; where that has expired, nothing counts any
    /// more.
    fn correct(&mut self, began_at: Instant, counted: u64, real: u64, now: Instant) {
        self.expire(now);
        if real > counted {
            self.add(0, real - counted, now);
        }
        let own = self.entries.iter_mut().rev().find(|entry| entry.first <= began_at);
        if let Some(entry) = own.filter(|entry| began_at <= entry.last) {
            let less = counted.saturating_sub(real).min(entry.tokens);
            entry.tokens -= less;
            self.tokens -= less;
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
