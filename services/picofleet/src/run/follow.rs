//! Says the prompt, and shows what happens until it is answered.

use std::sync::Arc;

use anyhow::bail;
use futures::FutureExt as _;
use futures::future::Fuse;
use picofleet_harness::line::{ConversationWatch, Followed};
use picofleet_harness::wire::HostCall;
use picofleet_session::{ConversationId, Json, SessionId, SubmissionId, SubmissionRecord};

use super::Run;
use super::printer::{Printer, idle};
use crate::engine::Engine;
use crate::failure::Failure;
use crate::work::{Interrupts, configure, verdict};

pub(super) async fn converse(engine: &Engine, session: SessionId, run: &Run<'_>, interrupts: &mut Interrupts) -> anyhow::Result<()> {
    let (mut follow, mut printer) = tokio::select! {
        begun = begin(engine, session, run) => begun?,
        () = interrupts.next() => return Err(run.leave(session, false, interrupts)),
    };
    let conversation = follow.conversation;
    // Its answer comes when the tools have ended; a second Ctrl-C does not wait for that.
    let mut abort = Fuse::terminated();
    let mut told = false;
    let end = loop {
        if follow.wanted.is_none() && idle(follow.watch.mount()) {
            break None;
        }
        tokio::select! {
            settled = follow.next(&mut printer) => {
                if interrupts.count() == 1 && !told && follow.aborted {
                    told = true;
                    printer.note("the abort is stored; Ctrl-C again leaves at once")?;
                }
                if let Some(record) = settled? {
                    break Some(record);
                }
            }
            () = interrupts.next() => {
                if interrupts.leaves() {
                    return Err(run.leave(session, follow.aborted, interrupts));
                }
                printer.note("aborting")?;
                abort = engine.host::<Json>(session, HostCall::Abort { conversation, background: false }).boxed().fuse();
            }
            aborted = &mut abort => drop(aborted?),
        }
    };
    printer.end(follow.watch.mount(), session, conversation)?;
    match verdict(end.as_deref(), printer.failure()) {
        Err(error) if interrupts.count() > 0 => Err(error.context(Failure::Interrupted("aborted by Ctrl-C".to_owned()))),
        // Unfinished work of a session has no submission to tell how it ended.
        Ok(()) if interrupts.count() > 0 && follow.wanted.is_none() => bail!(Failure::Interrupted("aborted by Ctrl-C".to_owned())),
        verdict => verdict,
    }
}

async fn begin<'a>(engine: &'a Engine, session: SessionId, run: &Run<'_>) -> anyhow::Result<(Follow<'a>, Printer)> {
    let conversation = run.work.conversation(&engine.harness(session)).await?;
    // At once: unfinished work went on when the session opened, and what it does is shown.
    let watch = engine.watch(session, conversation.id()).await?;
    let mut printer = Printer::new(watch.mount());
    if let Some(remark) = run.remark(session) {
        printer.note(&remark)?;
    }
    configure(&conversation, run.work).await?;
    let wanted = run.submit(&conversation).await?;
    Ok((Follow { engine, session, conversation: conversation.id(), watch, wanted, aborted: false, missed: false }, printer))
}

struct Follow<'a> {
    engine: &'a Engine,
    session: SessionId,
    conversation: ConversationId,
    watch: ConversationWatch,
    /// The submission that is to be answered.
    wanted: Option<SubmissionId>,
    /// A task of the conversation is marked to be aborted: that survives this process.
    aborted: bool,
    /// Frames are missing: the submission may have been settled in one of them, and no other would say so.
    missed: bool,
}

impl Follow<'_> {
    /// Shows what comes next; gives the submission when it is settled. Cancel-safe: what is to be done about a gap is noted before it is done.
    async fn next(&mut self, printer: &mut Printer) -> anyhow::Result<Option<Arc<SubmissionRecord>>> {
        if self.missed {
            let now = self.look().await?;
            self.missed = false;
            return Ok(now.filter(|record| record.settled()));
        }
        let seen = match self.watch.next().await {
            Followed::Frame(frame) => {
                printer.frame(&frame, self.watch.mount())?;
                self.aborted |= frame.tasks.iter().any(|task| task.abort_requested);
                frame.submissions.into_iter().find(|record| Some(record.id) == self.wanted)
            }
            Followed::Gap => {
                self.missed = true;
                None
            }
            Followed::End => return Err(self.engine.session_ended()),
        };
        Ok(seen.filter(|record| record.settled()))
    }

    /// The submission as it is now.
    async fn look(&self) -> anyhow::Result<Option<Arc<SubmissionRecord>>> {
        let Some(submission) = self.wanted else { return Ok(None) };
        let record: SubmissionRecord = self.engine.host(self.session, HostCall::WaitSubmission { submission, timeout_ms: 0 }).await?;
        Ok(Some(Arc::new(record)))
    }
}
