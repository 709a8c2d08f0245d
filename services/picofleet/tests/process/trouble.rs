//! Stores that are damaged or full while a run uses them: the run ends, or says what it waits for.

use std::path::PathBuf;

use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::place::{Ended, Place, RUNS, soon};

const ANSWERS: &str = "[[turns]]\nblocks = [{ type = \"text\", chunks = [\"an answer\"] }]\n\
                       [[turns]]\nwhen = {}\nblocks = [{ type = \"text\", chunks = [\"another answer\"] }]\n";

/// Lets every write of an entry that has this text meet a constraint, as rows in the place of others do.
fn damage(place: &Place, text: &str) {
    let connection = rusqlite::Connection::open(place.path("picofleet.db")).unwrap();
    let trigger = format!(
        "CREATE TRIGGER damage BEFORE INSERT ON entry WHEN new.body LIKE '%{text}%' BEGIN SELECT RAISE(ABORT, 'not what was there'); END"
    );
    connection.execute_batch(&trigger).unwrap();
    connection.close().unwrap();
}

/// It was tried again and again without a word, until somebody pressed Ctrl-C.
#[tokio::test]
async fn a_run_that_meets_damage_ends_and_says_what_to_do() {
    let _runs = RUNS.read().await;
    let place = Place::scripted(ANSWERS);
    place.run(&["run", "hello"]).await.with(0);
    damage(&place, "another answer");
    for arguments in [&["run", "more", "--continue"][..], &["run", "more", "--continue", "--json"]] {
        let ended = place.run(arguments).await;
        assert_eq!(ended.code, Some(1), "{arguments:?}: {ended:?}");
        let (_, error) = ended.err.split_once("error: the session ended\n  because: ").unwrap_or_else(|| panic!("{ended:?}"));
        assert!(error.contains("picofleet.db is corrupt") && error.contains("picofleet doctor") && error.contains("picofleet export"), "{error}");
    }
}
