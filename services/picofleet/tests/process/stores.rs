//! `export`, `import`, `backup`, `inspect` and `doctor`: what they print, and what they leave alone.

use std::path::PathBuf;

use tokio::io::AsyncWriteExt as _;

use crate::place::{Ended, Place, RUNS, soon};

const CALLS: &str = r#"
turns = [
    { when = { turn = 0 }, blocks = [{ type = "toolCall", name = "bash", arguments = { command = "echo from-the-tool" } }] },
    { when = {}, blocks = [{ type = "text", chunks = ["an answer \u001b[2J"] }] },
]
"#;

/// A place with a store that has one session.
async fn place() -> (Place, String) {
    let _runs = RUNS.read().await;
    let place = Place::scripted(CALLS);
    let text = place.run(&["run", "hello"]).await.with(0);
    let session = text.split_once("; session ").unwrap().1.split(']').next().unwrap().to_owned();
    (place, session)
}

/// What a command printed as data, if it ended well.
async fn data(place: &Place, arguments: &[&str]) -> String {
    let ended = place.run(arguments).await;
    assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
    ended.out
}

fn sealed(place: &Place) -> Vec<u8> {
    std::fs::read(place.path("picofleet.db")).unwrap()
}

/// A session that moves through all stores is the same lines everywhere; only its id is new where it is not kept.
#[tokio::test]
async fn a_session_moves_between_stores() {
    let (place, id) = place().await;
    let lines = data(&place, &["export", &id]).await;
    let first = lines.lines().next().unwrap();
    assert!(first.starts_with(r#"{"type":"session","format":1"#) && lines.ends_with("\"}\n"), "{lines}");
    assert!(lines.lines().last().unwrap().starts_with(r#"{"type":"end","count":"#), "{lines}");

    let to_file = place.run(&["export", &id, "a.jsonl"]).await;
    assert_eq!((to_file.code, to_file.out.as_str()), (Some(0), ""), "{to_file:?}");
    assert!(to_file.err.contains("SHA-256"), "{to_file:?}");
    let sha256 = to_file.err.trim_end().rsplit(' ').next().unwrap();
    let json = place.run(&["export", &id, "a.jsonl", "--force", "-o", "json"]).await;
    let count = lines.lines().count() - 1;
    let expected = format!("{{\"session\":\"{id}\",\"file\":\"a.jsonl\",\"lines\":{count},\"sha256\":\"{sha256}\"}}\n");
    assert_eq!((json.code, json.out, json.err), (Some(0), expected, String::new()));
    place.run(&["export", &id, "-o", "json"]).await.with(64);
    assert_eq!(place.read("a.jsonl"), lines);
    let again = place.run(&["export", &id, "a.jsonl"]).await.with(64);
    assert!(again.contains("a.jsonl is there already") && again.contains("--force"), "{again}");
    place.run(&["export", &id, "a.jsonl", "--force"]).await.with(0);

    for store in ["jsonl:lines", "sqlite:b.db", "c.db"] {
        let imported = data(&place, &["import", "a.jsonl", "--keep-id", "--store", store]).await;
        assert_eq!(imported.trim(), id);
        assert_eq!(data(&place, &["export", &id, "--store", store]).await, lines, "{store}");
        let twice = place.run(&["import", "a.jsonl", "--keep-id", "--store", store]).await.with(64);
        assert!(
            twice.contains(&format!("session {id} exists already")) && twice.contains("import into another store with --store"),
            "{twice}"
        );
    }
    let new = data(&place, &["import", "a.jsonl", "-o", "json"]).await;
    assert!(new.starts_with("{\"session\":\"") && !new.contains(&id), "{new}");
    assert_eq!(data(&place, &["inspect"]).await.lines().count(), 3, "a heading and two sessions");
    for format in ["table", "json"] {
        let some = place.run(&["inspect", "--limit", "1", "-o", format]).await;
        assert!(some.code == Some(0) && some.err.contains("there are 2, and these are the 1 that were used last"), "{some:?}");
        assert_eq!(place.run(&["inspect", "--limit", "2", "-o", format]).await.err, "");
    }

    // An imported session goes on.
    let _runs = RUNS.read().await;
    let more = place.run(&["run", "more", "--store", "c.db", "--continue"]).await.with(0);
    assert!(more.contains("an answer"), "{more}");
}

#[tokio::test]
async fn an_import_reads_standard_input() {
    let (place, id) = place().await;
    let lines = data(&place, &["export", &id]).await;
    let mut command = place.command(&["import", "-", "--store", "b.db", "--keep-id"]);
    command.stdin(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).await.unwrap();
    let output = soon("the import", child.wait_with_output()).await.unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), id);
}

/// A file that is not as it was exported is refused with its line and what to do, and leaves no session.
#[tokio::test]
async fn a_damaged_file_is_refused_with_its_line() {
    let (place, id) = place().await;
    let lines = data(&place, &["export", &id]).await;
    let all: Vec<&str> = lines.lines().collect();
    let joined = |lines: &[&str]| format!("{}\n", lines.join("\n"));
    let changed = |from: &str, to: &str| lines.replacen(from, to, 1);
    let doubled = [&all[..3], &all[2..]].concat();
    let swapped = [&all[..1], &[all[2], all[1]], &all[3..]].concat();
    let count = all.len();
    let cases = [
        ("truncated", joined(&all[..count - 3]), count - 2, "ends here without its last line"),
        ("cut in a line", lines[..lines.len() - 40].to_owned(), count, ""),
        ("doubled", joined(&doubled), 4, "not above the one before"),
        ("reordered", joined(&swapped), 3, "out of order"),
        ("unknown", changed("{\"type\":\"conversation\"", "{\"type\":\"conversation\",\"x\":1"), 2, "unknown"),
        ("another type", changed("\"type\":\"conversation\"", "\"type\":\"other\""), 2, "no type of an exported line"),
        ("forged", changed("from-the-tool", "from-somebody"), count, "SHA-256"),
        ("more behind it", format!("{lines}{}\n", all[1]), count + 1, "after the end"),
        ("no export", "hello\n".to_owned(), 1, ""),
        ("empty", String::new(), 1, "without its last line"),
    ];
    for (what, text, line, why) in cases {
        place.write("damaged.jsonl", &text);
        for store in ["jsonl:lines", "b.db"] {
            let refused = place.run(&["import", "damaged.jsonl", "--store", store]).await.with(1);
            assert!(refused.contains(&format!("error: line {line} of damaged.jsonl: ")), "{what}: {refused}");
            assert!(refused.contains(why) && refused.contains("nothing was imported; take the file as"), "{what}: {refused}");
            let left = place.run(&["inspect", "--store", store]).await.with(0);
            assert!(left.contains("there is no session"), "{what}: {left}");
            let healthy = place.run(&["doctor", "--store", store, "-o", "json"]).await.with(0);
            assert!(healthy.contains("\"notes\":[]"), "{what}: rows were left: {healthy}");
        }
    }
}

/// A store that another process has open is exported, copied, inspected and examined, and not disturbed.
#[tokio::test]
async fn a_store_in_use_is_looked_at() {
    let _runs = RUNS.read().await;
    for url in ["sqlite:picofleet.db", "jsonl:lines"] {
        let mut place = Place::scripted(
            "[[turns]]\nblocks = [{ type = \"toolCall\", name = \"bash\", arguments = { command = \"echo begun; while ! test -e go; do sleep 0.05; done\" } }]\n\
             [[turns]]\nblocks = [{ type = \"text\", chunks = [\"an answer\"] }]\n",
        );
        place.set("PICOFLEET_STORAGE__URL", url);
        let mut run = place.start(&["run", "hello"]);
        run.until("begun").await;
        let list = data(&place, &["inspect", "-o", "json"]).await;
        let id = list.split_once("\"id\":\"").unwrap().1.split('"').next().unwrap().to_owned();
        let tree = data(&place, &["inspect", &id]).await;
        assert!(tree.contains("pi.generation: waiting: waits for task ") && tree.contains("pi.tool: running"), "{tree}");
        assert!(tree.contains("input: placed"), "{tree}");
        let task = tree.split_once("task ").unwrap().1.split(' ').next().unwrap().to_owned();
        let why = data(&place, &["inspect", &id, &task, "-o", "json"]).await;
        assert!(why.contains(r#""type":"task","state":{"kind":"waiting","on":["#) && why.contains("\"why\":\"waits for task "), "{why}");
        place.run(&["doctor"]).await.with(0);
        place.run(&["export", &id, "busy.jsonl"]).await.with(0);
        place.run(&["import", "busy.jsonl", "--store", "b.db", "--keep-id"]).await.with(0);
        assert_eq!(data(&place, &["export", &id, "--store", "b.db"]).await, place.read("busy.jsonl"));
        let backup = place.run(&["backup", "copy.db"]).await;
        if url.starts_with("sqlite") {
            backup.with(0);
            assert_eq!(
                data(&place, &["export", &id, "--store", "copy.db"]).await.lines().count(),
                place.read("busy.jsonl").lines().count()
            );
            assert!(place.run(&["backup", "copy.db"]).await.with(64).contains("is there already"));
        } else {
            assert!(backup.with(64).contains("only a SQLite store can be copied"));
        }
        let busy = place.run(&["import", "busy.jsonl"]).await.with(1);
        assert!(busy.contains("is in use by another process"), "{busy}");
        place.write("workspace/go", "");
        let ended = run.end().await.with(0);
        assert!(ended.contains("an answer"), "{ended}");
    }
}

#[tokio::test]
async fn a_session_and_its_records_are_shown() {
    let (place, id) = place().await;
    let before = sealed(&place);
    let tree = data(&place, &["inspect", &id, "--all"]).await;
    assert!(tree.contains("conversation 1\n  entry ") && tree.contains("pi.generation: over: completed\n    task "), "{tree}");
    let lines = data(&place, &["export", &id]).await;
    let entry = lines.lines().find(|line| line.contains("an answer")).unwrap();
    let number = entry.split_once("\"id\":").unwrap().1.split(',').next().unwrap();
    let shown = data(&place, &["inspect", &id, number]).await;
    assert!(shown.starts_with(&format!("entry {number}\nmade by commit ")) && shown.contains("an answer \\u001b[2J"), "{shown}");
    let json = data(&place, &["inspect", &id, number, "-o", "json"]).await;
    assert!(json.starts_with("{\"type\":\"entry\",\"seq\":") && json.contains("\"record\":{\"id\":"), "{json}");
    for (arguments, expected) in [
        (&["inspect", "01a230b8-1e0a-749a-a7c4-da671269cb4b"][..], "there is no session"),
        (&["inspect", &id, "999999"], "has no record 999999"),
        (&["inspect", &id, "0"], "0 is no number of a record"),
        (&["inspect", "nothing"], "invalid value 'nothing'"),
        (&["inspect", "--store", "memory:"], "gone with the process"),
        (&["inspect", "--store", "postgres://h"], "the URL of a database is"),
        (&["export", "01a230b8-1e0a-749a-a7c4-da671269cb4b"], "there is no session"),
    ] {
        let wrong = place.run(arguments).await;
        assert!(wrong.code == Some(64) && wrong.out.is_empty() && wrong.err.contains(expected), "{arguments:?}: {wrong:?}");
    }
    let missing = place.run(&["inspect", "--store", "none.db"]).await.with(1);
    assert!(missing.contains("none.db does not exist") && !place.path("none.db").exists(), "{missing}");
    assert!(sealed(&place) == before, "looking changed the store");
}

/// The doctor says what is wrong, what it means and what to do, and changes nothing.
#[tokio::test]
async fn the_doctor_finds_what_is_broken() {
    let (place, id) = place().await;
    let healthy = place.run(&["doctor"]).await;
    assert!(healthy.code == Some(0) && healthy.out.contains("1 sessions looked at, no findings"), "{healthy:?}");
    let path = place.path("picofleet.db");
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.execute_batch("UPDATE content SET body = replace(body, '\"totalTokens\":', '\"totalTokens\":9') WHERE document IN (SELECT id FROM document WHERE kind = 'pi.usage')").unwrap();
    connection.close().unwrap();
    let before = sealed(&place);
    let sick = place.run(&["doctor"]).await;
    assert!(sick.code == Some(1) && sick.err == "error: 1 finding in sqlite:./picofleet.db\n", "{sick:?}");
    let expected = format!("finding D3 in session {id}: conversation 1 counts ");
    assert!(sick.out.starts_with(&expected) && sick.out.contains("\n  means: ") && sick.out.contains("\n  to do: "), "{sick:?}");
    let json = place.run(&["doctor", "-o", "json"]).await;
    assert!(json.code == Some(1) && json.out.contains(&format!("\"findings\":[{{\"rule\":\"D3\",\"session\":\"{id}\"")), "{json:?}");
    assert!(sealed(&place) == before, "looking changed the store");
    assert!(!sick.out.contains('\x1b'));
}

/// A session of JSON lines whose files are damaged is a finding, asked for by its id, too.
#[tokio::test]
async fn the_doctor_finds_a_damaged_session_of_json_lines() {
    let (place, id) = place().await;
    place.run(&["export", &id, "a.jsonl"]).await.with(0);
    place.run(&["import", "a.jsonl", "--store", "jsonl:lines", "--keep-id"]).await.with(0);
    let whole = place.run(&["doctor", &id, "--store", "jsonl:lines"]).await.with(0);
    assert!(whole.contains("no findings"), "{whole}");
    let main = format!("lines/{id}/main.jsonl");
    place.write(&main, &place.read(&main).replacen("{", "[", 1));
    for arguments in [&["doctor", "--store", "jsonl:lines"][..], &["doctor", &id, "--store", "jsonl:lines"]] {
        let sick = place.run(arguments).await;
        assert!(sick.code == Some(1) && sick.err == "error: 1 finding in jsonl:lines\n", "{arguments:?}: {sick:?}");
        let expected = format!("finding files in session {id}: ");
        assert!(sick.out.starts_with(&expected) && sick.out.contains("\n  means: the files of this session"), "{arguments:?}: {sick:?}");
    }
    let other = place.run(&["doctor", "01a230b8-1e0a-749a-a7c4-da671269cb4b", "--store", "jsonl:lines"]).await.with(64);
    assert!(other.contains("there is no session"), "{other}");
}

/// The library that lets calls fail, beside this test or one above.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let mut places = test.ancestors().skip(1).take(2).map(|folder| folder.join("libpicofleet_faultfs.so"));
    places.find(|path| path.exists()).expect("the library of tests/faultfs is built with this test")
}

/// An export while calls on one file fail or end the process.
async fn faulty(place: &Place, id: &str, what: &str, at: usize) -> Ended {
    let faults = [("FAULTFS_MATCH", "full.jsonl"), ("FAULTFS_DO", what), ("FAULTFS_AT", &at.to_string())];
    with_faults(place, &["export", id, "full.jsonl"], &faults).await
}

pub(crate) async fn with_faults(place: &Place, arguments: &[&str], faults: &[(&str, &str)]) -> Ended {
    let mut command = place.command(arguments);
    command.env("LD_PRELOAD", library()).envs(faults.iter().copied());
    let output = soon("a command", command.output()).await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ended { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// Whatever write fails or ends the process: there is the whole file, or none of its name.
#[tokio::test]
async fn an_export_to_a_full_disk_leaves_no_file_that_looks_complete() {
    let (place, id) = place().await;
    let lines = data(&place, &["export", &id]).await;
    let file = place.path("full.jsonl");
    for what in ["enospc", "eio", "kill-half", "kill-before", "kill-after"] {
        let mut met = 0;
        for at in 1..20 {
            let ended = faulty(&place, &id, what, at).await;
            let left = place.path("").read_dir().unwrap().map(|entry| entry.unwrap().path());
            let parts: Vec<PathBuf> = left.filter(|path| path.extension().is_some_and(|name| name == "part")).collect();
            parts.iter().for_each(|path| std::fs::remove_file(path).unwrap());
            if ended.code == Some(0) {
                assert_eq!((place.read("full.jsonl") == lines, parts.len()), (true, 0), "{what} at {at}");
                std::fs::remove_file(&file).unwrap();
                break;
            }
            met += 1;
            if what.starts_with("kill") {
                assert_eq!(ended.code, None, "{what} at {at}: {ended:?}");
                // Where the name was given just before the kill, the file is whole.
                assert!(!file.exists() || place.read("full.jsonl") == lines, "{what} at {at}");
                let _ = std::fs::remove_file(&file);
                continue;
            }
            let why = if what == "enospc" { "No space left on device" } else { "Input/output error" };
            assert!(ended.code == Some(1) && ended.err.contains("the export was not written") && ended.err.contains(why), "{ended:?}");
            // A disk that fails does not remove a file either.
            assert!(!file.exists() && (parts.is_empty() || what == "eio"), "{what} at {at}: {parts:?}");
        }
        assert!(met >= 2, "{what}: only {met} calls were met");
    }
}

/// Once the file has its name, nobody says that it is as it was.
#[tokio::test]
async fn an_export_whose_folder_can_not_be_flushed_is_told_apart() {
    let (place, id) = place().await;
    std::fs::create_dir(place.path("out")).unwrap();
    let folder = place.path("out");
    // The file is flushed first, then its folder.
    let faults = [("FAULTFS_MATCH", folder.to_str().unwrap()), ("FAULTFS_CALL", "fsync"), ("FAULTFS_DO", "eio"), ("FAULTFS_AT", "2")];
    let ended = with_faults(&place, &["export", &id, "out/a.jsonl"], &faults).await;
    assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""), "{ended:?}");
    assert!(ended.err.contains("out/a.jsonl has the whole export, but its folder out could not be flushed"), "{ended:?}");
    assert!(!ended.err.contains("as it was before"), "{ended:?}");
    assert_eq!(place.read("out/a.jsonl"), data(&place, &["export", &id]).await);
    assert_eq!(folder.read_dir().unwrap().count(), 1);
}

/// Where a loss of power is provided for, a sync that fails is told; otherwise there is none.
#[tokio::test]
async fn stores_are_synced_unless_that_is_switched_off() {
    let (mut place, id) = place().await;
    place.run(&["export", &id, "a.jsonl"]).await.with(0);
    for (fsync, code) in [(None, 1), (Some("true"), 1), (Some("false"), 0)] {
        fsync.into_iter().for_each(|fsync| place.set("PICOFLEET_STORAGE__FSYNC", fsync));
        let folder = format!("lines-{}", fsync.unwrap_or("default"));
        let faults = [("FAULTFS_MATCH", folder.as_str()), ("FAULTFS_CALL", "fsync"), ("FAULTFS_DO", "eio"), ("FAULTFS_AT", "1")];
        let store = format!("jsonl:{folder}");
        let ended = with_faults(&place, &["import", "a.jsonl", "--store", &store], &faults).await;
        assert_eq!(ended.code, Some(code), "{fsync:?}: {ended:?}");
    }
}
