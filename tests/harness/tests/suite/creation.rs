//! How conversations are made: each with everything in one commit (section 2.2).

use std::sync::{Arc, Mutex};

use picofleet_harness::config::{CONFIG, ConfigPatch};
use picofleet_harness::effects::{Fault, HostCommit};
use picofleet_harness::host::{ConversationFilter, ConversationOptions, HostError};
use picofleet_harness::tools::ToolResult;
use picofleet_harness_tests::{Closure, Kit, Reply, Stage, scenario};
use picofleet_session::storage::{Commit, Write};
use picofleet_session::{
    CommitError, ConversationId, ConversationOwnership, DocumentScope, EntryDraft, ROOT_CONVERSATION_ID, SubmissionStatus, TaskId, Tx,
    TxError,
};

use super::tools::add;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

const BUILT_IN: [&str; 4] = ["pi.conversation.config", "pi.inbox", "pi.live", "pi.usage"];

fn patch() -> ConfigPatch {
    ConfigPatch { model: Some(Some(Stage::model_ref())), ..ConfigPatch::default() }
}

/// The commit that made a conversation, of those since the last call, with the kinds of the documents that it made for it.
fn commit_of(kit: &Kit, conversation: ConversationId) -> (Commit, Vec<String>) {
    let made = |write: &Write| matches!(write, Write::Conversation(record) if record.id == conversation);
    let mut commits: Vec<Commit> = kit.disk.written();
    commits.retain(|commit| commit.writes.iter().any(made));
    assert_eq!(commits.len(), 1, "one commit makes it");
    let commit = commits.remove(0);
    let of = |create: &picofleet_session::DocumentCreate| create.placement.scope() == DocumentScope::Conversation { id: conversation };
    let mut kinds: Vec<String> = commit
        .writes
        .iter()
        .filter_map(|write| match write {
            Write::DocumentCreate { create, .. } if of(create) => Some(create.kind.clone()),
            Write::DocumentCopy(copy) if of(&copy.create) => Some(copy.create.kind.clone()),
            _ => None,
        })
        .collect();
    kinds.sort();
    (commit, kinds)
}

async fn count(kit: &Kit) -> usize {
    kit.harness().conversations(ConversationFilter::default(), 100, None).await.unwrap().items.len()
}

scenario!(s199_a_conversation_is_made_whole_or_not_at_all, async |kit| {
    let harness = kit.harness();
    let made = harness.create_conversation(ConversationOptions::ownerless().config(patch()).key("one")).await.unwrap();
    assert_eq!(made.model().await.unwrap(), Some(Stage::model_ref()));
    for kind in ["pi.conversation.config", "pi.live", "pi.inbox", "pi.usage"] {
        assert!(made.document(kind).await.unwrap().is_some(), "{kind}");
    }
    // The key names it: the second call makes nothing, also after a reopen, and another call under it is refused.
    let options = ConversationOptions::ownerless().config(patch()).key("one");
    assert_eq!(harness.create_conversation(options.clone()).await.unwrap().id(), made.id());
    kit.reopen().await;
    let harness = kit.harness();
    assert_eq!(harness.create_conversation(options).await.unwrap().id(), made.id());
    let other = harness.create_conversation(ConversationOptions::ownerless().key("one")).await.map(|made| made.id());
    assert!(matches!(&other, Err(HostError::Invalid { field: Some(field), .. }) if field == "key"), "{other:?}");
    // What is not allowed makes no conversation.
    let wrong = ConfigPatch { active_tools: Some(vec!["ghost".to_owned()]), ..ConfigPatch::default() };
    let refused = harness.create_conversation(ConversationOptions::ownerless().config(wrong)).await.map(|made| made.id());
    assert!(matches!(refused, Err(HostError::Invalid { field: Some(_), .. })), "{refused:?}");
    let unknown = TaskId::new(9_999).unwrap();
    let refused = harness.create_conversation(ConversationOptions::owned_by(unknown)).await.map(|made| made.id());
    assert_eq!(refused, Err(HostError::NotFound { what: "task".to_owned(), id: 9_999 }));
    let all = harness.conversations(ConversationFilter::default(), 100, None).await.unwrap();
    assert_eq!(all.items.iter().map(|record| record.id.get()).collect::<Vec<_>>(), [1, made.id().get()]);
});

