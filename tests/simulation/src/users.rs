//! Hosts that submit, steer, withdraw, abort and reset, over the same network.

use std::sync::Arc;
use std::time::Duration;

use picofleet_harness::effects::{Fault, HoldError, HostCommit, commit};
use picofleet_harness::kind::{TaskOptions, TxTasks as _};
use picofleet_harness::submission::{SubmissionDraft, WhenBusy};
use picofleet_harness::transport::Transport;
use picofleet_harness::wire::{Answer, HostCall, Request};
use picofleet_session::{CommitError, ConversationId, EntryDraft, SubmissionRecord};

use crate::network::Side;
use crate::world::{Job, JobInput, ROOT, World};

/// Why a host's closure was not committed. The simulation only wants to know that it was not.
#[derive(Debug)]
struct NotCommitted;

impl From<HoldError> for NotCommitted {
    fn from(_: HoldError) -> Self {
        Self
    }
}

impl From<CommitError> for NotCommitted {
    fn from(_: CommitError) -> Self {
        Self
    }
}

impl From<Fault> for NotCommitted {
    fn from(_: Fault) -> Self {
        Self
    }
}

/// A host that acts until it is dropped.
pub(crate) async fn act(world: World, side: Side, number: u64) {
    let mut submitted = Vec::new();
    for step in 0.. {
        tokio::time::sleep(world.pause(8_000)).await;
        let conversations = world.checker.conversations(world.session);
        let conversation =
            conversations.get(usize::try_from(world.below(conversations.len() as u64)).unwrap_or(0)).copied().unwrap_or(ROOT);
        one(&world, &side, conversation, &format!("user-{number}-{step}"), &mut submitted).await;
    }
}

async fn one(world: &World, side: &Side, conversation: ConversationId, key: &str, submitted: &mut Vec<SubmissionRecord>) {
    match world.below(20) {
        0 => {
            world.count("user aborts a conversation");
            call(side, world, HostCall::Abort { conversation, background: world.once_in(2) }).await;
        }
        1 => {
            let live = world.checker.live(world.session);
            if let Some(task) = live.get(usize::try_from(world.below(live.len() as u64)).unwrap_or(0)) {
                world.count("user aborts a task");
                call(side, world, HostCall::AbortTask { task: task.id }).await;
            }
        }
        2 => {
            if let Some(record) = submitted.pop() {
                world.count("user withdraws");
                call(side, world, HostCall::Withdraw { submission: record.id }).await;
            }
        }
        3 => {
            world.count("user resets");
            let call_ = HostCall::Reset { conversation, handoff: world.once_in(2).then(|| "new".to_owned()) };
            call(side, world, HostCall::Keyed { key: key.to_owned(), call: Box::new(call_) }).await;
        }
        4 | 5 => {
            world.count("user writes");
            let draft = SubmissionDraft::write(EntryDraft::new("note")).request_id(key);
            call(side, world, HostCall::Submit { conversation, draft }).await;
        }
        6 => {
            world.count("user starts a job");
            start_job(world, side, conversation).await;
        }
        8 => {
            world.count("user appends an entry in a closure");
            append(world, side, conversation).await;
        }
        7 => {
            call(side, world, HostCall::Inspect).await;
        }
        9 => {
            world.count("user compacts");
            let compact = HostCall::Compact { conversation, instructions: world.once_in(2).then(|| "names".to_owned()) };
            call(side, world, HostCall::Keyed { key: key.to_owned(), call: Box::new(compact) }).await;
        }
        kind => {
            world.count("user submits");
            let when = match kind % 3 {
                0 => WhenBusy::Steer,
                1 => WhenBusy::FollowUp,
                _ => WhenBusy::Reject,
            };
            let draft = SubmissionDraft::input(format!("input {key}")).when_busy(when).request_id(key);
            if let Some(Answer::Value(record)) = call(side, world, HostCall::Submit { conversation, draft }).await
                && let Ok(record) = record.to::<SubmissionRecord>()
            {
                submitted.push(record);
            }
        }
    }
}

/// An entry that no submission brings: what a generation plans meanwhile stands on an older tail.
async fn append(world: &World, side: &Side, conversation: ConversationId) {
    let transport: Arc<dyn Transport> = Arc::new(side.clone());
    let host = HostCommit { conversation: Some(conversation), ..HostCommit::default() };
    let made = commit(&transport, world.session, host, async |tx| {
        tx.append_entry(conversation, EntryDraft::new("aside")).await.map_err(|error| NotCommitted::from(CommitError::from(error)))?;
        Ok::<_, NotCommitted>(())
    });
    if made.await.is_err() {
        world.count("a host's closure was not committed");
    }
}

/// A background or foreground job of a conversation, in a closure.
async fn start_job(world: &World, side: &Side, conversation: ConversationId) {
    let transport: Arc<dyn Transport> = Arc::new(side.clone());
    let input = JobInput { parts: u32::try_from(world.below(4)).unwrap_or(0), fail_fast: world.once_in(2) };
    let options = TaskOptions::top_level().in_conversation(conversation);
    let options = if world.once_in(2) { options.background() } else { options };
    let host = HostCommit { conversation: Some(conversation), ..HostCommit::default() };
    let job = Job(world.clone());
    let made = commit(&transport, world.session, host, async |tx| {
        tx.create_task(&job, input, options).await.map_err(|error| NotCommitted::from(CommitError::from(error)))
    });
    if made.await.is_err() {
        world.count("a host's closure was not committed");
    }
}

/// Calls until there is an answer, with the same key each time.
async fn call(side: &Side, world: &World, call: HostCall) -> Option<Answer> {
    for _ in 0..5 {
        let answer = side.call(world.session, Request::Host(Box::new(call.clone()))).await;
        match answer {
            Ok(Answer::Refused(_)) | Err(_) => {}
            Ok(answer) => return Some(answer),
        }
        world.count("user tries again");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    None
}
