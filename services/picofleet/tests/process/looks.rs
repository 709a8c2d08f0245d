//! What a newcomer looks at: sessions in `inspect`, stores that can't be read, errors as JSON.

use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use picofleet_session::Json;
use tokio::io::AsyncWriteExt as _;

use crate::place::{Ended, Place, RUNS, soon};
use crate::server::{APIS, acme};
use crate::stores::with_faults;

const ANSWERS: &str = "[[turns]]\nblocks = [{ type = \"text\", chunks = [\"an \", \"answer\"] }]\n\
                       [[turns]]\nblocks = [{ type = \"text\", chunks = [\"another\"] }]\n\
                       [[turns]]\nwhen = {}\nblocks = [{ type = \"text\", chunks = [\"a later one\"] }]\n";

/// The id of the session that a run ended with.
#[track_caller]
fn session(ended: Ended) -> String {
    let text = ended.with(0);
    text.split_once("; session ").unwrap().1.split(']').next().unwrap().to_owned()
}

async fn sessions(place: &Place, more: &[&str]) -> Vec<Json> {
    let listed = place.run(&[&["inspect", "-o", "json"], more].concat()).await;
    assert_eq!(listed.code, Some(0), "{listed:?}");
    let listed: Json = listed.out.parse().unwrap();
    listed.as_array().unwrap().iter().cloned().collect()
}

fn member(json: &Json, name: &str) -> String {
    json.get(name).and_then(|value| value.as_str().map(std::borrow::Cow::into_owned)).unwrap_or_default()
}

