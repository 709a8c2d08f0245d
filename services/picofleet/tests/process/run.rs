//! `run`: stores, sessions, defaults and tools.

use crate::place::{Ended, Place, RUNS};
use crate::server::{APIS, Manner, Server, acme};

/// Answers prompts with text, and the word `files` with a call of `bash` first.
const CALLS: &str = r#"
turns = [
    { when = { user = "files", turn = 0 }, blocks = [{ type = "toolCall", name = "bash", arguments = { command = "echo from-the-tool; echo once >> count" } }] },
    { when = { user = "files", turn = 2 }, blocks = [{ type = "toolCall", name = "bash", arguments = { command = "echo from-the-tool; echo once >> count" } }] },
    { when = { user = "files", turn = 4 }, blocks = [{ type = "toolCall", name = "bash", arguments = { command = "echo from-the-tool; echo once >> count" } }] },
    { when = { turn = 0 }, blocks = [{ type = "text", chunks = ["first answer"] }] },
    { when = { turn = 1 }, blocks = [{ type = "text", chunks = ["second answer"] }] },
    { when = {}, blocks = [{ type = "text", chunks = ["third answer"] }] },
]
"#;

/// The id of the session that a run ended with.
fn session(text: &str) -> String {
    text.split_once("; session ").unwrap().1.split(']').next().unwrap().to_owned()
}

#[tokio::test]
async fn the_configured_store_is_used_and_the_command_line_wins() {
    let _runs = RUNS.read().await;
    let mut place = Place::scripted(CALLS);
    place.set("PICOFLEET_STORAGE__URL", "sqlite:sessions.db");
    let first = place.run(&["run", "hello"]).await.with(0);
    assert!(first.contains("first answer"), "{first}");
    assert!(place.path("sessions.db").exists() && !place.path("picofleet.db").exists());

    // The session is found there, by its id and as the newest one.
    let id = session(&first);
    let second = place.run(&["run", "more", "--session", &id]).await.with(0);
    assert!(second.contains("second answer") && session(&second) == id, "{second}");
    let third = place.run(&["run", "more", "--continue"]).await.with(0);
    assert!(third.contains("third answer") && session(&third) == id, "{third}");

    let other = place.run(&["run", "hello", "--store", "other.db"]).await.with(0);
    assert!(other.contains("first answer") && session(&other) != id && place.path("other.db").exists(), "{other}");
    let missing = place.run(&["run", "more", "--session", &id, "--store", "other.db"]).await.with(64);
    assert!(missing.contains(&format!("there is no session {id} in sqlite:other.db")), "{missing}");
    let empty = place.run(&["run", "--continue", "--store", "empty.db"]).await.with(64);
    assert!(empty.contains("there is no session in sqlite:empty.db yet"), "{empty}");
}

#[tokio::test]
async fn a_new_session_is_the_one_that_goes_on() {
    let _runs = RUNS.read().await;
    let place = Place::scripted(CALLS);
    let first = session(&place.run(&["run", "hello"]).await.with(0));
    let second = session(&place.run(&["run", "hello"]).await.with(0));
    assert_ne!(first, second);
    assert_eq!(session(&place.run(&["run", "more", "--continue"]).await.with(0)), second);
    let both = place.run(&["run", "x", "--continue", "--session", &first]).await.with(64);
    assert!(both.contains("cannot be used with"), "{both}");
}

#[tokio::test]
async fn memory_keeps_nothing() {
    let _runs = RUNS.read().await;
    let mut place = Place::scripted(CALLS);
    place.set("PICOFLEET_STORAGE__URL", "memory:");
    assert!(place.run(&["run", "hello"]).await.with(0).contains("first answer"));
    let gone = place.run(&["run", "--continue"]).await.with(64);
    assert!(gone.contains("there is no session in memory: yet"), "{gone}");
    assert!(!place.path("picofleet.db").exists());
}

#[tokio::test]
async fn a_store_is_named_as_elsewhere() {
    let _runs = RUNS.read().await;
    let place = Place::scripted(CALLS);
    let id = session(&place.run(&["run", "hello", "--store", "jsonl:lines"]).await.with(0));
    assert!(place.read(&format!("lines/{id}/main.jsonl")).contains("first answer"));
    let more = place.run(&["run", "more", "--session", &id, "--store", "jsonl:lines"]).await.with(0);
    assert!(more.contains("second answer") && !place.path("picofleet.db").exists(), "{more}");
    let wrong = place.run(&["run", "hello", "--store", "postgres://x"]).await.with(64);
    assert!(wrong.contains("the URL of a database is"), "{wrong}");
}

