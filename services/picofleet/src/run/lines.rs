//! What happens as JSON lines, for programs: the session, a snapshot, the agent events behind it, and the result.

use anyhow::bail;
use futures::FutureExt as _;
use futures::future::Fuse;
use picofleet_harness::events::AgentEvent;
use picofleet_harness::host::{AgentEvents, Conversation, Harness};
use picofleet_session::message::Message;
use picofleet_session::{EntryRecord, Json, SessionId, SubmissionId, SubmissionRecord};
use serde::Serialize;

use super::Run;
use crate::engine::Engine;
use crate::failure::Failure;
use crate::output;
use crate::work::{Interrupts, configure, verdict};

pub(super) async fn converse(engine: &Engine, session: SessionId, run: &Run<'_>, interrupts: &mut Interrupts) -> anyhow::Result<()> {
    let mut lines = tokio::select! {
        begun = Lines::begin(engine, session, run) => begun?,
        () = interrupts.next() => return Err(run.leave(session, false, interrupts)),
    };
    let mut abort = Fuse::terminated();
    while !lines.done() {
        tokio::select! {
            batch = lines.events.next() => match batch {
                Some(batch) => lines.batch(&batch).await?,
                None => return Err(engine.session_ended()),
            },
            () = interrupts.next() => {
                if interrupts.leaves() {
                    return Err(run.leave(session, false, interrupts));
                }
                output::remark("aborting; Ctrl-C again leaves at once")?;
                let conversation = lines.conversation.clone();
                abort = async move { conversation.abort(false).await }.boxed().fuse();
            }
            aborted = &mut abort => aborted?,
        }
    }
    let result = lines.end().await;
    match result {
        Err(error) if interrupts.count() > 0 => Err(error.context(Failure::Interrupted("aborted by Ctrl-C".to_owned()))),
        Ok(()) if interrupts.count() > 0 && lines.wanted.is_none() => bail!(Failure::Interrupted("aborted by Ctrl-C".to_owned())),
        result => result,
    }
}

struct Lines {
    harness: Harness,
    conversation: Conversation,
    events: AgentEvents,
    /// The submission that is to be answered.
    wanted: Option<SubmissionId>,
    settled: Option<SubmissionRecord>,
    /// Why the last answer failed.
    failure: Option<String>,
    /// The text of the last answer.
    text: Option<String>,
    /// Somebody is being answered.
    busy: bool,
}

/// The line that is no agent event and stands first.
#[derive(Serialize)]
struct Begun {
    r#type: &'static str,
    session: SessionId,
    conversation: picofleet_session::ConversationId,
}

/// The last line.
#[derive(Serialize)]
struct Ended<'a> {
    r#type: &'static str,
    session: SessionId,
    /// The submission as it was settled; absent where nothing was said.
    #[serde(skip_serializing_if = "Option::is_none")]
    submission: Option<&'a SubmissionRecord>,
    /// The text of the last answer; absent where none came.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    /// Why there is no answer; absent where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// What the conversation spent so far.
    usage: Json,
}

impl Lines {
    async fn begin(engine: &Engine, session: SessionId, run: &Run<'_>) -> anyhow::Result<Self> {
        let harness = engine.harness(session);
        let conversation = run.work.conversation(&harness).await?;
        let events = conversation.events().await?;
        let busy = events.snapshot().run.is_some();
        if let Some(remark) = run.remark(session) {
            output::remark(&remark)?;
        }
        output::json(&Begun { r#type: "session", session, conversation: conversation.id() })?;
        output::json(&AgentEvent::Snapshot(Box::new(events.snapshot().clone())))?;
        configure(&conversation, run.work).await?;
        let wanted = run.submit(&conversation).await?;
        Ok(Self { harness, conversation, events, wanted, settled: None, failure: None, text: None, busy })
    }

    const fn done(&self) -> bool {
        self.settled.is_some() || (self.wanted.is_none() && !self.busy)
    }

    async fn batch(&mut self, batch: &[AgentEvent]) -> anyhow::Result<()> {
        for event in batch {
            output::json(event)?;
            match event {
                AgentEvent::RunStart { .. } => self.busy = true,
                AgentEvent::RunEnd { .. } => self.busy = false,
                AgentEvent::MessageEnd { entry } => self.ended(entry),
                AgentEvent::Submission { record } if Some(record.id) == self.wanted && record.settled() => {
                    self.settled = Some(SubmissionRecord::clone(record));
                }
                AgentEvent::Snapshot(snapshot) => {
                    self.busy = snapshot.run.is_some();
                    snapshot.entries().map_err(anyhow::Error::msg)?.iter().for_each(|entry| self.ended(entry));
                    self.look().await?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Notes how an answer ended.
    fn ended(&mut self, entry: &EntryRecord) {
        for said in entry.model.iter().flatten() {
            if let Message::Assistant(message) = said {
                self.failure.clone_from(&message.error_message);
                self.text = Some(said.text()).filter(|text| !text.is_empty());
            }
        }
    }

    /// A snapshot takes the place of events: the submission may have been settled in one of them.
    async fn look(&mut self) -> anyhow::Result<()> {
        let Some(wanted) = self.wanted else { return Ok(()) };
        let Some(submission) = self.harness.submission(wanted).await? else { return Ok(()) };
        let record = submission.status().await?;
        self.settled = Some(record).filter(SubmissionRecord::settled);
        Ok(())
    }

    async fn end(&self) -> anyhow::Result<()> {
        let usage = Json::from_serde(&self.conversation.usage().await?)?;
        let session = self.harness.session();
        let verdict = verdict(self.settled.as_ref(), self.failure.as_deref());
        let error = verdict.as_ref().err().map(ToString::to_string);
        output::json(&Ended { r#type: "result", session, submission: self.settled.as_ref(), text: self.text.as_deref(), error, usage })?;
        verdict
    }
}
