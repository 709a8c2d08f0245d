//! `chat`, from a pipe and at a terminal.

use std::process::Stdio;

use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

use crate::place::{Ended, Place, RUNS, soon};
use crate::terminal::{Terminal, modes, send};

/// Answers by what was said last; `files` calls a tool first, `slow` waits.
pub(crate) const SCRIPT: &str = r#"
turns = [
    { when = { user = "slow", turn = 0 }, blocks = [{ type = "text", chunks = ["begun\n"] }, { type = "delay", ms = 600000 }] },
    { when = { user = "files", turn = 0 }, blocks = [{ type = "toolCall", name = "bash", arguments = { command = "echo from-the-tool" } }] },
    { when = { user = "wait", turn = 0 }, blocks = [{ type = "toolCall", name = "bash", arguments = { command = "echo waits; while ! test -e go; do sleep 0.05; done" } }] },
    { when = { user = "other way" }, blocks = [{ type = "text", chunks = ["went the other way"] }] },
    { when = { turn = 0 }, blocks = [{ type = "text", chunks = ["first ", "answer"] }] },
    { when = { turn = 1 }, blocks = [{ type = "text", chunks = ["second answer"] }] },
    { when = {}, blocks = [{ type = "text", chunks = ["later answer"] }] },
]
"#;

const HOSTILE: &str = r#"
[[turns]]
blocks = [
    { type = "thinking", chunks = ["a \u001b[2Jthought"] },
    { type = "text", chunks = ["two\n\tlines \u001b]0;title\u0007 here"] },
    { type = "toolCall", name = "ba\u001b[1m\nsh", arguments = {} },
    { type = "toolCall", name = "bash", arguments = { command = "printf 'printed \\033[7mby a tool\\n'", note = "\u009b2J" } },
]
[[turns]]
error = "400 no \u001b[31msuch\nthing"
"#;

/// Says lines, one after the other, and leaves at the end of them.
pub(crate) async fn piped(place: &Place, arguments: &[&str], lines: impl AsRef<[u8]>) -> Ended {
    let mut command = place.command(&[&["chat"], arguments].concat());
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_ref()).await.unwrap();
    Ended::of(child).await
}

/// Whether texts stand behind each other.
#[track_caller]
fn in_order(text: &str, parts: &[&str]) {
    let mut rest = text;
    for part in parts {
        rest = rest.split_once(part).unwrap_or_else(|| panic!("{part:?} does not come in {rest:?} of {text:?}")).1;
    }
}

#[tokio::test]
async fn lines_of_a_pipe_are_answered_one_by_one() {
    let _runs = RUNS.read().await;
    let place = Place::scripted(SCRIPT);
    let text = piped(&place, &[], "hello\n\nlist my files\n/tasks\n/usage\nmore").await.with(0);
    in_order(
        &text,
        &[
            "model s/m",
            "first answer\n",
            "second answer\n",
            "nothing is going on",
            "MODEL OR TOOL",
            "s/m",
            "later answer\n",
            "go on with: picofleet chat --session ",
        ],
    );
    assert!(!text.contains('\x1b') && !text.contains("> "), "{text:?}");
    // What was said last shows where it was left.
    let again = piped(&place, &["--continue"], "/quit\n").await.with(0);
    in_order(&again, &["list my files\n", "second answer\n", "more\n", "later answer\n", "go on with"]);
}

#[tokio::test]
async fn a_call_shows_its_output() {
    let _runs = RUNS.read().await;
    let text = piped(&Place::scripted(SCRIPT), &[], "files").await.with(0);
    in_order(&text, &["* bash {\"command\":\"echo from-the-tool\"}\n", "from-the-tool\n", "second answer\n"]);
}

