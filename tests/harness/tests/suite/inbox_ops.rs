//! How the inbox is written (section 6): by position, and as a whole exactly where it is empty.

use std::collections::BTreeMap;

use picofleet_harness::frame::{DocumentFrame, Frame};
use picofleet_harness::inbox::InboxState;
use picofleet_harness::line::ConversationWatch;
use picofleet_harness_tests::{Kit, Reply, scenario};
use picofleet_session::storage::Write;
use picofleet_session::{CommitToken, DocumentContent, DocumentId, Json};

use super::frame;

/// The operations on the inbox in the frames up to one that fits; keeps whether it was empty behind each commit that touched it.
async fn inbox_ops(
    watch: &mut ConversationWatch,
    empty: &mut BTreeMap<String, bool>,
    mut last: impl FnMut(&Frame) -> bool,
) -> Vec<Vec<Json>> {
    let mut all = Vec::new();
    loop {
        let commit = frame(watch, |_| true).await;
        for (_, change) in commit.documents.iter().filter(|(kind, _)| kind == "pi.inbox") {
            let DocumentFrame::Ops(ops) = change else { panic!("{change:?}") };
            all.push(ops.as_array().unwrap().iter().cloned().collect());
            let inbox: InboxState = watch.mount().get("pi.inbox").unwrap().to().unwrap();
            empty.insert(name(commit.at.1), inbox.items.is_empty());
        }
        if last(&commit) {
            return all;
        }
    }
}

fn name(token: CommitToken) -> String {
    format!("{token:?}")
}

/// The root's inbox, as it was made with the root.
fn inbox_of(kit: &Kit) -> DocumentId {
    let made = kit.disk.written().into_iter().flat_map(|commit| commit.writes).find_map(|write| match write {
        Write::DocumentCreate { create, .. } if create.kind == "pi.inbox" => Some(create.id),
        _ => None,
    });
    made.expect("the inbox was made")
}

scenario!(s117_inbox_operations_are_positional, async |kit| {
    let inbox = inbox_of(&kit);
    let mut empty = BTreeMap::new();
    let a = kit.asking("a", Reply::error("401 unauthorized")).await;
    let mut watch = kit.watch_root().await;
    let ids = [kit.say("retained one").await, kit.say("gone").await, kit.say("retained two").await];
    let of = |id| move |frame: &Frame| frame.submissions.iter().any(|record| record.id == id);
    let ops = inbox_ops(&mut watch, &mut empty, of(ids[2].id())).await;
    assert_eq!(ops.len(), 3);
    for (index, (ops, submission)) in ops.iter().zip(&ids).enumerate() {
        let text = ops[0].to_string();
        assert_eq!(ops.len(), 1, "one splice");
        assert!(text.starts_with(&format!(r#"["p",["items"],{index},0,[{{"#)), "{text}");
        assert!(text.contains(&format!(r#""id":{}"#, submission.id())), "{text}");
    }
    ids[1].abort().await.unwrap();
    let ops = inbox_ops(&mut watch, &mut empty, of(ids[1].id())).await;
    assert_eq!(ops, [[Json::parse(br#"["p",["items"],1,1,[]]"#).unwrap()]]);
    kit.stage.release();
    kit.settled(&a).await;
    let next = kit.asking("g", Reply::text("x")).await;
    let ops = inbox_ops(&mut watch, &mut empty, of(next.id())).await;
    let text = format!("{ops:?}");
    assert!(!text.contains("retained"), "what stays is never written again: {text}");
    kit.stage.give(Reply::text("y"));
    kit.stage.give(Reply::text("z"));
    kit.stage.release();
    kit.settled(&next).await;
    inbox_ops(&mut watch, &mut empty, |frame| frame.submissions.iter().any(|record| record.id == next.id() && record.settled())).await;

    let mut seen = [0, 0];
    for commit in kit.disk.written() {
        for write in &commit.writes {
            let Write::DocumentChange { id, content } = write else { continue };
            if *id == inbox {
                let base = matches!(content, DocumentContent::Base { .. });
                assert_eq!(empty[&name(commit.token)], base, "a complete base exactly where it is empty: {content:?}");
                seen[usize::from(base)] += 1;
            }
        }
    }
    assert!(seen[0] > 3 && seen[1] > 0, "{seen:?}");
});
