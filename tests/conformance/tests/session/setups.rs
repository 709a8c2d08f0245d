//! Setups of new conversations (sections 2.2 and 7.1).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures::future::BoxFuture;
use picofleet_conformance::documents::{AS_OF, INITIAL, append_plain, set_n};
use picofleet_conformance::{NOW, World};
use picofleet_session::storage::Fence;
use picofleet_session::{
    CommitError, ConversationCreated, ConversationOwnership, ConversationRecord, Epoch, Session, SessionOptions, Tx, TxError, Violation,
};

scenarios! {
    every_creation_is_set_up_in_its_commit,
    a_setup_that_fails_fails_the_creation_and_its_commit,
    setups_that_make_conversations_end,
}

/// Gives each conversation a document that is not copied to it.
#[derive(Default)]
struct Gives(AtomicU32);

impl ConversationCreated for Gives {
    fn created<'a>(&'a self, tx: &'a Tx, record: &'a ConversationRecord) -> BoxFuture<'a, Result<(), TxError>> {
        Box::pin(async move {
            self.0.fetch_add(1, Ordering::SeqCst);
            if !tx.has_doc(&AS_OF, record.id).await? {
                tx.doc(&AS_OF, record.id).await?.edit(|note| note.n = 7)?;
            }
            tx.doc(&INITIAL, record.id).await?.edit(|note| note.n = 8)
        })
    }
}

struct Fails;

impl ConversationCreated for Fails {
    fn created<'a>(&'a self, _tx: &'a Tx, record: &'a ConversationRecord) -> BoxFuture<'a, Result<(), TxError>> {
        Box::pin(async move { Err(Violation::UnknownConversation { conversation: record.id }.into()) })
    }
}

/// Makes one more conversation, which is set up too.
struct Multiplies(Arc<AtomicU32>, u32);

impl ConversationCreated for Multiplies {
    fn created<'a>(&'a self, tx: &'a Tx, _record: &'a ConversationRecord) -> BoxFuture<'a, Result<(), TxError>> {
        Box::pin(async move {
            if self.0.fetch_add(1, Ordering::SeqCst) < self.1 {
                tx.create_conversation(ConversationOwnership::Ownerless).await?;
            }
            Ok(())
        })
    }
}

async fn with(world: &World, setup: impl ConversationCreated) -> Session {
    let line = world.store().open(world.session.id(), Fence { epoch: Epoch(0), at: NOW }).await.unwrap();
    let setup: Arc<dyn ConversationCreated> = Arc::new(setup);
    Session::over(line, SessionOptions { on_create: Arc::from([setup]), ..SessionOptions::default() })
}

async fn every_creation_is_set_up_in_its_commit(world: World) {
    let root = world.root();
    set_n(&world.session, &AS_OF, root, 1).await;
    let at = append_plain(&world.session, root).await.id;
    let session = with(&world, Gives::default()).await;
    let before = session.store().head().await.unwrap().seq;
    let (new, fork) = session
        .commit(async |tx| {
            let new = tx.create_conversation(ConversationOwnership::Ownerless).await?;
            let fork = tx.fork_conversation(root, at, ConversationOwnership::Ownerless).await?;
            Ok::<_, CommitError>((new.id, fork.id))
        })
        .await
        .unwrap();
    assert_eq!(session.store().head().await.unwrap().seq, before.next());
    for (conversation, n) in [(new, 7), (fork, 1)] {
        assert_eq!(session.snapshot(&AS_OF, conversation).await.unwrap().unwrap().n, n);
        assert_eq!(session.snapshot(&INITIAL, conversation).await.unwrap().unwrap().n, 8);
    }
    session.close().await.unwrap();
}

async fn a_setup_that_fails_fails_the_creation_and_its_commit(world: World) {
    let session = with(&world, Fails).await;
    let before = session.store().head().await.unwrap().seq;
    let swallowed = session
        .commit(async |tx| {
            let created = tx.create_conversation(ConversationOwnership::Ownerless).await;
            assert!(matches!(created, Err(TxError::Invalid(Violation::UnknownConversation { .. }))), "{created:?}");
            Ok::<_, CommitError>(())
        })
        .await;
    assert!(matches!(swallowed, Err(CommitError::Invalid(Violation::UnknownConversation { .. }))), "{swallowed:?}");
    assert_eq!(session.store().head().await.unwrap().seq, before);
    session.close().await.unwrap();
}

async fn setups_that_make_conversations_end(world: World) {
    let count = Arc::new(AtomicU32::new(0));
    let session = with(&world, Multiplies(Arc::clone(&count), 3)).await;
    let create = async |tx: &Tx| tx.create_conversation(ConversationOwnership::Ownerless).await.map_err(CommitError::from);
    session.commit(create).await.unwrap();
    assert_eq!(count.load(Ordering::SeqCst), 4);
    session.close().await.unwrap();
    let session = with(&world, Multiplies(count, u32::MAX)).await;
    let endless = session.commit(create).await;
    assert!(matches!(endless, Err(CommitError::Invalid(Violation::SetupDepth { .. }))), "{endless:?}");
    session.close().await.unwrap();
}
