use std::collections::BTreeMap;

use picofleet_session::message::StopReason;
use picofleet_session::{Clock, Millis};
use proptest::prelude::*;

use super::*;
use crate::classify::{is_context_overflow, is_retryable_assistant_error};
use crate::provider::empty_answer;

fn limiter(limits: Limits) -> Limiter {
    Limiter::new("acme", limits)
}

fn seconds(began: Instant) -> f64 {
    began.elapsed().as_secs_f64()
}

/// Lets every task run until all of them wait.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// True for the text of an error that is tried again later.
pub(crate) fn is_transient(text: &str) -> bool {
    let models = crate::registry::Models::new(&BTreeMap::new(), Clock::manual(Millis(0)), |_| None);
    let model = models.models().next().unwrap();
    let mut message = empty_answer(model, Millis(0));
    message.stop_reason = StopReason::Error;
    message.error_message = Some(text.to_owned());
    is_retryable_assistant_error(&message) && !is_context_overflow(&message, None)
}

fn transient(error: &LimitError) {
    assert!(is_transient(&error.to_string()), "{error}");
}

#[tokio::test(start_paused = true)]
async fn without_limits_nobody_waits() {
    let limiter = limiter(Limits::default());
    let began = Instant::now();
    let mut permits = Vec::new();
    for _ in 0..5000 {
        permits.push(limiter.acquire(u64::MAX).await.unwrap());
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert!(lock(&limiter.0.window).entries.is_empty());
}

#[tokio::test(start_paused = true)]
async fn requests_at_a_time() {
    let limiter = limiter(Limits { concurrency: Some(2), ..Limits::default() });
    let first = limiter.acquire(1).await.unwrap();
    let _second = limiter.acquire(1).await.unwrap();
    let third = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire(1).await.is_ok() }
    });
    settle().await;
    assert!(!third.is_finished());
    drop(first);
    assert!(third.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn requests_per_minute_slide() {
    let limiter = limiter(Limits { requests_per_minute: Some(2), ..Limits::default() });
    let began = Instant::now();
    let mut at = Vec::new();
    for _ in 0..5 {
        drop(limiter.acquire(1).await.unwrap());
        at.push(seconds(began));
        tokio::time::advance(Duration::from_secs(10)).await;
    }
    assert_eq!(at, [0.0, 10.0, 60.0, 70.0, 120.0]);
}

#[tokio::test(start_paused = true)]
async fn tokens_per_minute_count_what_they_really_were() {
    let limiter = limiter(Limits { tokens_per_minute: Some(100), ..Limits::default() });
    let began = Instant::now();
    let first = limiter.acquire(90).await.unwrap();
    first.settle(20);
    drop(limiter.acquire(80).await.unwrap());
    assert_eq!(seconds(began), 0.0);
    drop(limiter.acquire(20).await.unwrap());
    assert_eq!(seconds(began), 60.0);
    // One that is too large for any minute goes out alone.
    drop(limiter.acquire(500).await.unwrap());
    assert_eq!(seconds(began), 120.0);
}

#[tokio::test(start_paused = true)]
async fn more_tokens_than_counted_delay_the_next() {
    let limiter = limiter(Limits { tokens_per_minute: Some(100), ..Limits::default() });
    let began = Instant::now();
    let first = limiter.acquire(10).await.unwrap();
    tokio::time::advance(Duration::from_secs(30)).await;
    first.settle(95);
    drop(limiter.acquire(20).await.unwrap());
    assert_eq!(seconds(began), 90.0);
}

#[tokio::test(start_paused = true)]
async fn tokens_that_are_given_back_let_the_next_one_through_at_once() {
    let limiter = limiter(Limits { tokens_per_minute: Some(100), ..Limits::default() });
    let began = Instant::now();
    let first = limiter.acquire(100).await.unwrap();
    let second = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire(50).await.map(drop) }
    });
    settle().await;
    first.settle(50);
    second.await.unwrap().unwrap();
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn who_comes_first_is_served_first() {
    let limiter = limiter(Limits { tokens_per_minute: Some(100), ..Limits::default() });
    drop(limiter.acquire(60).await.unwrap());
    let order = Arc::new(Mutex::new(Vec::new()));
    // The large one must not be passed by the small ones, for which there is room.
    let tasks: Vec<_> = [90, 1, 2, 3]
        .into_iter()
        .map(|tokens| {
            let (limiter, order) = (limiter.clone(), Arc::clone(&order));
            tokio::spawn(async move {
                drop(limiter.acquire(tokens).await.unwrap());
                lock(&order).push(tokens);
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(*lock(&order), [90, 1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn a_wait_has_an_end_that_says_how_long_it_was() {
    let limits = Limits { requests_per_minute: Some(1), concurrency: Some(1), wait_max_ms: 2500, ..Limits::default() };
    let limiter = limiter(limits);
    let first = limiter.acquire(1).await.unwrap();
    let error = limiter.acquire(1).await.err().unwrap();
    let text = "Rate limit of provider acme: the request waited 2.5 s for a running request to end and gave up; raise its limits or \
                try your request again later";
    assert_eq!(error.to_string(), text);
    transient(&error);
    drop(first);
    let error = limiter.acquire(1).await.err().unwrap();
    assert!(matches!(error, LimitError::Waited { waits_for: Room::Requests, .. }), "{error}");
    transient(&error);
}

#[tokio::test(start_paused = true)]
async fn a_queue_has_a_bound_and_leaving_it_makes_room() {
    let limiter = limiter(Limits { concurrency: Some(1), queue_max: 2, ..Limits::default() });
    let _running = limiter.acquire(1).await.unwrap();
    let wait = || {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.acquire(1).await.map(drop) })
    };
    let (first, second) = (wait(), wait());
    settle().await;
    let error = limiter.acquire(1).await.err().unwrap();
    assert_eq!(error, LimitError::QueueFull { provider: "acme".to_owned(), queue_max: 2 });
    transient(&error);
    second.abort();
    settle().await;
    let third = wait();
    settle().await;
    assert!(!third.is_finished() && !first.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_wait_takes_nothing() {
    let limiter = limiter(Limits { concurrency: Some(1), ..Limits::default() });
    let running = limiter.acquire(1).await.unwrap();
    let given_up = tokio::time::timeout(Duration::from_secs(1), limiter.acquire(1)).await;
    assert!(given_up.is_err());
    drop(running);
    drop(limiter.acquire(1).await.unwrap());
    assert_eq!(limiter.0.waiting.load(Ordering::Acquire), 0);
}

#[tokio::test(start_paused = true)]
async fn what_is_told_too_late_takes_nothing_from_others() {
    let limiter = limiter(Limits { tokens_per_minute: Some(100), ..Limits::default() });
    let old = limiter.acquire(100).await.unwrap();
    tokio::time::advance(MINUTE).await;
    let _other = limiter.acquire(100).await.unwrap();
    old.settle(1);
    let began = Instant::now();
    drop(limiter.acquire(50).await.unwrap());
    assert_eq!(seconds(began), 60.0);
}

#[tokio::test(start_paused = true)]
async fn requests_that_follow_count_and_do_not_wait() {
    let limiter = limiter(Limits { requests_per_minute: Some(3), ..Limits::default() });
    let began = Instant::now();
    let first = limiter.acquire(1).await.unwrap();
    for _ in 0..4 {
        limiter.count_request();
    }
    drop(first);
    assert_eq!(seconds(began), 0.0);
    drop(limiter.acquire(1).await.unwrap());
    assert_eq!(seconds(began), 60.0);
}

/// What counts, by a list of everything that ever did: when, requests, tokens.
#[derive(Default)]
struct Ledger(Vec<(Instant, u64, u64)>);

impl Ledger {
    /// Requests and tokens of the time before `now` that is no longer than `window`.
    fn within(&self, now: Instant, window: Duration) -> (u64, u64) {
        let recent = self.0.iter().filter(|(at, _, _)| *at <= now && now - *at < window);
        recent.fold((0, 0), |(requests, tokens), (_, more, sum)| (requests + more, tokens + sum))
    }
}

/// One step: a pause in milliseconds, tokens that are asked for, and what one of the requests that are out (by its place) really was.
type Step = (u64, u64, Option<(usize, u64)>);

async fn play(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let limits = Limits { requests_per_minute: Some(7), tokens_per_minute: Some(100), ..Limits::default() };
    let limiter = limiter(limits);
    let (mut ledger, mut out) = (Ledger::default(), Vec::new());
    for (pause, tokens, settles) in steps {
        tokio::time::advance(Duration::from_millis(pause)).await;
        if let Some((which, real)) = settles.filter(|_| !out.is_empty()) {
            let (permit, place): (Permit, usize) = out.swap_remove(which % out.len());
            permit.settle(real);
            let counted: u64 = ledger.0[place].2;
            ledger.0[place].2 = counted.min(real);
            ledger.0.push((Instant::now(), 0, real.saturating_sub(counted)));
        }
        let asked_at = Instant::now();
        let permit = limiter.acquire(tokens).await.unwrap();
        let now = Instant::now();
        let (requests, sum) = ledger.within(now, MINUTE);
        prop_assert!(requests < 7 && (sum == 0 || sum + tokens <= 100), "{requests} requests and {sum} tokens before {tokens}");
        // A timer is exact to the millisecond, an entry covers a second.
        let before = now - Duration::from_millis(2);
        if before > asked_at {
            let (requests, sum) = ledger.within(before, MINUTE + GRAIN);
            prop_assert!(
                requests >= 7 || sum + tokens > 100,
                "it waited beside room: {requests} requests and {sum} tokens before {tokens}"
            );
        }
        prop_assert!(lock(&limiter.0.window).entries.len() <= 61);
        ledger.0.push((now, 1, tokens));
        out.push((permit, ledger.0.len() - 1));
    }
    Ok(())
}

proptest! {
    /// Whatever comes when and however it is settled: no minute begins more than the limits allow, nobody waits beside room, and memory
    /// stays bounded.
    #[test]
    fn no_minute_has_too_much(steps in prop::collection::vec((0_u64..30_000, 0_u64..40, prop::option::of((any::<usize>(), 0_u64..60))), 1..120)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(play(steps))?;
    }
}
