//! Each rule, broken once in a session that is as it should be.

use picofleet_session::storage::{ExportLine, FINDINGS_MAX, Finding};

use super::Found;
use super::model::Model;
use crate::config::StoreUrl;

/// A conversation whose generation waits for its tool, with an input in the run, one in the inbox, and a subagent of the tool.
const LINES: &str = r#"
{"type":"session","format":1,"id":"01a230b8-1e0a-749a-a7c4-da671269cb4b","metadata":{},"createdAt":1,"seq":9,"nextId":40,"at":9}
{"type":"conversation","id":1}
{"type":"conversation","id":20,"owner":{"conversationId":1,"taskId":11}}
{"type":"conversation","id":21,"parent":{"conversationId":1,"at":6}}
{"type":"entry","id":6,"conversationId":1,"kind":"pi.user","model":[{"role":"user","content":"hi","timestamp":1}],"seq":4}
{"type":"entry","id":9,"conversationId":1,"kind":"pi.assistant","model":[{"role":"assistant","content":[{"type":"text","text":"x"}],"api":"a","provider":"p","model":"m","usage":{"input":3,"output":4,"cacheRead":0,"cacheWrite":0,"totalTokens":7,"cost":{"input":0,"output":0,"cacheRead":0,"cacheWrite":0,"total":0}},"stopReason":"stop","timestamp":2}],"byTaskId":8,"seq":5}
{"type":"entry","id":10,"conversationId":1,"kind":"note","head":6,"seq":5}
{"type":"task","id":8,"conversationId":1,"kind":"pi.generation","version":1,"input":{},"background":false,"abortRequested":false,"state":{"status":"waiting","checkpoint":{"phase":"tools"},"on":[11],"policy":"allSettled"}}
{"type":"task","id":11,"conversationId":1,"kind":"pi.tool","version":1,"input":{},"owner":8,"background":false,"abortRequested":false,"state":{"status":"running","checkpoint":{"phase":"call"}},"invocation":{"taskId":11,"invocation":"6d7bb634be37a7747074838a6665de8c","number":1}}
{"type":"task","id":12,"conversationId":1,"kind":"done","version":1,"input":{},"background":false,"abortRequested":false,"state":{"status":"terminal","outcome":{"status":"completed","result":null}},"endedAt":3}
{"type":"task","id":22,"conversationId":20,"kind":"child","version":1,"input":{},"background":false,"abortRequested":false,"state":{"status":"pending","checkpoint":{"phase":"a"}}}
{"type":"submission","id":7,"conversationId":1,"kind":"input","status":"placed","entry":6}
{"type":"submission","id":13,"conversationId":1,"kind":"input","status":"queued"}
{"type":"document","id":2,"kind":"app.doc","scope":{"kind":"session"},"createdAt":2}
{"type":"document","id":3,"kind":"pi.live","scope":{"kind":"conversation","conversationId":1},"history":"latest","fork":"initial","createdAt":2}
{"type":"document","id":4,"kind":"pi.inbox","scope":{"kind":"conversation","conversationId":1},"history":"latest","fork":"initial","createdAt":2}
{"type":"document","id":5,"kind":"pi.usage","scope":{"kind":"conversation","conversationId":1},"history":"latest","fork":"initial","createdAt":2}
{"type":"content","documentId":2,"seq":2,"version":1,"base":{"n":1}}
{"type":"content","documentId":2,"seq":3,"version":1,"ops":[["s",["n"],2]]}
{"type":"content","documentId":3,"seq":9,"version":1,"base":{"run":{"taskId":8,"inputs":[7]}}}
{"type":"content","documentId":4,"seq":2,"version":1,"base":{"items":[{"mode":"followUp","id":13,"content":"more"}]}}
{"type":"content","documentId":5,"seq":9,"version":1,"base":{"models":{"p/m":{"input":3,"output":4,"cacheRead":0,"cacheWrite":0,"totalTokens":7,"cost":{"input":0,"output":0,"cacheRead":0,"cacheWrite":0,"total":0}}},"tools":{}}}
"#;

fn broken(lines: &str) -> Vec<(&'static str, String)> {
    let mut model = Model::default();
    for line in lines.lines().filter(|line| !line.is_empty()) {
        model.take(ExportLine::from_text(line.as_bytes()).unwrap_or_else(|error| panic!("{error}: {line}")));
    }
    model.finish(true)
}

#[test]
fn a_session_that_is_as_it_should_be_breaks_no_rule() {
    assert_eq!(broken(LINES), []);
}

