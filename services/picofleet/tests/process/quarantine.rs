//! A session whose openings kill their process is quarantined, and `retry` lets it be opened again.

use std::process::Stdio;

use crate::place::{Place, RUNS};

const ANSWERS: &str = "[[turns]]\nblocks = [{ type = \"text\", chunks = [\"an answer\"] }]\n\
                       [[turns]]\nwhen = {}\nblocks = [{ type = \"text\", chunks = [\"another answer\"] }]\n";

/// Kills processes that have just opened the session until it is quarantined.
async fn kill_openers(place: &Place, id: &str) {
    // A machine so slow that an opening lives for ten seconds counts it as survived.
    for _ in 0..30 {
        let mut command = place.command(&["chat", "--session", id]);
        let mut opener = crate::place::Running::of(command.stdin(Stdio::piped()).spawn().unwrap());
        if !opener.shows("an answer").await {
            return;
        }
        opener.kill().await;
    }
    panic!("thirty openings that were killed did not quarantine the session");
}

#[tokio::test]
async fn a_session_that_kills_its_openers_goes_on_after_a_retry() {
    let _runs = RUNS.read().await;
    for url in ["sqlite:picofleet.db", "jsonl:lines"] {
        let mut place = Place::scripted(ANSWERS);
        place.set("PICOFLEET_STORAGE__URL", url);
        let text = place.run(&["run", "hello"]).await.with(0);
        let id = text.split_once("; session ").unwrap().1.split(']').next().unwrap().to_owned();
        let retry = ["retry", "--session", &id];

        let healthy = place.run(&retry).await.with(1);
        assert!(healthy.contains(&format!("session {id} is not quarantined")), "{url}: {healthy}");
        kill_openers(&place, &id).await;

        let command = format!("picofleet retry --session {id}");
        let refused = place.run(&["run", "more", "--session", &id]).await.with(1);
        assert!(refused.contains("is quarantined") && refused.contains(&command), "{url}: {refused}");
        let note = place.run(&["doctor"]).await.with(0);
        assert!(note.contains("quarantine") && note.contains("picofleet retry --session"), "{url}: {note}");

        let cleared = place.run(&retry).await.with(0);
        assert!(cleared.contains(&format!("session {id} is not quarantined any more: it was opened 3 times")), "{url}: {cleared}");
        let again = place.run(&retry).await.with(1);
        assert!(again.contains("is not quarantined"), "{url}: {again}");
        let more = place.run(&["run", "more", "--session", &id]).await.with(0);
        assert!(more.contains("another answer"), "{url}: {more}");
    }
}

/// What is not there is said to be not there, and no store is made for it.
#[tokio::test]
async fn what_is_not_there_is_not_retried() {
    let _runs = RUNS.read().await;
    let place = Place::scripted(ANSWERS);
    let none = ["retry", "--session", "01a230b8-1e0a-749a-a7c4-da671269cb4b"];
    let missing = place.run(&none).await.with(1);
    assert!(missing.contains("does not exist") && !place.path("picofleet.db").exists(), "{missing}");
    place.run(&["run", "hello"]).await.with(0);
    let unknown = place.run(&none).await.with(64);
    assert!(unknown.contains("there is no session 01a230b8"), "{unknown}");
}