scenario!(s199_a_conversation_and_a_fork_are_one_commit_each, async |kit| {
    kit.turn("a", Reply::text("x")).await;
    let root = kit.root().await;
    let at = kit.entries(&root).await[0].id;
    let _ = kit.disk.written();
    let made = kit.harness().create_conversation(ConversationOptions::ownerless().config(patch())).await.unwrap();
    assert_eq!(commit_of(&kit, made.id()).1, BUILT_IN);
    assert_eq!((made.model().await.unwrap(), made.active_tools().await.unwrap().len()), (Some(Stage::model_ref()), 5));
    let sequential = ConfigPatch { thinking_level: Some("high".to_owned()), ..ConfigPatch::default() };
    let fork = root.fork(at, ConversationOptions::ownerless().config(sequential)).await.unwrap();
    assert_eq!(commit_of(&kit, fork.id()).1, BUILT_IN);
    let config = fork.config().await.unwrap();
    assert_eq!((config.thinking_level.as_str(), config.model), ("high", Some(Stage::model_ref())), "what is visible at the fork, changed");
});

/// What an application does in the commit of a creation, behind the setups: documents can be opened, tables not read.
async fn init(tx: &Tx, conversation: ConversationId) -> Result<(), CommitError> {
    let reads = [tx.conversation(conversation).await.map(drop), tx.conversation(ROOT_CONVERSATION_ID).await.map(drop)];
    assert!(reads.iter().all(|read| matches!(read, Err(TxError::ReadAfterWrite))), "{reads:?}");
    let entry = tx.append_entry(conversation, EntryDraft::new("seed")).await?;
    assert!(matches!(tx.entry(entry.id).await.map(drop), Err(TxError::ReadAfterWrite)));
    let patch = patch();
    tx.doc(&CONFIG, conversation).await?.edit(|value| patch.apply(value))?;
    Ok(())
}

async fn is_whole(kit: &Kit, made: ConversationId) {
    let (commit, kinds) = commit_of(kit, made);
    assert_eq!(kinds, BUILT_IN);
    let seeds = commit.writes.iter().filter(|write| matches!(write, Write::Entry(entry) if entry.conversation_id == made)).count();
    assert_eq!(seeds, 1, "what was added is in the same commit");
    let made = kit.conversation(made).await;
    assert_eq!(made.model().await.unwrap(), Some(Stage::model_ref()));
    assert_eq!(kit.entries(&made).await.last().map(|entry| entry.kind.as_str()), Some("seed"));
    assert_eq!(made.document("pi.live").await.unwrap(), Some(crate::empty()));
}

scenario!(s199_a_closure_makes_a_conversation_with_what_it_needs, async |kit| {
    kit.turn("a", Reply::text("x")).await;
    let at = kit.entries(&kit.root().await).await[0].id;
    let _ = kit.disk.written();
    let made: Result<ConversationId, BoxError> = kit
        .harness()
        .commit(HostCommit::default(), async |tx| {
            let made = tx.create_conversation(ConversationOwnership::Ownerless).await?.id;
            init(tx, made).await?;
            Ok(made)
        })
        .await;
    is_whole(&kit, made.unwrap()).await;
    let fork: Result<ConversationId, BoxError> = kit
        .harness()
        .commit(HostCommit::default(), async |tx| {
            let fork = tx.fork_conversation(ROOT_CONVERSATION_ID, at, ConversationOwnership::Ownerless).await?.id;
            init(tx, fork).await?;
            Ok(fork)
        })
        .await;
    is_whole(&kit, fork.unwrap()).await;
    // A closure that fails makes nothing.
    let before = count(&kit).await;
    let failed: Result<(), BoxError> = kit
        .harness()
        .commit(HostCommit::default(), async |tx| {
            let made = tx.create_conversation(ConversationOwnership::Ownerless).await?.id;
            init(tx, made).await?;
            Err("on purpose".into())
        })
        .await;
    assert_eq!(failed.unwrap_err().to_string(), "on purpose");
    assert_eq!(count(&kit).await, before);
});

scenario!(s199_a_tool_makes_a_conversation_with_what_it_needs, async |kit| {
    let made = Arc::new(Mutex::new(None));
    let kept = Arc::clone(&made);
    let tool = Closure::new("makes", move |_, api| {
        let kept = Arc::clone(&kept);
        async move {
            let ownership = ConversationOwnership::Task { task_id: api.task_id() };
            let id = api
                .commit(async |tx| {
                    let made = tx.create_conversation(ownership).await?.id;
                    init(tx, made).await?;
                    Ok::<_, Fault>(made)
                })
                .await?;
            *kept.lock().unwrap() = Some(id);
            Ok(ToolResult::text("made"))
        }
    });
    add(&kit, tool).await;
    let _ = kit.disk.written();
    kit.stage.give(Reply::call("c1", "makes", "{}"));
    kit.stage.give(Reply::text("done"));
    let go = kit.say("go").await;
    assert_eq!(kit.settled(&go).await.status(), SubmissionStatus::Done);
    let id = made.lock().unwrap().unwrap();
    is_whole(&kit, id).await;
});
