use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

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
    let mut first = limiter.acquire(90).await.unwrap();
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
    let mut first = limiter.acquire(10).await.unwrap();
    tokio::time::advance(Duration::from_secs(30)).await;
    first.settle(95);
    drop(limiter.acquire(20).await.unwrap());
    assert_eq!(seconds(began), 90.0);
}

#[tokio::test(start_paused = true)]
async fn tokens_that_are_given_back_let_the_next_one_through_at_once() {
    let limiter = limiter(Limits { tokens_per_minute: Some(100), ..Limits::default() });
    let began = Instant::now();
    let mut first = limiter.acquire(100).await.unwrap();
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

proptest! {
    /// Whatever comes when, no minute ever has more than the limits allow, and memory stays bounded.
    #[test]
    fn no_minute_has_too_much(steps in proptest::collection::vec((0_u64..20_000, 0_u64..40), 1..120)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let fair = AtomicBool::new(true);
        runtime.block_on(async {
            let limits = Limits { requests_per_minute: Some(7), tokens_per_minute: Some(100), ..Limits::default() };
            let limiter = limiter(limits);
            let mut began: Vec<(Instant, u64)> = Vec::new();
            for (pause, tokens) in steps {
                tokio::time::advance(Duration::from_millis(pause)).await;
                drop(limiter.acquire(tokens).await.unwrap());
                let now = Instant::now();
                began.push((now, tokens));
                let recent = began.iter().filter(|(at, _)| now - *at < MINUTE);
                let (requests, tokens) = recent.fold((0, 0), |(requests, sum), (_, tokens)| (requests + 1, sum + tokens));
                let entries = lock(&limiter.0.window).entries.len();
                fair.fetch_and(requests <= 7 && tokens <= 100 && entries <= 61, Ordering::Relaxed);
            }
        });
        prop_assert!(fair.load(Ordering::Relaxed));
    }
}