#[tokio::test]
async fn a_directory_of_json_lines_keeps_a_session() {
    let _runs = RUNS.read().await;
    let mut place = Place::scripted(CALLS);
    place.set("PICOFLEET_STORAGE__URL", "jsonl:sessions");
    let id = session(&place.run(&["run", "hello"]).await.with(0));
    assert!(place.read(&format!("sessions/{id}/main.jsonl")).contains("first answer"));
    let more = place.run(&["run", "more", "--continue"]).await.with(0);
    assert!(session(&more) == id && !place.path("picofleet.db").exists(), "{more}");
}

#[tokio::test]
async fn tools_are_those_that_are_named() {
    let _runs = RUNS.read().await;
    let place = Place::scripted(CALLS);
    let all = place.run(&["run", "files"]).await.with(0);
    assert_eq!(all.matches("from-the-tool").count(), 2, "the call and its output: {all}");
    assert_eq!(place.read("workspace/count"), "once\n");

    let without = place.run(&["run", "files", "--tools", "read,edit"]).await.with(0);
    assert!(!without.contains("\nfrom-the-tool"), "{without}");
    assert_eq!(place.read("workspace/count"), "once\n");
    // It stays so where the session goes on, until tools are named again.
    place.run(&["run", "files", "--continue"]).await.with(0);
    assert_eq!(place.read("workspace/count"), "once\n");
    place.run(&["run", "files", "--continue", "--tools", "bash"]).await.with(0);
    assert_eq!(place.read("workspace/count"), "once\nonce\n");

    let unknown = place.run(&["run", "files", "--tools", "read,telnet"]).await.with(64);
    assert!(unknown.contains("there is no tool \"telnet\"; there are: read, bash, edit, write"), "{unknown}");
}

#[tokio::test]
async fn tools_work_in_the_workspace_of_the_configuration_or_the_command_line() {
    let _runs = RUNS.read().await;
    let mut place = Place::scripted(CALLS);
    place.set("PICOFLEET_TOOLS__WORKSPACE", "configured");
    place.run(&["run", "files"]).await.with(0);
    assert_eq!(place.read("configured/count"), "once\n");
    place.run(&["run", "files", "--workspace", "named"]).await.with(0);
    assert_eq!((place.read("configured/count"), place.read("named/count")), ("once\n".to_owned(), "once\n".to_owned()));
}

/// The level goes out with the request; a conversation keeps its own when the default changes.
#[tokio::test]
async fn a_new_conversation_thinks_as_much_as_the_defaults_say() {
    let _runs = RUNS.read().await;
    let server = Server::start(APIS[0], Manner::Talks).await;
    let mut place = Place::new();
    let file = acme(APIS[0], &format!("http://127.0.0.1:{}", server.port), "http = { environment_proxies = false }\n");
    place.write("picofleet.toml", &format!("{file}[defaults]\nmodel = \"acme/m\"\nthinking_level = \"high\"\n"));
    let first = place.run(&["run", "hello"]).await.with(0);
    place.set("PICOFLEET_DEFAULTS__THINKING_LEVEL", "low");
    place.run(&["run", "more", "--continue"]).await.with(0);
    place.run(&["run", "hello"]).await.with(0);
    place.set("PICOFLEET_DEFAULTS__THINKING_LEVEL", "off");
    place.run(&["run", "hello"]).await.with(0);
    let received = server.received();
    let effort = |body: &str| Some(body.split_once("\"reasoning_effort\":\"")?.1.split('"').next()?.to_owned());
    let efforts: Vec<Option<String>> = received.iter().map(|request| effort(&request.body)).collect();
    let expected = [Some("high"), Some("high"), Some("low"), None].map(|effort| effort.map(str::to_owned));
    assert_eq!(efforts, expected, "{first}");
}

#[tokio::test]
async fn the_model_is_the_named_one_and_stays() {
    let _runs = RUNS.read().await;
    let place = Place::scripted(CALLS);
    let named = place.run(&["run", "hello", "--model", "scripted/demo"]).await.with(0);
    assert!(named.contains("I am the scripted provider"), "{named}");
    let stays = place.run(&["run", "again", "--continue"]).await.with(0);
    assert!(stays.contains("My script is over"), "{stays}");
    for (model, expected) in [("s/other", "there is no model s/other"), ("m", "\"m\" is no PROVIDER/MODEL")] {
        assert!(place.run(&["run", "x", "--model", model]).await.with(64).contains(expected));
    }
}

#[tokio::test]
async fn a_failed_answer_has_an_exit_code_of_its_own() {
    let _runs = RUNS.read().await;
    let place = Place::scripted("[[turns]]\nerror = \"400 no such thing\"\n");
    let failed = place.run(&["run", "hello"]).await.with(1);
    assert!(failed.contains("unanswered") && failed.contains("400 no such thing"), "{failed}");
}

