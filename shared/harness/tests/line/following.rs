//! Readers of a conversation, as the line answers them.

use picofleet_harness::line::LineError;
use picofleet_harness::wire::{Answer, Follow, FollowCall, Following, HostFailure, Point, Request, WatchId};
use picofleet_session::{ConversationId, EntryDraft, ROOT_CONVERSATION_ID};

use crate::support::*;

/// What a reader gets behind a commit, at once.
async fn ask(bench: &Bench, reader: WatchId, conversation: ConversationId, after: Option<Point>) -> Answer {
    let call = FollowCall::Next { after, timeout_ms: 0 };
    bench.line.handle(Request::Follow(Follow { reader, conversation, call })).await
}

/// Appends an entry to the root conversation.
async fn note(bench: &Bench) {
    let append = async |tx: &picofleet_session::Tx| {
        tx.append_entry(ROOT_CONVERSATION_ID, EntryDraft::new("note")).await?;
        Ok::<_, picofleet_session::CommitError>(())
    };
    bench.line.session().commit(append).await.unwrap();
}

#[tokio::test]
async fn a_reader_begins_behind_a_commit_of_nothing() {
    both(async |store| {
        let bench = Bench::running(store, &[]).await.killed(&[]).await.killed(&[]).await;
        let head = async || bench.line.session().store().head().await.unwrap();
        let opened = head().await;
        bench.line.session().survived().await.unwrap();
        let survived = head().await;
        assert!(survived.seq > opened.seq, "the opens were cleared");
        let reader = WatchId::random();
        let begun = ask(&bench, reader, ROOT_CONVERSATION_ID, None).await;
        let Answer::Following(Following::Snapshot(mount)) = begun else { panic!("{begun:?}") };
        assert_eq!(mount.at(), Point(survived.seq, survived.token));
        let next = ask(&bench, reader, ROOT_CONVERSATION_ID, Some(mount.at())).await;
        let nothing = Following::Frames { frames: Vec::new(), complete_to: mount.at() };
        assert_eq!(next, Answer::Following(nothing), "it has everything");
        note(&bench).await;
        let next = ask(&bench, reader, ROOT_CONVERSATION_ID, Some(mount.at())).await;
        let Answer::Following(Following::Frames { frames, .. }) = next else { panic!("{next:?}") };
        assert_eq!(frames.len(), 1);
    })
    .await;
}

#[tokio::test]
async fn a_watch_that_is_refused_says_why() {
    both(async |store| {
        let bench = Bench::running(store, &[]).await;
        let missing = bench.line.watch(ConversationId::new(999).unwrap()).await.map(drop);
        assert!(matches!(missing, Err(LineError::Unwatched(HostFailure::NotFound { id: 999, .. }))), "{missing:?}");
    })
    .await;
}