/// Waits until the clock has moved on, so that two uses are of two times.
async fn later() {
    let now = || picofleet_session::Clock::system().now();
    let begun = now();
    while now() == begun {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn sessions_are_told_apart_and_the_one_that_was_used_last_goes_on() {
    let _runs = RUNS.read().await;
    let place = Place::scripted(ANSWERS);
    let old = session(place.run(&["run", &format!("first\n question {}", "x".repeat(100))]).await);
    later().await;
    let new = session(place.run(&["run", "another question"]).await);
    later().await;
    assert_eq!(session(place.run(&["run", "more", "--session", &old]).await), old);
    later().await;
    assert_eq!(
        session(place.run(&["run", "again", "--continue"]).await),
        old,
        "the one that was used last, not the one that was made last"
    );

    let table = place.run(&["inspect"]).await.with(0);
    let rows: Vec<&str> = table.lines().skip(1).collect();
    assert!(
        rows[0].starts_with(&old) && rows[0].contains("s/m") && rows[0].contains("first question xxx") && rows[0].ends_with("..."),
        "{table}"
    );
    assert!(rows[1].starts_with(&new) && rows[1].ends_with("another question"), "{table}");
    let listed = sessions(&place, &[]).await;
    assert_eq!((member(&listed[1], "id"), member(&listed[1], "firstInput")), (new, "another question".to_owned()));
    // What is left out is older.
    let one = place.run(&["inspect", "--limit", "1"]).await;
    assert!(one.out.lines().nth(1).unwrap().starts_with(&old) && one.err.contains("there are 2, and these are the 1"), "{one:?}");

    // Entries have numbers, by which they are shown.
    let tree = place.run(&["inspect", &old]).await;
    let line = tree.out.lines().find(|line| line.contains("model: an answer")).unwrap_or_else(|| panic!("{tree:?}"));
    let number = line.trim().split(' ').nth(1).unwrap();
    assert!(tree.err.contains(&format!("`picofleet inspect {old} ID` shows an entry")), "{tree:?}");
    assert!(place.run(&["inspect", &old, number]).await.with(0).starts_with(&format!("entry {number}\n")));
}

/// It is no session that is not there, nor keeps it the others from being used.
#[tokio::test]
async fn a_damaged_session_is_named() {
    let _runs = RUNS.read().await;
    let mut place = Place::scripted(ANSWERS);
    place.set("PICOFLEET_STORAGE__URL", "jsonl:lines");
    let damaged = session(place.run(&["run", "hello"]).await);
    let main = format!("lines/{damaged}/main.jsonl");
    place.write(&main, &place.read(&main).replacen('{', "[", 1));
    let problem = format!("session {damaged} is damaged: ");
    let listed = place.run(&["inspect"]).await;
    assert!(listed.code == Some(0) && listed.out.contains(&format!("{damaged}  damaged")), "{listed:?}");
    assert!(listed.err.contains(&problem) && listed.err.contains(&format!("move lines/{damaged} away")), "{listed:?}");
    let json = sessions(&place, &[]).await;
    assert_eq!((member(&json[0], "id"), member(&json[0], "state")), (damaged.clone(), "damaged".to_owned()));
    assert!(member(&json[0], "problem").starts_with(&problem));
    for refused in [place.run(&["run", "more", "--continue"]).await, place.run(&["inspect", &damaged]).await] {
        let text = refused.with(1);
        assert!(text.contains("line 1 is corrupt") && text.contains("restore it from a backup"), "{text}");
    }
    // One that is used later is gone on with, and the damaged one is told.
    later().await;
    let other = session(place.run(&["run", "hello"]).await);
    let more = place.run(&["run", "more", "--continue"]).await;
    assert!(more.err.contains(&problem), "{more:?}");
    assert_eq!(session(more), other);
}

/// A key that is missing is found before anything is made.
#[tokio::test]
async fn a_run_that_can_not_begin_leaves_nothing() {
    let _runs = RUNS.read().await;
    let mut place = Place::new();
    let file = acme(APIS[0], "http://127.0.0.1:9", "api_key_env = \"NO_SUCH_KEY\"\n");
    place.write("picofleet.toml", &format!("{file}[defaults]\nmodel = \"acme/m\"\n"));
    for command in [&["run", "hello"][..], &["run", "--json", "hello"], &["chat"]] {
        let refused = place.run(command).await;
        assert!(refused.code == Some(64) && refused.out.is_empty() && refused.err.contains("NO_SUCH_KEY"), "{command:?}: {refused:?}");
        assert!(!place.path("picofleet.db").exists() && !place.path("workspace").exists());
    }
    // Of a session that goes on, too: nothing is said to it.
    let other = session(place.run(&["run", "hello", "--model", "scripted/demo"]).await);
    let before = sessions(&place, &[]).await;
    let refused = place.run(&["run", "more", "--continue", "--model", "acme/m"]).await.with(64);
    assert!(refused.contains("the model acme/m can't be asked"), "{refused}");
    assert_eq!(sessions(&place, &[]).await, before, "{other}");
    place.set("PICOFLEET_DEFAULTS__MODEL", "scripted/demo");
    place.run(&["run", "more", "--continue"]).await.with(0);
}

/// Whatever it is that fails: a session is there with its input, or not at all.
#[tokio::test]
async fn a_run_that_fails_before_its_input_leaves_no_session() {
    let _runs = RUNS.read().await;
    let (mut empty, mut at) = (0, 0);
    loop {
        at += 1;
        let place = Place::scripted(ANSWERS);
        let made = place.run(&["run", "hello", "--store", "s.db"]).await;
        assert_eq!(sessions(&place, &["--store", "s.db"]).await.len(), 1, "{made:?}");
        let faults = [("FAULTFS_MATCH", "s.db-wal"), ("FAULTFS_DO", "eio-once"), ("FAULTFS_AT", &at.to_string())];
        let ended = with_faults(&place, &["run", "hello", "--store", "s.db"], &faults).await;
        let listed = sessions(&place, &["--store", "s.db"]).await;
        assert!(listed.iter().all(|session| member(session, "firstInput") == "hello"), "call {at}: {ended:?}: {listed:?}");
        if listed.len() == 2 {
            break;
        }
        assert_ne!(ended.code, Some(0), "{ended:?}");
        empty += 1;
    }
    assert!(empty > 2, "no call failed before the input");
}

#[tokio::test]
async fn a_chat_that_was_left_at_once_is_nothing_to_go_on_with() {
    let _runs = RUNS.read().await;
    let place = Place::scripted(ANSWERS);
    let only = place.run(&["chat"]).await.with(0);
    assert!(only.contains("go on with: picofleet chat"), "{only}");
    let none = place.run(&["run", "more", "--continue"]).await.with(64);
    assert!(none.contains("there is no session in sqlite:./picofleet.db yet"), "{none}");
    let said = session(place.run(&["run", "hello"]).await);
    later().await;
    place.run(&["chat"]).await.with(0);
    assert_eq!(session(place.run(&["run", "more", "--continue"]).await), said);
}

#[tokio::test]
async fn a_prompt_comes_from_standard_input_and_remarks_go_elsewhere() {
    let _runs = RUNS.read().await;
    let place = Place::scripted(ANSWERS);
    let mut ends = Vec::new();
    for bytes in [&b"a long\nquestion\n"[..], b"", b"\xff\n"] {
        let mut child = place.command(&["run", "-"]).stdin(Stdio::piped()).spawn().unwrap();
        // One that refuses need not read all.
        let _ = child.stdin.take().unwrap().write_all(bytes).await;
        ends.push(Ended::of(child).await);
    }
    let [said, empty, no_text] = ends.try_into().unwrap();
    assert_eq!((said.code, said.out.as_str()), (Some(0), "an answer\n"), "{said:?}");
    assert!(said.err.contains("tokens in") && said.err.contains("; session "), "{said:?}");
    assert_eq!(member(&sessions(&place, &[]).await[0], "firstInput"), "a long question");
    assert!(empty.with(64).contains("is empty") && no_text.with(64).contains("not UTF-8 from byte 0 on"));
    assert_eq!(sessions(&place, &[]).await.len(), 1);

    let json = place.run(&["run", "-o", "json", "hello"]).await;
    let result: Json = json.out.lines().last().unwrap().parse().unwrap();
    assert_eq!((member(&result, "type"), member(&result, "text")), ("result".to_owned(), "an answer".to_owned()), "{json:?}");
    let idle = place.run(&["run", "--continue"]).await;
    assert!(idle.code == Some(0) && idle.out.is_empty() && idle.err.contains("nothing was left to do in session"), "{idle:?}");
}

/// Whoever names a store looks at it, whatever is wrong with the models of the configuration.
#[tokio::test]
async fn a_named_store_is_looked_at_without_a_configuration() {
    let _runs = RUNS.read().await;
    let place = Place::scripted(ANSWERS);
    let id = session(place.run(&["run", "hello"]).await);
    place.write("picofleet.toml", "[defaults]\nmodel = \"none/such\"\n");
    for command in [&["inspect"][..], &["doctor"], &["export", &id, "a.jsonl"], &["backup", "b.db"]] {
        place.run(command).await.with(64);
        place.run(&[command, &["--store", "picofleet.db"]].concat()).await.with(0);
    }
}

#[tokio::test]
async fn what_is_no_store_is_left_as_it_was() {
    let _runs = RUNS.read().await;
    let place = Place::scripted(ANSWERS);
    place.write("empty.db", "");
    for folder in ["text", "full"] {
        std::fs::create_dir(place.path(folder)).unwrap();
    }
    place.write("text/notes", "some text\n");
    place.write("full/notes", "some text\n");
    rusqlite::Connection::open(place.path("text/other.db")).unwrap().execute_batch("CREATE TABLE t (x)").unwrap();
    let here = |folder: &str| std::fs::read_dir(place.path(folder)).unwrap().count();
    for (store, why) in [
        ("text/notes", "text/notes is no SQLite database; name another file"),
        ("text/other.db", "text/other.db is a database of another application"),
        ("text", "text is a directory; name a file in it, or write jsonl:text"),
        ("jsonl:full", "full is no store and not empty"),
        ("jsonl:text/notes", "text/notes is no directory"),
        ("nowhere/a.db", "there is no directory nowhere; make it"),
        ("empty.db", "empty.db is empty, and no store is"),
        ("pg://h/d", "no store has such a URL; use sqlite:PATH, jsonl:DIR, postgres://USER@HOST/DATABASE or memory:"),
        ("s3://h/d", "no store has such a URL"),
    ] {
        let refused = place.run(&["run", "hello", "--store", store]).await.with(64);
        assert!(refused.contains(why), "{store}: {refused}");
        assert_eq!((here("text"), here("full")), (2, 1), "{store}: something was made");
        if store.contains("text") || store.contains("://") {
            let looked = place.run(&["inspect", "--store", store]).await.with(64);
            assert!(looked.contains(why), "{store}: {looked}");
        }
    }
    let missing = place.run(&["run", "--continue", "--store", "none.db"]).await.with(64);
    assert!(missing.contains("there is no session in sqlite:none.db yet"), "{missing}");
    let missing = place.run(&["inspect", "--store", "jsonl:none"]).await.with(1);
    assert!(missing.contains("none does not exist; name another store"), "{missing}");
    for name in ["workspace", "empty.db-lock", "none.db", "none.db-lock", "none"] {
        assert!(!place.path(name).exists(), "{name}");
    }
}

/// The program as somebody who owns nothing; root reads and writes what it likes.
fn as_another(place: &Place, arguments: &[&str]) -> tokio::process::Command {
    let mut command = place.command(arguments);
    if rustix::process::geteuid().is_root() {
        command.uid(54_321).gid(54_322);
    }
    command
}

async fn ended(mut command: tokio::process::Command) -> Ended {
    Ended::of(command.spawn().unwrap()).await
}

/// Sets the rights of a folder and what is in it.
fn rights(place: &Place, folder: &str, own: u32, files: u32) {
    let set = |path: std::path::PathBuf, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    std::fs::read_dir(place.path(folder)).unwrap().for_each(|entry| set(entry.unwrap().path(), files));
    set(place.path(folder), own);
}

/// Neither the log nor its index can be made where nothing can be written, and neither is needed of a store that nobody has open.
#[tokio::test]
async fn a_store_that_can_not_be_written_is_looked_at() {
    let _runs = RUNS.read().await;
    let place = Place::scripted(ANSWERS);
    std::fs::set_permissions(place.path("."), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::create_dir(place.path("a %?folder")).unwrap();
    let store = "a %?folder/s.db";
    let id = session(place.run(&["run", "hello", "--store", store]).await);
    rights(&place, "a %?folder", 0o555, 0o444);
    for command in [&["inspect"][..], &["inspect", &id], &["doctor"], &["export", &id]] {
        let looked = ended(as_another(&place, &[command, &["--store", store]].concat())).await;
        assert_eq!(looked.code, Some(0), "{command:?}: {looked:?}");
    }
    let refused = ended(as_another(&place, &["run", "hello", "--store", store])).await.with(1);
    assert!(refused.contains("s.db can't be written by user ") && refused.contains("give that user the right to write"), "{refused}");
    // A log with commits can't be left out.
    rights(&place, "a %?folder", 0o755, 0o644);
    std::fs::write(place.path("a %?folder/s.db-wal"), "commits").unwrap();
    let _ = std::fs::remove_file(place.path("a %?folder/s.db-shm"));
    rights(&place, "a %?folder", 0o555, 0o444);
    let log = ended(as_another(&place, &["inspect", "--store", store])).await.with(1);
    assert!(log.contains("has commits in its log") && log.contains("copy both files to a folder that is"), "{log}");
    rights(&place, "a %?folder", 0o755, 0o000);
    let unread = ended(as_another(&place, &["inspect", "--store", store])).await.with(1);
    assert!(unread.contains("s.db can't be read by user ") && !unread.contains("read-only"), "{unread}");
}

#[tokio::test]
async fn errors_are_json_where_json_is_asked_for() {
    let place = Place::new();
    for arguments in [&["-o", "json", "inspect"][..], &["inspect", "-o", "json"], &["--output=json", "backup"], &["nonsense", "-ojson"]] {
        let failed = place.run(arguments).await;
        let told: Json = failed.err.parse().unwrap_or_else(|error| panic!("{error}: {failed:?}"));
        assert!(!member(&told, "error").is_empty() && !member(&told, "error").starts_with("error"), "{failed:?}");
        assert_eq!(told.get("exitCode").and_then(Json::as_i64), failed.code.map(i64::from), "{failed:?}");
    }
    assert!(place.run(&["chat", "-o", "json"]).await.with(64).contains("chat has no JSON output"));
    assert_eq!(place.run(&["-o", "json", "config", "check"]).await.out, "{\"file\":null,\"providers\":0,\"models\":0}\n");
}

/// The runtime panics where it can't open what it needs.
#[tokio::test]
async fn too_few_files_are_told() {
    let place = Place::new();
    let program = env!("CARGO_BIN_EXE_picofleet");
    let mut shell = tokio::process::Command::new("sh");
    shell.args(["-c", "ulimit -n 6; exec \"$0\" config show", program]).current_dir(place.path("."));
    let output = soon("the program", shell.output()).await.unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.starts_with("error: this process may open too few files: its limit is 6") && text.contains("ulimit -n 1024"), "{text}");
}
