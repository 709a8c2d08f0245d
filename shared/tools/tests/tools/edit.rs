//! The tool `edit`, and its replacement of texts against a simple model.

use picofleet_session::Json;
use picofleet_tools::Edit;
use picofleet_tools::edit::{Replacement, apply};
use proptest::prelude::*;

use crate::support::{Place, validated};

fn replacement(old: &str, new: &str) -> Replacement {
    Replacement { old_text: old.to_owned(), new_text: new.to_owned() }
}

fn edited(content: &str, edits: &[(&str, &str)]) -> Result<String, String> {
    let edits: Vec<Replacement> = edits.iter().map(|(old, new)| replacement(old, new)).collect();
    apply(content.as_bytes(), &edits).map(|edited| String::from_utf8(edited.content).unwrap())
}

#[test]
fn arguments_are_repaired() {
    let fit = Json::parse(br#"{"path": "f", "edits": [{"oldText": "a", "newText": "b"}]}"#).unwrap();
    for arguments in [
        r#"{"path": "f", "edits": [{"oldText": "a", "newText": "b"}]}"#,
        r#"{"path": "f", "edits": "[{\"oldText\": \"a\", \"newText\": \"b\"}]"}"#,
        r#"{"path": "f", "edits": {"oldText": "a", "newText": "b"}}"#,
        r#"{"path": "f", "edits": ["{\"oldText\": \"a\", \"newText\": \"b\"}"]}"#,
        r#"{"path": "f", "oldText": "a", "newText": "b"}"#,
        r#"{"file_path": "f", "old_string": "a", "new_string": "b"}"#,
        r#"{"path": "f", "edits": [{"old_text": "a", "new_text": "b"}]}"#,
    ] {
        assert_eq!(validated(&Edit::new(), arguments), Ok(fit.clone()), "{arguments}");
    }
    for wrong in [
        r#"{"path": "f"}"#,
        r#"{"path": "f", "edits": []}"#,
        r#"{"path": "f", "edits": "[{"}"#,
        r#"{"path": "f", "edits": [{"oldText": "a"}]}"#,
    ] {
        assert!(validated(&Edit::new(), wrong).is_err(), "{wrong}");
    }
}

#[test]
fn all_edits_refer_to_the_original() {
    assert_eq!(edited("a b c", &[("a", "b"), ("b", "c"), ("c", "a")]).unwrap(), "b c a");
    assert_eq!(edited("abc", &[("b", ""), ("c", "x"), ("a", "y")]).unwrap(), "yx", "side by side is no overlap");
}

#[test]
fn what_does_not_fit_is_told_at_once() {
    let error = edited("one two\ntwo\n", &[("two", "x"), ("none", "x"), ("", "x"), ("one", "one")]).unwrap_err();
    let expected = "edit 1: oldText stands 2 times in the file, in lines 1, 2; take more of its surroundings\n\
        edit 2: oldText does not stand in the file\n\
        edit 3: oldText is empty; say what is to be replaced, or use write for a whole file\n\
        edit 4: oldText and newText are the same";
    assert_eq!(error, expected);
    assert_eq!(edited("abcd", &[("bcd", "x"), ("ab", "y")]).unwrap_err(), "edits 1 and 2 overlap; make one of them");
    assert!(edited("aaa", &[("aa", "x")]).unwrap_err().contains("2 times"), "places that overlap count");
    assert!(
        edited(&"a".repeat(5_000), &[("a", "x")]).unwrap_err().contains("at least 1000 times in the file, in lines 1, 1, 1, 1, 1, ...;")
    );
    assert!(edited("  if a {\n    b\n", &[("if a {\n b", "x")]).unwrap_err().contains("lines 1 to 2 are the same but for blanks"));
}

#[test]
fn line_ends_and_mark_stay() {
    assert_eq!(edited("\u{feff}a\r\nb\r\n", &[("a\nb", "x\ny\nz")]).unwrap(), "\u{feff}x\r\ny\r\nz\r\n");
    assert_eq!(edited("a\r\nb\nc\r\nd\r\n", &[("d", "1\n2")]).unwrap(), "a\r\nb\nc\r\n1\r\n2\r\n", "a stray LF stays");
    assert_eq!(edited("a\nb\r\nc\n", &[("c", "1\r\n2")]).unwrap(), "a\nb\r\n1\n2\n", "most are LF");
    assert_eq!(edited("a\r\nb", &[("a\r\nb", "x")]).unwrap(), "x");
    assert_eq!(edited("a\r\nb\r\n", &[("\nb", "")]).unwrap(), "a\r\n");
}

#[test]
fn no_text_is_refused() {
    let edits = [replacement("a", "b")];
    assert_eq!(apply(b"a\xff", &edits).unwrap_err(), "it is no UTF-8 text; change it with bash");
    assert_eq!(apply(b"a\0", &edits).unwrap_err(), "it is no UTF-8 text; change it with bash");
    assert_eq!(apply(b"a", &[]).unwrap_err(), "there is no edit");
}

#[tokio::test]
async fn the_tool_edits_and_shows_the_difference() {
    let place = Place::new();
    place.put("src/f.rs", "one\r\ntwo\r\nthree\r\n");
    let done = place.call(&Edit::new(), r#"{"path": "src/f.rs", "edits": [{"oldText": "two\nthree", "newText": "2\n3"}]}"#).await;
    assert_eq!(done.text(), "Edited src/f.rs: 1 replacement, from line 2 on");
    assert_eq!(place.get("src/f.rs"), "one\r\n2\r\n3\r\n");
    assert_eq!(done.detail("firstChangedLine"), Json::from(2));
    let diff = "--- a/src/f.rs\n+++ b/src/f.rs\n@@ -1,3 +1,3 @@\n one\n-two\n-three\n+2\n+3\n";
    assert_eq!(done.detail("diff"), Json::from(diff));
    let refused = place
        .call(&Edit::new(), r#"{"path": "src/f.rs", "edits": [{"oldText": "2", "newText": "x"}, {"oldText": "two", "newText": "x"}]}"#)
        .await;
    assert_eq!(refused.error(), "src/f.rs was not edited: edit 2: oldText does not stand in the file");
    assert_eq!(place.get("src/f.rs"), "one\r\n2\r\n3\r\n", "all or nothing");
    let none = place.call(&Edit::new(), r#"{"path": "none", "oldText": "a", "newText": "b"}"#).await;
    assert_eq!(none.error(), "none does not exist; make it with write");
}

#[tokio::test]
async fn a_long_difference_is_cut() {
    let place = Place::new();
    let old: String = (0..20_000).map(|n| format!("line {n}\n")).collect();
    place.put("f", &old);
    let arguments =
        Json::build_object().with("path", "f").with("oldText", old.as_str()).with("newText", old.replace("line", "row")).build();
    let done = place.call(&Edit::new(), &arguments.to_string()).await;
    let diff = done.detail("diff").as_str().unwrap().into_owned();
    assert!(diff.len() < 66_000 && diff.ends_with("\n... the rest of the diff is left out\n"));
    assert_eq!(place.get("f").lines().last(), Some("row 19999"));
}

/// A file as a list of characters, where a CRLF is one of them. As slow and as plain as can be.
fn model(content: &str, edits: &[Replacement]) -> Option<String> {
    let (mark, body) = content.strip_prefix('\u{feff}').map_or(("", content), |body| ("\u{feff}", body));
    let mut tokens: Vec<&str> = Vec::new();
    let mut rest = body;
    while let Some(c) = rest.chars().next() {
        let length = if rest.starts_with("\r\n") { 2 } else { c.len_utf8() };
        tokens.push(&rest[..length]);
        rest = &rest[length..];
    }
    let plain = |token: &str| if token == "\r\n" { "\n".to_owned() } else { token.to_owned() };
    let crlf = tokens.iter().filter(|token| **token == "\r\n").count();
    let end = if crlf > tokens.iter().filter(|token| **token == "\n").count() { "\r\n" } else { "\n" };
    let mut taken: Vec<Option<usize>> = vec![None; tokens.len()];
    for (number, edit) in edits.iter().enumerate() {
        let old: Vec<String> = edit.old_text.replace("\r\n", "\n").chars().map(String::from).collect();
        if old.is_empty() || edit.old_text.replace("\r\n", "\n") == edit.new_text.replace("\r\n", "\n") {
            return None;
        }
        let fits = |start: &usize| tokens[*start..*start + old.len()].iter().map(|token| plain(token)).eq(old.iter().cloned());
        let starts: Vec<usize> = (0..(tokens.len() + 1).saturating_sub(old.len())).filter(fits).collect();
        let [start] = starts[..] else { return None };
        for place in &mut taken[start..start + old.len()] {
            if place.replace(number).is_some() {
                return None;
            }
        }
    }
    let mut result = mark.to_owned();
    let mut last = None;
    for (token, by) in tokens.iter().zip(&taken) {
        match by {
            None => result.push_str(token),
            Some(number) if last != Some(*number) => {
                result.push_str(&edits[*number].new_text.replace("\r\n", "\n").replace('\n', end));
            }
            Some(_) => {}
        }
        last = *by;
    }
    (!edits.is_empty()).then_some(result)
}

/// A text of few different characters, and edits that are mostly parts of it.
fn case() -> impl Strategy<Value = (String, Vec<Replacement>)> {
    let piece = || prop_oneof![4 => Just("a"), 3 => Just("b"), 2 => Just("ü"), 1 => Just(" "), 2 => Just("\n"), 3 => Just("\r\n"), 1 => Just("c d")];
    let text = |most| prop::collection::vec(piece(), 0..most).prop_map(|pieces| pieces.concat());
    let content = (any::<bool>(), text(24)).prop_map(|(mark, text)| if mark { format!("\u{feff}{text}") } else { text });
    (content, prop::collection::vec((any::<prop::sample::Index>(), 1..8_usize, text(4), any::<bool>()), 0..4)).prop_map(
        |(content, edits)| {
            let plain = content.trim_start_matches('\u{feff}').replace("\r\n", "\n");
            let chars: Vec<char> = plain.chars().collect();
            let edit = |(index, length, new, other): (prop::sample::Index, usize, String, bool)| {
                let start = index.index(chars.len() + 1);
                let old: String = chars[start..].iter().take(length).collect();
                replacement(&if other { old.replace('\n', "\r\n") } else { old }, &new)
            };
            let edits = edits.into_iter().map(edit).collect();
            (content, edits)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, ..ProptestConfig::default() })]

    #[test]
    fn edits_are_as_in_the_model((content, edits) in case()) {
        let plain = |text: &str| text.trim_start_matches('\u{feff}').replace("\r\n", "\n");
        match (apply(content.as_bytes(), &edits), model(&content, &edits)) {
            (Ok(edited), Some(expected)) => {
                prop_assert_eq!(String::from_utf8(edited.content).unwrap(), expected.clone());
                prop_assert_eq!(edited.before, plain(&content));
                prop_assert_eq!(edited.after, plain(&expected));
            }
            (Err(_), None) => {}
            (done, expected) => prop_assert!(false, "{:?} instead of {:?}", done, expected),
        }
    }
}
