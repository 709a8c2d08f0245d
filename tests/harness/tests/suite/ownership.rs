//! Who owns new work (section 5.5).

use std::sync::Arc;

use picofleet_harness::effects::Fault;
use picofleet_harness::host::{ConversationOptions, HostError};
use picofleet_harness::kind::{Next, Outcome, TaskOptions, TxTasks as _};
use picofleet_harness_tests::{ABORTED, Act, Kit, Owner, scenario};
use picofleet_session::{EntryDraft, TaskId};
use tokio::sync::Notify;

const TOP: TaskOptions = TaskOptions::top_level();

scenario!(s092_a_child_has_an_owner_and_its_conversation, async |kit| {
    let _owner = kit.owner().await;
    let top = kit.add("top", TOP).await;
    let owned = kit.owned(top).await;
    let inner = kit.add("inner", TOP.in_conversation(owned)).await;
    let child = kit.task(kit.add("child", TaskOptions::owned_by(inner)).await.erase()).await;
    assert_eq!((child.owner, child.conversation_id, child.background), (Some(inner.erase()), owned, false));
    for (task, conversation) in [(top, kit.root().await.id()), (inner, owned)] {
        let record = kit.task(task.erase()).await;
        assert_eq!((record.owner, record.conversation_id), (None, conversation));
        assert_eq!(picofleet_session::Json::from_serde(&record).unwrap().get("owner"), None, "no field");
    }
});

scenario!(s093_what_owns_nothing_creates_nothing, async |kit| {
    let _owner = kit.owner().await;
    let top = kit.add("top", TOP).await;
    let other = kit.owned(top).await;
    let missing = TaskId::<u32>::new(9_999).unwrap();
    // That nobody is named as the owner can't be said: `TaskOptions` has one.
    let child = TaskOptions::owned_by(top);
    let refused = [
        (TaskOptions::owned_by(missing), "does not exist"),
        (child.in_conversation(other), "owner's conversation"),
        (child.background(), "cannot be background"),
    ];
    for (options, text) in refused {
        let error = kit.try_add("child", options).await.unwrap_err();
        assert!(error.contains(text), "{error}");
    }
    assert_eq!(kit.harness().inspect().await.unwrap().tasks.len(), 1);
    // From a commit about another conversation a child is still in its owner's.
    let bound = kit.conversation(other).await;
    let created: Result<_, Box<dyn std::error::Error + Send + Sync>> = bound
        .commit(async |tx| {
            let child = tx.create_task(&Owner::default(), "child".to_owned(), child).await?;
            Ok((child, tx.create_task(&Owner::default(), "bound".to_owned(), TOP).await?))
        })
        .await;
    let (child, in_bound) = created.unwrap();
    assert_eq!(kit.task(child.erase()).await.conversation_id, kit.root().await.id());
    assert_eq!(kit.task(in_bound.erase()).await.conversation_id, other);
});

async fn refuses(kit: &Kit, owner: TaskId<u32>, state: &str) {
    let error = kit.try_add("child", TaskOptions::owned_by(owner)).await.unwrap_err();
    assert!(error.contains(state), "{error}");
    let made = kit.harness().create_conversation(ConversationOptions::owned_by(owner.erase())).await;
    let Err(HostError::Invalid { why, .. }) = made.map(|made| made.id()) else { panic!("a conversation of a task that {state}") };
    assert!(why.contains(state), "{why}");
}

scenario!(s094_an_owner_that_ends_owns_nothing_new, async |kit| {
    let owner = kit.owner().await;
    let gate = Arc::new(Notify::new());
    let (marked, held, over) = (kit.add("marked", TOP).await, kit.add("held", TOP).await, kit.add("over", TOP).await);
    let child = kit.add("child", TaskOptions::owned_by(held)).await;
    owner.tell("held", Act::end(Outcome::Completed(1)));
    owner.tell("over", Act::end(Outcome::Completed(1)));
    kit.comes(held, "completing completed").await;
    kit.comes(over, "terminal completed").await;
    kit.ran(&owner, &["marked:0"]).await;
    owner.tell("marked:abort", Act::end(ABORTED).behind(&gate));
    kit.harness().abort_task(marked.erase()).await.unwrap();
    kit.ran(&owner, &["marked:abort"]).await;
    for (task, state) in [(held, "is completing"), (over, "is terminal"), (marked, "is abort-marked")] {
        refuses(&kit, task, state).await;
    }
    gate.notify_one();
    owner.tell("child", Act::end(Outcome::Completed(1)));
    kit.comes(child, "terminal completed").await;
});

/// Ends the task in a commit that writes a note and creates another task, as its child or where `options` say.
fn ends_with(owner: &Owner, name: &'static str, options: Option<TaskOptions>) -> Act {
    let owner = owner.clone();
    Act::new(move |_, runtime| async move {
        runtime
            .commit(async |tx, current| {
                tx.append_entry(current.conversation, EntryDraft::new("note")).await?;
                let options = options.unwrap_or_else(|| TaskOptions::owned_by(current.id));
                tx.create_task(&owner, name.to_owned(), options).await?;
                Ok::<_, Fault>(Next::End(Outcome::Completed(5)))
            })
            .await
    })
}

scenario!(s095_a_finishing_commit_can_create_no_child_but_work_in_a_conversation_it_owns, async |kit| {
    let owner = kit.owner().await;
    let refused = kit.add("refused", TOP).await;
    owner.tell("refused", ends_with(&owner, "child", None));
    let outcome = kit.harness().wait_for_task(refused).await.unwrap();
    assert!(matches!(&outcome, Outcome::Faulted(error) if error.message.contains("is completing")), "{outcome:?}");
    assert!(kit.kinds().await.is_empty() && kit.harness().inspect().await.unwrap().tasks.is_empty(), "nothing of it was written");

    let task = kit.add("task", TOP).await;
    let owned = kit.owned(task).await;
    owner.tell("task", ends_with(&owner, "work", Some(TOP.in_conversation(owned))));
    kit.comes(task, "completing completed").await;
    assert_eq!(kit.kinds().await, ["note"]);
    owner.tell("work", Act::end(Outcome::Completed(1)));
    assert_eq!(kit.harness().wait_for_task(task).await.unwrap(), Outcome::Completed(5));
    assert_eq!(owner.log(), ["refused:0", "task:0", "work:0"]);
});
