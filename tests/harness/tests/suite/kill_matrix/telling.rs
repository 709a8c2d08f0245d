//! The part of the recorded run that has a background subagent: a parent tells it to work and hears of it through the reporter.

use std::time::Duration;

use picofleet_harness::config::ConfigPatch;
use picofleet_harness::host::{ConversationOptions, Harness};
use picofleet_harness::kind::TaskKind as _;
use picofleet_harness::registry::Registry;
use picofleet_harness::submission::SubmissionDraft;
use picofleet_harness_tests::background::{Anchor, Reporter};
use picofleet_harness_tests::scout::{self, Told};
use picofleet_harness_tests::text;
use picofleet_models::model::Model;
use picofleet_session::message::{AssistantMessage, Message};
use picofleet_session::storage::SessionReader;
use picofleet_session::{ConversationId, EntryRecord};

use super::program::config;

/// The subagent.
const NAME: &str = "scout";

/// What the parent is asked first.
pub(super) const GO: &str = "go scout";

/// What the subagent is told.
pub(super) const WORK: &str = "work for scout";

pub(super) fn register(registry: &Registry) {
    scout::register(registry, ConfigPatch { active_tools: Some(Vec::new()), ..config() });
}

/// Until the parent has answered what it heard.
pub(super) async fn run(harness: &Harness) {
    let patch = ConfigPatch { active_tools: Some(vec!["tell".into()]), ..config() };
    let parent = harness.create_conversation(ConversationOptions::ownerless().key("parent").config(patch)).await.unwrap();
    parent.submit(SubmissionDraft::input(GO).request_id(GO)).await.unwrap().wait().await.unwrap();
    // Idleness stops at background work.
    while in_background(harness).await {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    parent.wait_for_idle().await.unwrap();
}

async fn in_background(harness: &Harness) -> bool {
    let tasks = harness.inspect().await.unwrap().tasks;
    tasks.iter().any(|task| [Anchor::NAME, Reporter::NAME].contains(&task.record.kind.as_str()))
}

/// What the model says to the two; `None` for any other.
pub(super) fn answer(model: &Model, messages: &[Message]) -> Option<AssistantMessage> {
    let said = scout::said(messages);
    let mine = said == GO || said == WORK || said.starts_with(&format!("{NAME}: "));
    scout::answers(messages).filter(|_| mine).map(|reply| reply.message(model))
}

/// The subagent was told once, its parent heard of it once, and what carried that is over.
pub(super) async fn check(reader: &dyn SessionReader, parent: ConversationId, name: &str) {
    assert_eq!(Told::by(reader, parent).await, Told::once(&[NAME.to_owned()]), "{name}");
}

/// The parent of a run that nobody killed had all of it, in this order.
pub(super) fn check_uninterrupted(parent: &[EntryRecord]) {
    let mut said: Vec<&EntryRecord> = parent.iter().filter(|entry| entry.kind != "pi.system").collect();
    said.sort_by_key(|entry| entry.id);
    let said: Vec<(&str, String)> = said.into_iter().map(|entry| (entry.kind.as_str(), text(entry))).collect();
    let texts: Vec<(&str, &str)> = said.iter().map(|(kind, text)| (*kind, text.as_str())).collect();
    let (asked, sent) = (("pi.user", GO), ("pi.assistant", "sent scout"));
    let (answered, heard) = (("pi.user", "scout: done by scout"), ("pi.assistant", "heard scout"));
    assert_eq!(texts, [asked, ("pi.assistant", ""), ("pi.tool-result", ""), sent, answered, heard]);
}