#[tokio::test]
async fn commands_change_the_conversation() {
    let _runs = RUNS.read().await;
    let place = Place::scripted(SCRIPT);
    let lines = "/model\n/model s/none\n/model none\n/tools\n/tools read,write\n/tools nothing\n/tools none\n/nope\n/fork\nhello\n/fork\nmore\n/reset go on\n/compact the end\n/abort\n/help\n";
    let text = piped(&place, &[], lines).await.with(0);
    in_order(
        &text,
        &[
            "model s/m]",
            "there is no model s/none",
            "\"none\" is no PROVIDER/MODEL",
            "tools: read, bash, edit, write",
            "tools: read, write",
            "there is no tool \"nothing\"",
            "no tools",
            "there is no /nope",
            "there is nothing to fork yet",
            "first answer",
            "goes on from here",
            "second answer",
            "a new context begins here",
            "there is nothing to compact",
            "nothing runs",
            "/compact [FOCUS]",
        ],
    );
}

/// What a model, a server and a tool say is shown; the terminal obeys none of it.
#[tokio::test]
async fn escape_sequences_are_shown_and_not_obeyed() {
    let _runs = RUNS.read().await;
    let place = Place::scripted(HOSTILE);
    std::fs::create_dir(place.path("workspace")).unwrap();
    place.write("workspace/colors", "from \x1b[31ma file\n");
    let text = piped(&place, &[], "hello \x1b[2Jyou\n/\x1b[1mnope\n").await.with(0);
    let shown = [
        "a \\u{1b}[2Jthought",
        "two\n\tlines \\u{1b}]0;title\\u{7} here",
        "* ba\\u{1b}[1m\\nsh {}",
        "\\u{9b}2J",
        // The tool gives no escape sequence on.
        "printed [7mby a tool",
        "not answered, ",
        "400 no \\u{1b}[31msuch\\nthing",
        "there is no /\\u{1b}[1mnope",
    ];
    in_order(&text, &shown);
    // Also where it was left is shown so.
    let again = piped(&place, &["--continue"], "").await.with(0);
    assert!(again.contains("lines \\u{1b}]0;title\\u{7} here"), "{again}");
    for text in [text, again] {
        assert!(text.chars().all(|c| matches!(c, '\n' | '\t') || !c.is_control()), "{text:?}");
    }
}

/// The command line that a chat ends with.
fn again(text: &str) -> Vec<&str> {
    let line = text.split_once("go on with: picofleet chat ").unwrap().1.split(']').next().unwrap();
    line.split(' ').collect()
}

#[tokio::test]
async fn a_fork_is_gone_on_with() {
    let _runs = RUNS.read().await;
    let place = Place::scripted(SCRIPT);
    let text = piped(&place, &["--store", "jsonl:lines"], "hello\n/fork\nmore").await.with(0);
    let arguments = again(&text);
    let [_, session, _, fork, _, store] = arguments[..] else { panic!("{arguments:?}") };
    assert_eq!(arguments, ["--session", session, "--conversation", fork, "--store", "jsonl:lines"]);
    // The fork has what was said in it, the conversation that it was made of has not.
    let forked = piped(&place, &arguments, "").await.with(0);
    in_order(&forked, &["hello\n", "first answer\n", "more\n", "second answer\n"]);
    assert_eq!(again(&forked), arguments);
    let root = piped(&place, &["--session", session, "--store", store], "").await.with(0);
    assert!(root.contains("first answer") && !root.contains("second answer"), "{root}");
    // `run` goes on with it, too, in both forms.
    let run = place.run(&[&["run", "once more"], &arguments[..]].concat()).await.with(0);
    assert!(run.contains("later answer") && run.contains(&format!("; session {session}, conversation {fork}]")), "{run}");
    let lines = place.run(&[&["run", "--json", "again"], &arguments[..]].concat()).await.with(0);
    assert!(lines.contains("later answer") && lines.contains(&format!("\"conversation\":{fork}")), "{lines}");
}

