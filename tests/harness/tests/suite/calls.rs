//! Calls of a host over a transport that loses answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures::future::BoxFuture;
use picofleet_harness::host::{ConversationFilter, ConversationOptions, Harness, HostError, SubmitError, Withdrawn};
use picofleet_harness::submission::SubmissionDraft;
use picofleet_harness::transport::{CallError, Transport};
use picofleet_harness::wire::{Answer, Beat, BeatAnswer, Request};
use picofleet_harness_tests::{Backing, Kit, Reply, Wire, scenario};
use picofleet_session::{DocumentAddress, DocumentScope, EntryDraft, SessionId, SubmissionStatus};

/// Loses the answers of the next calls, behind the call or before it.
struct Lossy {
    inner: Arc<dyn Transport>,
    answers: AtomicU32,
    calls: AtomicU32,
}

/// Takes one off, where there is one.
fn take(left: &AtomicU32) -> bool {
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
}

impl Transport for Lossy {
    fn call(&self, session: SessionId, request: Request) -> BoxFuture<'_, Result<Answer, CallError>> {
        Box::pin(async move {
            if take(&self.calls) {
                return Err(CallError::Unavailable { session, why: "lost on the way".to_owned() });
            }
            let answer = self.inner.call(session, request).await;
            if take(&self.answers) { Err(CallError::NoAnswer(session)) } else { answer }
        })
    }

    fn beat(&self, beat: Beat) -> BoxFuture<'_, Result<BeatAnswer, CallError>> {
        self.inner.beat(beat)
    }
}

fn lossy(kit: &Kit) -> (Arc<Lossy>, Harness) {
    let lossy = Arc::new(Lossy { inner: kit.transport(), answers: AtomicU32::new(0), calls: AtomicU32::new(0) });
    let transport: Arc<dyn Transport> = lossy.clone();
    (lossy, Harness::connect(transport, kit.session()))
}

scenario!(a_lost_answer_does_nothing_twice, async |kit| {
    let (lossy, harness) = lossy(&kit);
    let root = harness.root().await.unwrap();
    let lose = || lossy.answers.store(2, Ordering::SeqCst);
    lose();
    let made = harness.create_conversation(ConversationOptions::ownerless()).await.unwrap();
    assert_eq!(harness.conversations(ConversationFilter::default(), 10, None).await.unwrap().items.len(), 2);
    lose();
    let note = made.submit(SubmissionDraft::write(EntryDraft::new("note"))).await.unwrap();
    let entries = kit.entries(&made).await;
    assert_eq!(entries.len(), 1);
    lose();
    let fork = made.fork(entries[0].id, ConversationOptions::ownerless()).await.unwrap();
    assert_eq!(harness.conversations(ConversationFilter::default(), 10, None).await.unwrap().items.last().unwrap().id, fork.id());
    lose();
    made.reset(Some("anew")).await.unwrap();
    assert_eq!(kit.entries(&made).await.iter().filter(|entry| entry.kind == "pi.reset").count(), 1);
    assert_eq!(note.status().await.unwrap().status(), SubmissionStatus::Done);
    // A withdrawal says what it did, also where its first answer was lost.
    let busy = kit.asking("a", Reply::text("x")).await;
    let queued = root.submit(SubmissionDraft::input("b")).await.unwrap();
    lose();
    assert_eq!(queued.abort().await, Ok(Withdrawn::Aborted));
    kit.stage.release();
    kit.settled(&busy).await;
});

async fn untold(wire: Wire) {
    let mut kit = Kit::new(Backing::Memory, wire).await;
    let (lossy, harness) = lossy(&kit);
    let root = harness.root().await.unwrap();
    let submit = async || root.submit(SubmissionDraft::write(EntryDraft::new("note"))).await.map(|submission| submission.id());
    lossy.calls.store(u32::MAX, Ordering::SeqCst);
    let refused = submit().await;
    assert!(matches!(refused, Err(SubmitError::Host(HostError::Unavailable(_)))), "{refused:?}");
    assert!(kit.kinds().await.is_empty());
    lossy.calls.store(0, Ordering::SeqCst);
    lossy.answers.store(u32::MAX, Ordering::SeqCst);
    let unknown = submit().await;
    assert!(matches!(unknown, Err(SubmitError::Host(HostError::OutcomeUnknown(_)))), "{unknown:?}");
    assert_eq!(kit.kinds().await, ["note"]);
    drop((root, harness));
    kit.stop().await;
}

/// The attempts of a host take seconds; their time does not have to pass.
#[tokio::test(start_paused = true)]
async fn what_can_not_be_told_is_said() {
    for wire in [Wire::Plain, Wire::Encoded] {
        untold(wire).await;
    }
}

scenario!(a_document_is_read_by_its_address, async |kit| {
    kit.turn("a", Reply::text("x")).await;
    let address = |kind: &str| DocumentAddress {
        kind: kind.to_owned(),
        scope: DocumentScope::Conversation { id: picofleet_session::ROOT_CONVERSATION_ID },
        key: None,
    };
    let stored = kit.harness().document(address("pi.usage")).await.unwrap().unwrap();
    assert_eq!((stored.version, stored.value), (1, kit.document("pi.usage").await));
    assert_eq!(kit.harness().document(address("unknown")).await, Ok(None));
});
