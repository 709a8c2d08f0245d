//! Sessions without work rest, and nobody notices.

use std::time::Duration;

use picofleet_harness::kinds::GENERATION;
use picofleet_harness_tests::{Reply, scenario};

scenario!(a_session_without_work_rests_and_its_next_use_opens_it_again, async |kit| {
    kit.idle = Duration::from_millis(50);
    kit.restart().await;
    for turn in 1..=3 {
        // Its lines are given back, all but none.
        kit.until("the rest of the session", async || kit.disk.lines() == 0).await;
        kit.turn("a", Reply::text("x")).await;
        assert_eq!(kit.tasks(GENERATION).await.len(), turn);
    }
});
