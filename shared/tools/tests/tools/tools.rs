//! The tools `read`, `bash` and `write`, from arguments as models send them.

use std::time::Duration;

use picofleet_harness::effects::Retain;
use picofleet_harness::tool::Replay;
use picofleet_harness::tools::Tool as _;
use picofleet_session::Json;
use picofleet_tools::{Bash, Edit, Read, Write};

use crate::support::{Place, validated};

#[test]
fn what_the_tools_say_of_themselves() {
    let (read, bash, edit, write) = (Read::new(), Bash::new(), Edit::new(), Write::new());
    let specs = [read.spec(), bash.spec(), edit.spec(), write.spec()];
    assert_eq!(specs.map(|spec| spec.name.as_str()), ["read", "bash", "edit", "write"]);
    assert_eq!(specs.map(|spec| spec.replay == Replay::Safe), [true, false, false, false]);
    assert_eq!(specs.map(|spec| spec.sequential), [false, true, true, true]);
    assert_eq!(specs.map(|spec| spec.output.retain == Retain::Tail), [false, true, false, false]);
}

#[test]
fn arguments_are_repaired() {
    let json = |text: &str| Ok(Json::parse(text.as_bytes()).unwrap());
    assert_eq!(validated(&Read::new(), r#"{"file_path": "f", "offset": "2", "limit": null}"#), json(r#"{"path": "f", "offset": 2}"#));
    assert_eq!(validated(&Bash::new(), r#"{"cmd": "ls", "timeout": "5"}"#), json(r#"{"command": "ls", "timeout": 5}"#));
    assert_eq!(validated(&Write::new(), r#"{"file": "f", "contents": "x"}"#), json(r#"{"path": "f", "content": "x"}"#));
    for wrong in [r#"{"path": "f", "offset": 0}"#, r#"{"path": "f", "limit": 0}"#, r"{}", r#"{"offset": 1}"#] {
        assert!(validated(&Read::new(), wrong).is_err(), "{wrong}");
    }
    for wrong in [r#"{"command": "ls", "timeout": 0}"#, r#"{"command": "ls", "timeout": 3601}"#] {
        assert!(validated(&Bash::new(), wrong).is_err(), "{wrong}");
    }
}

#[tokio::test]
async fn read_shows_lines_and_tells_which() {
    let place = Place::new();
    place.put("f", (1..=3_000).map(|n| format!("line {n}\n")).collect::<String>());
    let whole = place.call(&Read::new(), r#"{"path": "f"}"#).await;
    assert!(whole.text().ends_with("line 2000\n"));
    assert_eq!(whole.remarks, ["lines 1 to 2000 of 3,000 are shown"]);
    let part = place.call(&Read::new(), r#"{"path": "f", "offset": 2999, "limit": 10}"#).await;
    assert_eq!(part.text(), "line 2999\nline 3000\n");
    assert_eq!(part.remarks, ["lines 2999 to 3000 of 3,000 are shown"]);
    let beyond = place.call(&Read::new(), r#"{"path": "f", "offset": 3001}"#).await;
    assert_eq!(beyond.error(), "f has 3,000 lines; there is no line 3001");
}

#[tokio::test]
async fn read_refuses_with_advice() {
    let place = Place::new();
    place.put("bin", b"\x7fELF\0\0");
    place.put("dir/f", "");
    std::fs::File::create(place.at("huge")).unwrap().set_len(1 << 40).unwrap();
    let error = |path: &str| {
        let arguments = format!(r#"{{"path": "{path}"}}"#);
        let place = &place;
        async move { place.call(&Read::new(), &arguments).await.error().to_owned() }
    };
    assert_eq!(error("bin").await, "bin is no text: it has zero bytes among its 6; look at it with bash");
    assert_eq!(error("dir").await, "dir is a directory; list it with bash");
    let huge = "huge has 1099511627776 bytes, more than 16777216; look at a part of it with bash: head, tail, sed -n or grep";
    assert_eq!(error("huge").await, huge);
    assert_eq!(error("none").await, "none does not exist");
    assert_eq!(error("/etc/passwd").await, "/etc/passwd is outside the workspace");
    let empty = place.call(&Read::new(), r#"{"path": "dir/f"}"#).await;
    assert_eq!((empty.text().as_str(), empty.remarks.as_slice()), ("", &["dir/f is empty".to_owned()][..]));
}

#[tokio::test]
async fn write_creates_and_replaces() {
    let place = Place::new();
    let created = place.call(&Write::new(), r#"{"path": "a/f", "content": "ü\r\n"}"#).await;
    assert_eq!(created.text(), "Created a/f: 4 bytes");
    assert_eq!((created.detail("bytes"), created.detail("created")), (Json::from(4), Json::from(true)));
    let replaced = place.call(&Write::new(), r#"{"path": "a/f", "content": "x"}"#).await;
    assert_eq!(replaced.text(), "Replaced a/f: 1 byte");
    assert_eq!(place.get("a/f"), "x");
    let refused = place.call(&Write::new(), r#"{"path": "../f", "content": "x"}"#).await;
    assert_eq!(refused.error(), "../f is outside the workspace");
}

#[tokio::test]
async fn bash_gives_output_or_throws() {
    let place = Place::new();
    let good = place.call(&Bash::new(), r#"{"command": "echo out; echo err >&2"}"#).await;
    assert_eq!(good.output, "out\nerr\n");
    assert!(good.result.unwrap().content.is_none(), "the kept output becomes the content");
    let bad = place.call(&Bash::new(), r#"{"command": "echo out; exit 3"}"#).await;
    assert_eq!((bad.output.as_str(), bad.error()), ("out\n", "the command exited with code 3"));
    let killed = place.call(&Bash::new(), r#"{"command": "kill -9 $$"}"#).await;
    assert_eq!(killed.error(), "the command was ended by signal 9 (SIGKILL)");
    let late = place.call(&Bash::new(), r#"{"command": "echo out; sleep 1000", "timeout": 2.5}"#).await;
    assert_eq!((late.output.as_str(), late.error()), ("out\n", "the command did not end within 2.5 s and was killed"));
    let late = place.call(&Bash::with_timeout(Duration::from_millis(300)), r#"{"command": "sleep 1000"}"#).await;
    assert_eq!(late.error(), "the command did not end within 0.3 s and was killed");
    let left = place.call(&Bash::new(), r#"{"command": "sleep 1000 & sleep 1000 &"}"#).await;
    assert!(left.result.is_ok());
    assert_eq!(left.remarks, ["2 processes that the command left running were ended with it"]);
}

#[tokio::test]
async fn bash_keeps_the_end_and_tells_where_the_rest_is() {
    let place = Place::new();
    let many = place.call(&Bash::new(), r#"{"command": "seq 1000000; exit 1"}"#).await;
    assert!(many.output.starts_with("998001\n") && many.output.ends_with("1000000\n"), "{}", &many.output[..20]);
    let [remark] = &many.remarks[..] else { panic!("{:?}", many.remarks) };
    let path = remark.strip_prefix("complete output, 6,888,896 bytes, is in ").unwrap();
    let read = place.call(&Read::new(), &format!(r#"{{"path": "{path}", "offset": 500000, "limit": 1}}"#)).await;
    assert_eq!(read.text(), "500000\n");
}