/// What a model, a server and a tool say is shown; the terminal obeys none of it.
#[tokio::test]
async fn escape_sequences_are_shown_and_not_obeyed() {
    let _runs = RUNS.read().await;
    let place = Place::scripted(
        r#"
[[turns]]
blocks = [
    { type = "thinking", chunks = ["a \u001b[2Jthought"] },
    { type = "text", chunks = ["two\n\tlines \u001b]0;title\u0007 here"] },
    { type = "toolCall", name = "ba\u001b[1m\nsh", arguments = {} },
    { type = "toolCall", name = "bash", arguments = { command = "true", note = "\u009b2J" } },
    { type = "toolCall", name = "read", arguments = { path = "colors" } },
]
[[turns]]
error = "400 no \u001b[31msuch\nthing"
"#,
    );
    std::fs::create_dir(place.path("workspace")).unwrap();
    place.write("workspace/colors", "from \x1b[31ma file\n");
    let ended = place.run(&["run", "hello"]).await;
    assert!(ended.err.contains("400 no \\u{1b}[31msuch\\nthing"), "{ended:?}");
    let text = ended.with(1);
    for shown in
        ["a \\u{1b}[2Jthought", "two\n\tlines \\u{1b}]0;title\\u{7} here", "* ba\\u{1b}[1m\\nsh {}", "from \\u{1b}[31ma file", "\\u{9b}2J"]
    {
        assert!(text.contains(shown), "no {shown:?} in {text}");
    }
    assert!(text.chars().all(|c| matches!(c, '\n' | '\t') || !c.is_control()), "{text:?}");
}

/// Each line of an output as JSON.
fn lines(text: &str) -> Vec<picofleet_session::Json> {
    text.lines().map(|line| line.parse().unwrap_or_else(|error| panic!("{line:?}: {error}"))).collect()
}

#[tokio::test]
async fn json_lines_tell_the_whole_run() {
    let _runs = RUNS.read().await;
    let place = Place::scripted(CALLS);
    let ended = place.run(&["run", "--json", "files"]).await;
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    let lines = lines(&ended.out);
    let types: Vec<String> = lines.iter().map(|line| line.get("type").unwrap().as_str().unwrap().into_owned()).collect();
    assert_eq!(types[..2], ["session", "snapshot"]);
    assert_eq!(types.iter().filter(|name| *name == "tool_execution_start").count(), 1, "{types:?}");
    for name in ["run_start", "turn_start", "message_start", "message_end", "tool_execution_end", "run_end", "submission", "usage_changed"]
    {
        assert!(types.iter().any(|other| other == name), "{name} is missing in {types:?}");
    }
    let result = lines.last().unwrap();
    let status = result.get("submission").and_then(|record| record.get("status")).unwrap();
    assert_eq!((types.last().unwrap().as_str(), status.as_str().unwrap().as_ref()), ("result", "done"));
    assert_eq!(lines[0].get("session"), result.get("session"));

    assert_eq!(result.get("error"), None);

    let wrong = place.run(&["run", "--json", "--tools", "", "x", "--store", "other.db"]).await;
    assert_eq!((wrong.code, wrong.out.as_str()), (Some(64), ""), "{wrong:?}");
}

/// The last line of JSON lines, which tells that there is no answer.
#[track_caller]
fn unanswered(ended: &Ended) -> picofleet_session::Json {
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let result = lines(&ended.out).pop().unwrap();
    assert_eq!(result.get("type").unwrap().as_str().unwrap(), "result");
    let error = result.get("error").unwrap().as_str().unwrap().into_owned();
    assert!(error.starts_with("unanswered") && error.contains("400 no such thing"), "{error}");
    assert!(ended.err.contains(&error), "{ended:?}");
    result
}

#[tokio::test]
async fn a_failed_answer_is_in_the_result_and_in_the_exit_code() {
    let _runs = RUNS.read().await;
    let place = Place::scripted("[[turns]]\nerror = \"400 no such thing\"\n");
    let result = unanswered(&place.run(&["run", "--json", "hello"]).await);
    let status = result.get("submission").and_then(|record| record.get("status")).unwrap();
    assert_eq!(status.as_str().unwrap(), "unanswered");
}

/// Unfinished work has no submission that tells how it ended.
#[tokio::test]
async fn a_failed_answer_of_unfinished_work_is_so_too() {
    let _alone = RUNS.write().await;
    let place = Place::scripted(
        r#"
[[turns]]
blocks = [{ type = "toolCall", name = "bash", arguments = { command = "echo begun; sleep 600" } }]
[[turns]]
error = "400 no such thing"
"#,
    );
    for form in [&["run", "--continue", "--json"][..], &["run", "--continue"]] {
        let mut run = place.start(&["run", "hello"]);
        run.until("begun\n").await;
        run.kill().await;
        let ended = place.run(form).await;
        if form.contains(&"--json") {
            assert_eq!(unanswered(&ended).get("submission"), None);
        }
        assert!(ended.err.contains("unanswered: 400 no such thing"), "{ended:?}");
        assert_eq!(ended.code, Some(1));
    }
}
