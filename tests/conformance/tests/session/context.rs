//! The context of a conversation through its ancestry (section 2.1); the rules themselves have their tests in `picofleet-session`.

use picofleet_conformance::World;
use picofleet_conformance::documents::{append, append_plain, assistant, commit, tool_result, user};
use picofleet_session::message::{Message, StopReason};
use picofleet_session::{
    ContextEdit, ConversationId, ConversationOwnership, DraftHead, EditAction, EntryDraft, EntryId, ReadError, Session, Violation,
};

scenarios! {
    context_through_forks_with_heads_and_edits,
    context_of_more_entries_than_a_page,
    context_of_what_is_not_there,
}

async fn say(session: &Session, conversation: ConversationId, text: &str) -> EntryId {
    append(session, conversation, EntryDraft::new("t.user").model(vec![user(text)])).await.id
}

async fn fork(session: &Session, parent: ConversationId, at: EntryId) -> ConversationId {
    commit(session, async |tx| tx.fork_conversation(parent, at, ConversationOwnership::Ownerless).await).await.unwrap().id
}

async fn context(session: &Session, conversation: ConversationId, at: Option<EntryId>) -> Vec<Message> {
    session.context(conversation, at).await.unwrap().messages
}

fn users<const N: usize>(texts: [&str; N]) -> Vec<Message> {
    texts.into_iter().map(user).collect()
}

async fn context_through_forks_with_heads_and_edits(mut world: World) {
    let root = world.root();
    let a = say(&world.session, root, "a").await;
    let b = say(&world.session, root, "b").await;
    let head = EntryDraft::new("t.head").model(vec![user("summary of a")]).head(DraftHead::Entry(b));
    let head = append(&world.session, root, head).await.id;
    let c = say(&world.session, root, "c").await;
    world.step().await;
    let before = fork(&world.session, root, b).await;
    let after = fork(&world.session, root, c).await;
    say(&world.session, root, "d").await;
    let x = say(&world.session, before, "x").await;
    let edits = Some(vec![
        ContextEdit { target: b, action: EditAction::Omit },
        ContextEdit { target: x, action: EditAction::Replace { messages: users(["y", "z"]) } },
    ]);
    append(&world.session, before, EntryDraft { edits, ..EntryDraft::new("t.edit") }).await;
    world.step().await;
    let session = &world.session;
    assert_eq!(context(session, root, None).await, users(["summary of a", "b", "c", "d"]));
    assert_eq!(context(session, root, Some(b)).await, users(["a", "b"]));
    assert_eq!(context(session, root, Some(head)).await, users(["summary of a", "b"]));
    assert_eq!(context(session, before, None).await, users(["a", "y", "z"]), "the parent's head is later than the fork");
    assert_eq!(context(session, before, Some(x)).await, users(["a", "b", "x"]), "an edit counted before it was there");
    assert_eq!(context(session, before, Some(a)).await, users(["a"]));
    assert_eq!(context(session, after, None).await, users(["summary of a", "b", "c"]));
    // A head of the child that keeps the parent's from an entry on.
    let own = EntryDraft::new("t.head").model(vec![user("summary of b")]).head(DraftHead::Entry(c));
    append(session, after, own).await;
    say(session, after, "e").await;
    let view = session.context(after, None).await.unwrap();
    assert_eq!(view.messages, users(["summary of b", "c", "e"]));
    assert_eq!(view.entries.len(), 3);
    assert_eq!(context(session, root, None).await, users(["summary of a", "b", "c", "d"]));
    // And one on itself.
    append(session, after, EntryDraft::new("pi.reset").head(DraftHead::Itself)).await;
    assert_eq!(context(session, after, None).await, []);
}

async fn context_of_more_entries_than_a_page(mut world: World) {
    let root = world.root();
    commit(&world.session, async |tx| {
        tx.append_entry(root, EntryDraft::new("t.a").model(vec![assistant("call", &[("1", "t")], StopReason::ToolUse)])).await?;
        for i in 0..1_500 {
            tx.append_entry(root, EntryDraft::new("t.user").model(vec![user(&i.to_string())])).await?;
        }
        tx.append_entry(root, EntryDraft::new("t.r").model(vec![tool_result("1", "late")])).await.map(|_| ())
    })
    .await
    .unwrap();
    world.step().await;
    let messages = context(&world.session, root, None).await;
    assert_eq!(messages.len(), 1_502);
    assert_eq!(messages[1], tool_result("1", "late"));
    assert_eq!((&messages[2], &messages[1_501]), (&user("0"), &user("1499")));
}

async fn context_of_what_is_not_there(mut world: World) {
    let root = world.root();
    assert_eq!(world.session.context(root, None).await.unwrap(), Default::default());
    let visible = append_plain(&world.session, root).await.id;
    let child = fork(&world.session, root, visible).await;
    let later = append_plain(&world.session, root).await.id;
    world.step().await;
    let read = world.session.context(child, Some(later)).await;
    assert!(matches!(read, Err(ReadError::Invalid(Violation::NotVisible { .. }))), "{read:?}");
    let unknown = ConversationId::new(9_999).unwrap();
    for at in [None, Some(visible)] {
        let read = world.session.context(unknown, at).await;
        assert!(matches!(read, Err(ReadError::Invalid(Violation::UnknownConversation { .. }))), "{read:?}");
    }
    assert_eq!(world.session.context(child, None).await.unwrap().entries.len(), 1);
}
