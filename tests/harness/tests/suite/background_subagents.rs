//! Background subagents (section 7.3): the anchor, the mapping of names, and the reporter, which delivers once and answers once.

use picofleet_harness::kind::TaskKind as _;
use picofleet_harness::kinds::TOOL;
use picofleet_harness::submission::SubmissionDraft;
use picofleet_harness::task::checkpoint;
use picofleet_harness_tests::background::{Anchor, Reporter, SUBAGENTS};
use picofleet_harness_tests::scout::{self, Told};
use picofleet_harness_tests::{Kit, Reply, scenario, status, tasks};
use picofleet_session::message::Message;
use picofleet_session::storage::{Commit, Write};
use picofleet_session::{ConversationId, Json, SubmissionStatus, TaskRecord, TaskStatus};

/// Work that is asked for under this name goes on until the stage is released.
const SLOW: &str = "slow";

fn is_slow(messages: &[Message]) -> bool {
    scout::said(messages) == format!("work for {SLOW}")
}

/// The usual answers, but that of the slow one waits.
fn slowly(messages: &[Message]) -> Option<Reply> {
    scout::answers(messages).map(|reply| if is_slow(messages) { reply.held() } else { reply })
}

async fn go(kit: &Kit, name: &str) {
    let go = kit.say(&format!("go {name}")).await;
    assert_eq!(kit.settled(&go).await.status(), SubmissionStatus::Done);
}

/// Sends the slow one to work, and gives its conversation once it works.
async fn slow(kit: &Kit) -> ConversationId {
    kit.stage.answer_by(slowly);
    go(kit, SLOW).await;
    kit.until("its work", async || kit.stage.asked().iter().any(|asked| is_slow(&asked.messages))).await;
    let subagents = kit.harness().snapshot(&SUBAGENTS, kit.root().await.id()).await.unwrap().unwrap();
    subagents.named[SLOW].conversation
}