#[tokio::test]
async fn a_conversation_that_is_not_there_is_a_usage_error() {
    let _runs = RUNS.read().await;
    let place = Place::scripted(SCRIPT);
    place.run(&["run", "hello"]).await.with(0);
    for command in [&["chat"][..], &["run", "more"], &["run", "--json", "more"]] {
        let nowhere = place.run(&[command, &["--conversation", "1"]].concat()).await.with(64);
        assert!(nowhere.contains("--conversation needs the session"), "{nowhere}");
        let unknown = place.run(&[command, &["--continue", "--conversation", "99"]].concat()).await.with(64);
        assert!(unknown.contains("there is no conversation 99 in session"), "{unknown}");
        let none = place.run(&[command, &["--continue", "--conversation", "x"]].concat()).await.with(64);
        assert!(none.contains("it is the number of a conversation"), "{none}");
    }
}

#[tokio::test]
async fn the_line_to_go_on_with_is_one_for_a_shell() {
    let _runs = RUNS.read().await;
    let text = piped(&Place::scripted(SCRIPT), &["--store", "my $store.db"], "hello").await.with(0);
    assert!(text.contains(" --store 'my $store.db']"), "{text}");
}

#[tokio::test]
async fn usage_errors_are_said_as_elsewhere() {
    let _runs = RUNS.read().await;
    let place = Place::scripted(SCRIPT);
    let unknown = piped(&place, &["--model", "s/none"], "").await.with(64);
    assert!(unknown.contains("there is no model s/none"), "{unknown}");
    let nothing = piped(&place, &["--continue"], "").await.with(64);
    assert!(nothing.contains("leave out --continue"), "{nothing}");
}

const ENTER: &str = "\r";
const ESCAPE: &str = "\x1b";
const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";
const UP: &str = "\x1b[A";

#[tokio::test]
async fn what_is_typed_while_it_works_steers() {
    let _runs = RUNS.read().await;
    let place = Place::scripted(SCRIPT);
    let mut chat = Terminal::open(&place, &[]);
    chat.until("> ").await;
    chat.press(format!("please wait{ENTER}"));
    chat.until("waits").await;
    chat.press(format!("go the other way{ENTER}"));
    chat.until("[queued]").await;
    place.write("workspace/go", "");
    chat.until("went the other way").await;
    chat.press(CTRL_D);
    chat.until("go on with: picofleet chat --session ").await;
    assert_eq!(chat.end().await, Some(0));
}

#[tokio::test]
async fn lines_that_are_typed_ahead_are_all_taken() {
    let _runs = RUNS.read().await;
    let place = Place::scripted(SCRIPT);
    let mut chat = Terminal::open(&place, &[]);
    chat.until("/help").await;
    // In one write, as of a paste without brackets or of another program.
    chat.press("/one\r/two\r/three\r/exit\r");
    for command in ["/one", "/two", "/three"] {
        chat.until(&format!("there is no {command}")).await;
    }
    assert_eq!(chat.end().await, Some(0));
}

#[tokio::test]
async fn what_is_for_later_is_said_after_the_answer() {
    let _runs = RUNS.read().await;
    let place = Place::scripted(SCRIPT);
    let mut chat = Terminal::open(&place, &[]);
    chat.until("> ").await;
    chat.press(format!("please wait{ENTER}"));
    chat.until("waits").await;
    chat.press(format!("/later go the other way{ENTER}"));
    chat.until("[queued]").await;
    place.write("workspace/go", "");
    chat.until("second answer").await;
    chat.until("went the other way").await;
    chat.press(CTRL_D);
    assert_eq!(chat.end().await, Some(0));
}

/// In the time after Esc in which another key may come the editor shows nothing, and between two lines neither; what is to be shown then
/// stops nobody.
#[tokio::test]
async fn keys_work_while_tools_flood_the_terminal() {
    let _runs = RUNS.read().await;
    let call = r#"{ type = "toolCall", name = "bash", arguments = { command = "yes noise" } }"#;
    let place = Place::scripted(&format!("[[turns]]\nblocks = [{}]\n", [call; 12].join(", ")));
    let mut chat = Terminal::open(&place, &[]);
    chat.until("> ").await;
    chat.press(format!("flood{ENTER}"));
    chat.until("\x1b[2mnoise\x1b").await;
    // Each ends a line of the editor.
    for _ in 0..20 {
        chat.press(ENTER);
        chat.until("> ").await;
    }
    chat.press(ESCAPE);
    chat.until("[aborting]").await;
    chat.until("not answered, aborted").await;
    chat.press(CTRL_D);
    chat.until("go on with: picofleet chat --session ").await;
    assert_eq!(chat.end().await, Some(0));
}