#[test]
fn each_rule_is_seen_to_be_broken() {
    let cases = [
        ("C1", r#""nextId":40"#, r#""nextId":22"#),
        ("C1", r#"{"type":"submission","id":13"#, r#"{"type":"submission","id":12"#),
        ("C1", r#""head":6,"seq":5"#, r#""head":6,"seq":10"#),
        ("C2", r#""head":6,"seq":5"#, r#""head":6,"seq":3"#),
        ("reference", "{\"type\":\"conversation\",\"id\":1}\n", ""),
        ("reference", r#""at":6"#, r#""at":7"#),
        ("reference", r#""owner":{"conversationId":1,"taskId":11}"#, r#""owner":{"conversationId":1,"taskId":30}"#),
        ("reference", r#""owner":{"conversationId":1,"taskId":11}"#, r#""owner":{"conversationId":21,"taskId":11}"#),
        ("reference", r#""conversationId":1,"kind":"note""#, r#""conversationId":6,"kind":"note""#),
        ("reference", r#""head":6"#, r#""head":8"#),
        ("reference", r#""byTaskId":8"#, r#""byTaskId":30"#),
        ("reference", r#""kind":"app.doc","scope":{"kind":"session"}"#, r#""kind":"app.doc","scope":{"kind":"task","taskId":30}"#),
        ("reference", r#"{"type":"submission","id":13,"conversationId":1"#, r#"{"type":"submission","id":13,"conversationId":2"#),
        ("T3", r#""owner":8"#, r#""owner":30"#),
        ("T3", r#""conversationId":1,"kind":"pi.tool""#, r#""conversationId":21,"kind":"pi.tool""#),
        ("T3", r#""conversationId":20,"kind":"child""#, r#""conversationId":30,"kind":"child""#),
        ("T4", r#","invocation":{"taskId":11,"invocation":"6d7bb634be37a7747074838a6665de8c","number":1}"#, ""),
        ("T5", r#""on":[11]"#, r#""on":[8]"#),
        ("T5", r#""on":[11]"#, r#""on":[30]"#),
        (
            "T6",
            r#"{"status":"running","checkpoint":{"phase":"call"}}"#,
            r#"{"status":"terminal","outcome":{"status":"completed","result":null}}"#,
        ),
        ("T7", r#""checkpoint":{"phase":"a"}}"#, r#""checkpoint":{"phase":"a"}},"restarts":6"#),
        ("task", r#","endedAt":3"#, ""),
        ("task", r#","endedAt":3"#, r#","memos":{},"endedAt":3"#),
        ("submission", r#""status":"placed","entry":6"#, r#""status":"placed","entry":8"#),
        ("D1", r#"{"items":[{"mode":"followUp","id":13,"content":"more"}]}"#, r#"{"items":[]}"#),
        ("D1", r#""kind":"input","status":"queued""#, r#""kind":"input","status":"unanswered","reason":"aborted""#),
        ("D2", r#""inputs":[7]"#, r#""inputs":[]"#),
        ("D2", r#""run":{"taskId":8"#, r#""run":{"taskId":12"#),
        ("D2", r#"{"run":{"taskId":8,"inputs":[7]}}"#, "{}"),
        ("D2", r#"{"run":{"taskId":8,"inputs":[7]}}"#, r#"{"generation":{"attempt":1}}"#),
        (
            "D3",
            r#""models":{"p/m":{"input":3,"output":4,"cacheRead":0,"cacheWrite":0,"totalTokens":7"#,
            r#""models":{"p/m":{"input":3,"output":4,"cacheRead":0,"cacheWrite":0,"totalTokens":8"#,
        ),
        ("D4", r#"[["s",["n"],2]]"#, r#"[["s",["n","m"],2]]"#),
        ("D4", r#""seq":3,"version":1,"ops""#, r#""seq":3,"version":2,"ops""#),
        ("D4", r#""seq":3,"version":1,"ops""#, r#""seq":2,"version":1,"ops""#),
        ("content", "{\"type\":\"content\",\"documentId\":2,\"seq\":2,\"version\":1,\"base\":{\"n\":1}}\n", ""),
        (
            "content",
            "{\"type\":\"content\",\"documentId\":4,\"seq\":2,\"version\":1,\"base\":{\"items\":[{\"mode\":\"followUp\",\"id\":13,\"content\":\"more\"}]}}\n",
            "",
        ),
        ("document", r#"{"items":[{"mode":"followUp","id":13,"content":"more"}]}"#, r#"{"items":1}"#),
    ];
    for (rule, from, to) in cases {
        let lines = LINES.replacen(from, to, 1);
        assert_ne!(lines, LINES, "{rule}: {from} is not there");
        let found = broken(&lines);
        assert!(found.iter().any(|(broken, _)| *broken == rule), "{rule}, {to}: {found:?}");
    }
}

/// A document that is gone is as if it had its first value: what the records say then has no counterpart.
#[test]
fn a_document_that_is_gone_is_missed() {
    for (rule, kind, id) in [("D1", "pi.inbox", 4), ("D2", "pi.live", 3), ("D3", "pi.usage", 5)] {
        let of = [format!(r#"{{"type":"document","id":{id},"#), format!(r#"{{"type":"content","documentId":{id},"#)];
        let left = LINES.lines().filter(|line| !of.iter().any(|begin| line.starts_with(begin)));
        let lines: String = left.map(|line| format!("{line}\n")).collect();
        assert!(!lines.contains(kind), "{lines}");
        let found = broken(&lines);
        assert!(matches!(found.as_slice(), [(broken, _)] if *broken == rule), "{kind}: {found:?}");
        // Retired without a successor, it is gone as well.
        let at = LINES.find(&of[0]).and_then(|at| Some(at + LINES[at..].find(r#","createdAt""#)?)).unwrap();
        let found = broken(&format!(r#"{},"retiredAt":9{}"#, &LINES[..at], &LINES[at..]));
        assert!(found.iter().any(|(broken, _)| *broken == rule), "{kind}: {found:?}");
    }
}

/// One whose value can't be read is reported as that, and not compared.
#[test]
fn a_document_that_can_not_be_read_is_not_taken_for_an_absent_one() {
    let unread = LINES.lines().map(|line| {
        if line.starts_with(r#"{"type":"content","documentId":4,"#) {
            r#"{"type":"content","documentId":4,"seq":2,"version":1,"ops":[["s",["items"],[]]]}"#
        } else {
            line
        }
    });
    let found = broken(&unread.collect::<Vec<_>>().join("\n"));
    assert!(matches!(found.as_slice(), [("content", _)]), "{found:?}");
}

/// Summaries are spent without an entry for each attempt.
#[test]
fn a_conversation_with_compactions_may_have_spent_more() {
    let compaction = LINES.replacen(r#""kind":"done""#, r#""kind":"pi.compaction""#, 1);
    let spent = |tokens: &str| {
        compaction.replacen(
            r#"cacheWrite":0,"totalTokens":7,"cost":{"input":0,"output":0,"cacheRead":0,"cacheWrite":0,"total":0}}},"tools"#,
            &format!(
                r#"cacheWrite":0,"totalTokens":{tokens},"cost":{{"input":0,"output":0,"cacheRead":0,"cacheWrite":0,"total":0}}}}}},"tools"#
            ),
            1,
        )
    };
    assert_eq!(broken(&spent("9")), []);
    assert_eq!(broken(&spent("6")).first().map(|(rule, _)| *rule), Some("D3"));
}

/// Where reading ends early, what was not read is not reported as missing.
#[test]
fn a_session_that_could_not_be_read_to_its_end_is_not_judged_as_a_whole() {
    let mut model = Model::default();
    for line in LINES.lines().filter(|line| !line.is_empty()).take(8) {
        model.take(ExportLine::from_text(line.as_bytes()).unwrap());
    }
    assert_eq!(model.finish(false), []);
}

/// Whatever number of notes keeps no finding out, and where there is more than is kept there is a finding, so that the doctor fails.
#[test]
fn notes_keep_no_finding_out() {
    let mut found = Found::default();
    (0..=FINDINGS_MAX).for_each(|n| found.add(Finding::of_store("import", format!("note {n}"))));
    found.add(Finding::of_store("integrity", "a page"));
    let report = found.report(&StoreUrl::Memory, 0);
    assert_eq!((report.findings.len(), report.notes.len(), report.more, report.more_notes), (1, FINDINGS_MAX, false, true));
    assert!(report.text().contains("more than 1000 notes"), "{}", report.text());
}

#[test]
fn more_findings_than_are_kept_are_said() {
    let mut found = Found::default();
    (0..FINDINGS_MAX * 2).for_each(|n| found.add(Finding::of_store("orphan", format!("rows {n}"))));
    assert!(found.full());
    let report = found.report(&StoreUrl::Memory, 0);
    assert_eq!((report.findings.len(), report.more), (FINDINGS_MAX, true));
}