async fn only(kit: &Kit, kind: &str) -> TaskRecord {
    let mut tasks = kit.tasks(kind).await;
    assert_eq!(tasks.len(), 1, "{tasks:?}");
    tasks.remove(0)
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

scenario!(a_message_is_delivered_once_and_its_answer_is_posted_once, async |kit| {
    kit.scouts(&[]).await;
    go(&kit, "scout").await;
    kit.reporters_are_over().await;
    let said = ["pi.user:go scout", "pi.assistant", "pi.tool-result", "pi.assistant:sent scout"];
    assert_eq!(kit.said().await[..4], said);
    assert_eq!(kit.said().await[4..], ["pi.user:scout: done by scout", "pi.assistant:heard scout"]);
    assert_eq!(kit.told().await, Told::once(&names(&["scout"])));
    for kind in [Anchor::NAME, Reporter::NAME] {
        let task = only(&kit, kind).await;
        assert_eq!((task.background, task.owner, task.conversation_id), (true, None, kit.root().await.id()), "{kind}");
    }
    // The same name is the same subagent, with everything that it heard before.
    go(&kit, "scout").await;
    kit.reporters_are_over().await;
    let told = kit.told().await;
    assert_eq!((told.anchors.len(), told.heard), (1, vec![names(&["work for scout", "work for scout"])]));
    assert_eq!((told.reporters.len(), told.answers.len()), (2, 2));
});

scenario!(a_message_needs_one_slot, async |kit| {
    kit.worker.slots = 1;
    kit.scouts(&[]).await;
    go(&kit, "scout").await;
    kit.reporters_are_over().await;
    assert_eq!(kit.told().await, Told::once(&names(&["scout"])));
});

/// Where a process is lost on the way of a message: at the commit that has this, or behind it.
fn losses() -> Vec<fn(&Commit) -> bool> {
    vec![
        |commit| tasks(commit).any(|task| task.kind == Reporter::NAME && task.status() == TaskStatus::Pending),
        |commit| tasks(commit).any(|task| task.kind == TOOL && task.terminal()),
        |commit| submits(commit, "-message"),
        answers,
        |commit| submits(commit, "-answer"),
        |commit| tasks(commit).any(|task| task.kind == Reporter::NAME && task.terminal()),
    ]
}

/// Whether a commit admits a submission of a reporter.
fn submits(commit: &Commit, what: &str) -> bool {
    let admits = |write: &Write| match write {
        Write::Submission(record) => record.request_id.as_deref().is_some_and(|id| id.starts_with("reporter-") && id.ends_with(what)),
        _ => false,
    };
    commit.writes.iter().any(admits)
}

/// Whether a commit takes a reporter on to the answer.
fn answers(commit: &Commit) -> bool {
    let phase = |task: &TaskRecord| checkpoint(task)?.get("phase").and_then(Json::as_str).map(|phase| phase == "answer");
    tasks(commit).any(|task| task.kind == Reporter::NAME && phase(task) == Some(true))
}

scenario!(a_message_survives_a_crash_at_each_of_its_commits, async |kit| {
    kit.scouts(&[]).await;
    let mut sent = Vec::new();
    for (place, lost) in losses().into_iter().enumerate() {
        for behind in [false, true] {
            if behind {
                kit.tap.crash_behind(lost)
            } else {
                kit.tap.crash_at(lost)
            }
            let name = format!("s{place}{}", if behind { "behind" } else { "at" });
            let go = kit.say(&format!("go {name}")).await;
            kit.crash_at_tap().await;
            kit.reopen().await;
            assert_eq!(kit.settled(&go).await.status(), SubmissionStatus::Done, "{name}");
            kit.reporters_are_over().await;
            sent.push(name);
            assert_eq!(kit.told().await, Told::once(&sent));
        }
    }
});

scenario!(s087_the_parents_abort_and_idleness_stop_at_the_anchor, async |kit| {
    kit.scouts(&[]).await;
    let subagent = slow(&kit).await;
    let root = kit.root().await;
    root.wait_for_idle().await.unwrap();
    kit.harness().wait_for_idle().await.unwrap();
    root.abort(false).await.unwrap();
    let (anchor, reporter) = (only(&kit, Anchor::NAME).await, only(&kit, Reporter::NAME).await);
    assert!(!anchor.abort_requested && !reporter.abort_requested);
    // It is held where the work of its conversation began before its end, and else over; later work there is not its own.
    assert!(["completing completed", "terminal completed"].contains(&status(&anchor).as_str()), "{anchor:?}");
    assert!(kit.conversation(subagent).await.live().await.unwrap().run.is_some());
    kit.stage.release();
    kit.reporters_are_over().await;
    assert_eq!(kit.told().await, Told::once(&names(&[SLOW])));
});

scenario!(s087_an_abort_with_background_stops_the_subagent_and_its_reporter, async |kit| {
    kit.scouts(&[]).await;
    let subagent = slow(&kit).await;
    kit.root().await.abort(true).await.unwrap();
    let (anchor, reporter) = (only(&kit, Anchor::NAME).await, only(&kit, Reporter::NAME).await);
    assert_eq!((status(&anchor).as_str(), status(&reporter).as_str()), ("terminal completed", "terminal aborted"));
    let subagent = kit.conversation(subagent).await;
    assert!(subagent.live().await.unwrap().run.is_none());
    assert_eq!(kit.told().await.answers, [""; 0]);
    // The subagent is there and can be spoken to again: a terminal owner cancels nothing.
    kit.stage.answer_by(scout::answers);
    go(&kit, SLOW).await;
    kit.reporters_are_over().await;
    assert_eq!(kit.told().await.answers, ["slow: done by slow"]);
});

scenario!(an_abort_of_a_reporter_leaves_what_it_delivered, async |kit| {
    kit.scouts(&[]).await;
    let subagent = slow(&kit).await;
    let reporter = only(&kit, Reporter::NAME).await;
    kit.harness().abort_task(reporter.id).await.unwrap();
    kit.reporters_are_over().await;
    assert_eq!(status(&only(&kit, Reporter::NAME).await), "terminal aborted");
    kit.stage.release();
    let subagent = kit.conversation(subagent).await;
    subagent.wait_for_idle().await.unwrap();
    assert_eq!(kit.entries(&subagent).await.last().unwrap().text(), "done by slow");
    assert_eq!(kit.told().await.answers, [""; 0], "nobody reports it");
});

scenario!(an_answer_waits_for_the_end_of_the_parents_run, async |kit| {
    kit.scouts(&[]).await;
    slow(&kit).await;
    let busy = kit.busy("call the gate").await;
    kit.stage.release();
    kit.until("the answer in the queue", async || kit.inbox().await.iter().any(|(_, mode)| *mode == "followUp")).await;
    kit.stage.give(Reply::text("gate is through"));
    kit.gate.open();
    kit.settled(&busy).await;
    kit.reporters_are_over().await;
    let said = kit.said().await;
    let place = |text: &str| said.iter().position(|said| said.ends_with(text)).unwrap_or_else(|| panic!("no {text:?} in {said:#?}"));
    assert!(place("gate is through") < place("slow: done by slow"), "{said:#?}");
    assert_eq!(said.last().map(String::as_str), Some("pi.assistant:heard slow"));
});

scenario!(a_subagent_that_fails_is_reported_as_such, async |kit| {
    kit.scouts(&[]).await;
    kit.stage.answer_by(|messages| {
        if scout::said(messages) == "work for scout" { Some(Reply::error("401 unauthorized")) } else { scout::answers(messages) }
    });
    go(&kit, "scout").await;
    kit.reporters_are_over().await;
    let told = kit.told().await;
    assert_eq!((told.anchors, told.reporters), (names(&["terminal completed"]), names(&["terminal completed"])));
    assert_eq!(told.answers.len(), 1);
    assert!(told.answers[0].starts_with("scout: no answer ("), "{:?}", told.answers);
});

scenario!(a_run_that_somebody_begins_in_a_subagent_is_not_reported, async |kit| {
    kit.scouts(&[]).await;
    go(&kit, "scout").await;
    kit.reporters_are_over().await;
    let subagents = kit.harness().snapshot(&SUBAGENTS, kit.root().await.id()).await.unwrap().unwrap();
    let subagent = kit.conversation(subagents.named["scout"].conversation).await;
    let asked = subagent.submit(SubmissionDraft::input("work for me")).await.unwrap();
    assert_eq!(kit.settled(&asked).await.status(), SubmissionStatus::Done);
    kit.reporters_are_over().await;
    assert_eq!(kit.told().await.answers, ["scout: done by scout"]);
});