/// What ends programs leaves the terminal as it was, and the work for the next start.
#[tokio::test]
async fn signals_that_end_programs_leave_the_terminal_as_it_was() {
    let _runs = RUNS.read().await;
    let place = Place::scripted(SCRIPT);
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129)] {
        for works in [false, true] {
            let mut chat = Terminal::open(&place, &[]);
            chat.until("> ").await;
            if works {
                chat.press(format!("slow{ENTER}"));
                chat.until("begun").await;
                chat.until("> ").await;
            }
            assert_ne!(modes(&chat.keys), chat.before, "the editor has the terminal");
            send(&chat.child, signal);
            chat.until("\x1b[?2004l").await;
            chat.until("left; the work goes on with: picofleet chat --session ").await;
            assert_eq!(chat.end().await, Some(code));
        }
    }
}

/// A signal: at a terminal Ctrl-C is a key of the editor.
#[tokio::test]
async fn a_ctrl_c_of_an_earlier_answer_does_not_count() {
    let _runs = RUNS.read().await;
    let place = Place::scripted(SCRIPT);
    let mut child = place.command(&["chat"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut shown = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut said = child.stdin.take().unwrap();
    for _ in 0..2 {
        said.write_all(b"slow\n").await.unwrap();
        for wanted in ["begun", "[aborting]", "[not answered, aborted]"] {
            while soon(wanted, shown.next_line()).await.unwrap().unwrap_or_else(|| panic!("it ended without {wanted}")) != wanted {}
            if wanted == "begun" {
                send(&child, Signal::INT);
            }
        }
    }
    drop(said);
    assert_eq!(soon("the end of the chat", child.wait()).await.unwrap().code(), Some(0));
}

#[tokio::test]
async fn escape_and_ctrl_c_abort_what_runs_and_nothing_else() {
    let _runs = RUNS.read().await;
    let place = Place::scripted(SCRIPT);
    let mut chat = Terminal::open(&place, &[]);
    chat.until("> ").await;
    for key in [ESCAPE, CTRL_C] {
        chat.press(format!("slow{ENTER}"));
        chat.until("begun").await;
        chat.press(key);
        chat.until("[aborting]").await;
        chat.until("not answered, aborted").await;
        chat.until("> ").await;
    }
    // Nothing runs now: Esc does nothing, Ctrl-C warns once.
    chat.press(ESCAPE);
    chat.until("[nothing runs]").await;
    chat.until("> ").await;
    chat.press(CTRL_C);
    chat.until("Ctrl-C again leaves").await;
    chat.until("> ").await;
    chat.press(CTRL_C);
    assert_eq!(chat.end().await, Some(0));
}

#[tokio::test]
async fn the_history_comes_back_in_the_next_chat() {
    let _runs = RUNS.read().await;
    let mut place = Place::scripted(SCRIPT);
    let state = place.path("state");
    place.set("XDG_STATE_HOME", state);
    let mut chat = Terminal::open(&place, &[]);
    chat.until("> ").await;
    chat.press(format!("hello{ENTER}"));
    chat.until("first answer").await;
    chat.press(format!("/quit{ENTER}"));
    assert_eq!(chat.end().await, Some(0));
    let mut chat = Terminal::open(&place, &["--continue"]);
    chat.until("> ").await;
    chat.press(format!("{UP}{UP} again{ENTER}"));
    chat.until("second answer").await;
    chat.press(CTRL_D);
    assert_eq!(chat.end().await, Some(0));
    assert!(place.read("state/picofleet/chat-history").contains("hello again"));
}
