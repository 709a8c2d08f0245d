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
        "CREATE TRIGGER damage BEFORE INSERT ON entry WHEN new.record LIKE '%{text}%' BEGIN SELECT RAISE(ABORT, 'not what was there'); END"
    );
    connection.execute_batch(&trigger).unwrap();
    connection.close().unwrap();
}

/// It was tried again and again without a word, until somebody pressed Ctrl-C.
#[tokio::test]
async fn a_run_that_meets_damage_ends_and_says_what_to_do() {
    let _runs = RUNS.read().await;
    for arguments in [&["run", "more", "--continue"][..], &["run", "more", "--continue", "--json"]] {
        let place = Place::scripted(ANSWERS);
        place.run(&["run", "hello"]).await.with(0);
        damage(&place, "another answer");
        let ended = place.run(arguments).await;
        assert_eq!(ended.code, Some(1), "{arguments:?}: {ended:?}");
        let (_, error) = ended.err.split_once("error: the session ended\n  because: ").unwrap_or_else(|| panic!("{ended:?}"));
        assert!(
            error.contains("picofleet.db is corrupt") && error.contains("picofleet doctor") && error.contains("picofleet export"),
            "{error}"
        );
    }
}

/// The library that lets calls fail, beside this test or one above.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let mut places = test.ancestors().skip(1).take(2).map(|folder| folder.join("libpicofleet_faultfs.so"));
    places.find(|path| path.exists()).expect("the library of tests/faultfs is built with this test")
}

/// A run whose disk is full from a call on, and free again once it has said so. What it said up to there, and how it ended.
async fn run_full(place: &Place, files: &str, at: usize) -> (String, Ended) {
    let free = place.path(&format!("free-{at}"));
    let mut command = place.command(&["run", "hello"]);
    command.env("LD_PRELOAD", library());
    command.env("FAULTFS_MATCH", files).env("FAULTFS_AT", at.to_string()).env("FAULTFS_DO", "enospc").env("FAULTFS_UNTIL", &free);
    let mut child = command.spawn().unwrap();
    let (mut lines, mut said) = (BufReader::new(child.stderr.take().unwrap()), String::new());
    while !said.contains("full") && !said.contains("error: ") && soon("a word", lines.read_line(&mut said)).await.unwrap() > 0 {}
    std::fs::write(free, "").unwrap();
    let mut rest = said.clone();
    let rest = async move {
        while lines.read_line(&mut rest).await.unwrap() > 0 {}
        rest
    };
    let ended = async {
        let (err, output) = tokio::join!(rest, child.wait_with_output());
        let output = output.unwrap();
        Ended { code: output.status.code(), out: String::from_utf8(output.stdout).unwrap(), err }
    };
    let ended = soon("the end of the run", ended).await;
    (said, ended)
}

/// Whichever write of a SQLite store it is that finds the disk full: the run ends with that, or says that it waits, and goes on.
#[tokio::test]
async fn a_full_disk_is_waited_for_and_said() {
    let _runs = RUNS.read().await;
    let (mut waited, mut met) = (0, 0);
    for at in (1..400).step_by(3) {
        let place = Place::scripted(ANSWERS);
        let (said, ended) = run_full(&place, "picofleet.db", at).await;
        // SQLite calls a full disk an I/O error where it maps its index while it opens a file.
        let named = ["full", "No space left", "disk I/O error"].iter().any(|why| ended.err.contains(why));
        if ended.code == Some(0) && !named {
            break;
        }
        met += 1;
        assert!(named, "at {at}: {ended:?}");
        waited += u32::from(said.contains("warning: ") && said.contains("the disk is full; free space"));
    }
    assert!(waited > 0 && met > waited, "{waited} of {met} waited");
}

/// A JSONL store takes nothing behind a write that failed: the run ends, and names the cause.
#[tokio::test]
async fn the_end_of_a_run_on_a_full_jsonl_store_names_its_cause() {
    let _runs = RUNS.read().await;
    let mut met = 0;
    for at in (1..400).step_by(5) {
        let mut place = Place::scripted(ANSWERS);
        place.set("PICOFLEET_STORAGE__URL", "jsonl:lines");
        let (_, ended) = run_full(&place, "/lines/", at).await;
        if ended.code == Some(0) && !ended.err.contains("No space left") {
            break;
        }
        met += 1;
        let (_, error) = ended.err.split_once("error: ").unwrap_or_else(|| panic!("at {at}: {ended:?}"));
        assert!(ended.code == Some(1) && error.contains("No space left on device"), "at {at}: {ended:?}");
    }
    assert!(met > 2, "only {met} runs met a full disk");
}
