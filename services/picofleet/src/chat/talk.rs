//! The chat itself: takes what is typed and what happens, one after the other.

use anyhow::bail;
use picofleet_harness::compaction::CompactionResult;
use picofleet_harness::config::ModelRef;
use picofleet_harness::events::AgentEvent;
use picofleet_harness::host::{AgentEvents, Conversation, ConversationOptions, EntryRange, Harness, HostError};
use picofleet_harness::inspection::TaskView;
use picofleet_harness::kind::Outcome;
use picofleet_harness::submission::{SubmissionDraft, WhenBusy};
use picofleet_session::message::Usage;
use picofleet_session::{InputState, SessionId, SubmissionState, TaskId};
use tokio::task::JoinSet;

use super::command::{Command, HELP};
use super::input::{Input, Typed};
use super::screen::Screen;
use super::show::Show;
use crate::engine::Engine;
use crate::output::Table;
use crate::work::{Interrupts, Leaving, Work, configure, model, tools};

/// A conversation that is talked with.
pub(super) struct Talk<'a> {
    work: &'a Work,
    engine: &'a Engine,
    harness: Harness,
    conversation: Conversation,
    events: AgentEvents,
    show: Show,
    /// Somebody is being answered.
    busy: bool,
    /// Calls whose answer comes when something is over.
    calls: JoinSet<Result<String, HostError>>,
    /// Ctrl-C was the last thing that was typed.
    warned: bool,
}

impl<'a> Talk<'a> {
    pub(super) async fn begin(engine: &'a Engine, session: SessionId, work: &'a Work, input: &Input) -> anyhow::Result<Self> {
        let harness = engine.harness(session);
        let conversation = work.conversation(&harness).await?;
        configure(&conversation, work).await?;
        let events = conversation.events().await?;
        let (show, calls) = (Show::new(), JoinSet::new());
        let mut talk = Self { work, engine, harness, conversation, events, show, busy: false, calls, warned: false };
        let model = talk.conversation.model().await?;
        talk.show.note(&format!("session {session}, {}; /help shows the commands", name(model.as_ref())));
        talk.attach()?;
        talk.flush(input)?;
        Ok(talk)
    }

    /// Goes on from the snapshot of a stream of events.
    fn attach(&mut self) -> anyhow::Result<()> {
        let snapshot = self.events.snapshot().clone();
        self.busy = snapshot.run.is_some();
        self.show.snapshot(&snapshot)?;
        if self.busy {
            self.show.note("unfinished work goes on");
        }
        Ok(())
    }

    fn flush(&mut self, input: &Input) -> anyhow::Result<()> {
        let text = self.show.take();
        if text.is_empty() { Ok(()) } else { input.print(&text) }
    }

    /// Talks until somebody leaves.
    pub(super) async fn go_on(&mut self, input: &mut Input, interrupts: &mut Interrupts) -> anyhow::Result<()> {
        let screen = input.screen();
        loop {
            // What comes from a pipe is said one by one; at a terminal it steers.
            let listens = input.edits() || (!self.busy && self.calls.is_empty());
            let full = screen.as_ref().filter(|screen| screen.full());
            let stays = tokio::select! {
                biased;
                () = interrupts.next() => self.interrupted(interrupts)?,
                // Before what happens, of which there may always be more: an editor shows that only while it is asked.
                typed = input.next(), if listens => {
                    interrupts.forget();
                    self.heard(typed, interrupts).await?
                }
                Some(done) = self.calls.join_next() => {
                    self.answered(done?);
                    true
                }
                batch = self.events.next(), if full.is_none() => {
                    let was_busy = self.busy;
                    self.happened(batch)?;
                    if was_busy && !self.busy {
                        interrupts.forget();
                    }
                    true
                }
                () = room(full), if full.is_some() => true,
            };
            self.flush(input)?;
            if !stays {
                return Ok(());
            }
        }
    }

    fn happened(&mut self, batch: Option<Vec<AgentEvent>>) -> anyhow::Result<()> {
        let Some(batch) = batch else { return Err(self.engine.session_ended()) };
        for event in &batch {
            match event {
                AgentEvent::RunStart { .. } => self.busy = true,
                AgentEvent::RunEnd { .. } => self.busy = false,
                AgentEvent::Snapshot(snapshot) => self.busy = snapshot.run.is_some(),
                _ => {}
            }
            self.show.event(event)?;
        }
        Ok(())
    }

    fn answered(&mut self, answer: Result<String, HostError>) {
        match answer {
            Ok(text) => self.show.note(&text),
            Err(error) => self.show.note(&format!("that failed: {error}")),
        }
    }

    /// Ctrl-C from elsewhere: a signal.
    fn interrupted(&mut self, interrupts: &Interrupts) -> anyhow::Result<bool> {
        if interrupts.leaves() { Err(self.left(interrupts)) } else { Ok(self.stop_or_leave()) }
    }

    fn left(&self, interrupts: &Interrupts) -> anyhow::Error {
        let how = Leaving { aborted: false, code: interrupts.code() };
        self.work.leave("chat", self.harness.session(), Some(self.conversation.id()), how)
    }

    /// Stops what runs; where nothing does, the second time leaves.
    fn stop_or_leave(&mut self) -> bool {
        if self.busy {
            self.abort();
            return true;
        }
        if !std::mem::replace(&mut self.warned, true) {
            self.show.note("nothing runs; Ctrl-C again leaves");
            return true;
        }
        false
    }

    fn stop(&mut self) {
        if self.busy {
            self.abort();
        } else {
            self.show.note("nothing runs");
        }
    }

    fn abort(&mut self) {
        self.show.note("aborting");
        let conversation = self.conversation.clone();
        self.calls.spawn(async move { conversation.abort(false).await.map(|()| "aborted".to_owned()) });
    }

    /// Does what was typed, for as long as nobody interrupts that. Whether the chat goes on.
    async fn heard(&mut self, typed: Typed, interrupts: &mut Interrupts) -> anyhow::Result<bool> {
        tokio::select! {
            stays = self.typed(typed) => return stays,
            () = interrupts.next() => {}
        }
        if interrupts.leaves() {
            return Err(self.left(interrupts));
        }
        self.show.note("its answer is not waited for; Ctrl-C again leaves");
        Ok(true)
    }

    /// Whether the chat goes on.
    async fn typed(&mut self, typed: Typed) -> anyhow::Result<bool> {
        if !matches!(typed, Typed::Interrupt) {
            self.warned = false;
        }
        let line = match typed {
            Typed::Line(line) => line,
            Typed::Escape => {
                self.stop();
                return Ok(true);
            }
            Typed::Interrupt => return Ok(self.stop_or_leave()),
            Typed::End => return Ok(self.leave()),
            Typed::NoText => {
                self.show.note("that line is no UTF-8 text and was not said; say it again, in UTF-8");
                return Ok(true);
            }
            Typed::Failed(why) => bail!("the input can't be read: {why}"),
        };
        let command = Command::read(&line);
        if command == Command::Quit {
            return Ok(self.leave());
        }
        if let Err(error) = self.act(command).await {
            // What was typed was refused; that ends no chat.
            self.show.note(&format!("{error:#}"));
        }
        Ok(true)
    }

    fn leave(&mut self) -> bool {
        let again = self.work.again("chat", self.harness.session(), self.conversation.id());
        let text = if self.busy { "unfinished work goes on with" } else { "go on with" };
        self.show.note(&format!("{text}: {again}"));
        false
    }

    async fn act(&mut self, command: Command) -> anyhow::Result<()> {
        match command {
            Command::Empty | Command::Quit => {}
            Command::Say(text) => self.say(text, WhenBusy::Steer).await?,
            Command::Later(text) => self.say(text, WhenBusy::FollowUp).await?,
            Command::Compact(focus) => self.compact(focus).await?,
            Command::Reset(handoff) => {
                self.conversation.reset(handoff.as_deref()).await?;
                self.show.note(if self.busy { "a new context begins at the next boundary" } else { "a new context begins here" });
            }
            Command::Fork => self.fork().await?,
            Command::Tasks => self.tasks().await?,
            Command::Usage => self.usage().await?,
            Command::Model(None) => {
                let model = self.conversation.model().await?;
                self.show.note(&name(model.as_ref()));
            }
            Command::Model(Some(wanted)) => {
                let model = model(&wanted, &self.work.services)?;
                self.show.note(&format!("from the next request on: {}", name(Some(&model))));
                self.conversation.set_model(Some(model)).await?;
            }
            Command::Tools(None) => self.tools().await?,
            Command::Tools(Some(names)) => {
                self.conversation.set_active_tools(tools(&names, &self.work.services)?).await?;
                self.tools().await?;
            }
            Command::Abort => self.stop(),
            Command::Help => self.show.text(HELP),
            Command::Unknown(command) => self.show.note(&format!("there is no /{command}; /help shows what there is")),
        }
        Ok(())
    }

    async fn say(&mut self, text: String, when: WhenBusy) -> anyhow::Result<()> {
        self.show.typed(&text);
        let submitted = self.conversation.submit(SubmissionDraft::input(text.as_str()).when_busy(when)).await;
        let submission = submitted.inspect_err(|_| self.show.refused(&text))?;
        if matches!(submission.status().await?.state, SubmissionState::Input(InputState::Queued)) {
            self.show.note("queued");
        }
        // Its events come behind this; until they do, nothing else is read from a pipe.
        self.busy = true;
        Ok(())
    }

    async fn compact(&mut self, focus: Option<String>) -> anyhow::Result<()> {
        let task = self.conversation.compact(focus.as_deref()).await?;
        let harness = self.harness.clone();
        self.calls.spawn(async move {
            let outcome = harness.wait_for_task(task).await?;
            Ok(summarized(&outcome))
        });
        Ok(())
    }

    async fn fork(&mut self) -> anyhow::Result<()> {
        let Some(newest) = self.conversation.entries(EntryRange::default(), 1, None).await?.items.into_iter().next() else {
            bail!("there is nothing to fork yet");
        };
        if self.busy {
            bail!("a fork begins between two answers; wait for this one or abort it");
        }
        self.conversation = self.conversation.fork(newest.id, ConversationOptions::ownerless()).await?;
        self.events = self.conversation.events().await?;
        self.busy = self.events.snapshot().run.is_some();
        self.show.note(&format!("conversation {} goes on from here", self.conversation.id()));
        Ok(())
    }

    async fn tasks(&mut self) -> anyhow::Result<()> {
        let inspection = self.harness.inspect().await?;
        if inspection.tasks.is_empty() {
            self.show.note("nothing is going on");
            return Ok(());
        }
        let mut table = Table::new(&["TASK", "KIND", "CONVERSATION", "STATE"]);
        for task in &inspection.tasks {
            let record = &task.record;
            table.row([record.id.to_string(), record.kind.clone(), record.conversation_id.to_string(), state(&task.state)]);
        }
        self.show.text(&table.plain());
        Ok(())
    }

    async fn usage(&mut self) -> anyhow::Result<()> {
        let usage = self.conversation.usage().await?;
        if usage.models.is_empty() && usage.tools.is_empty() {
            self.show.note("nothing was used yet");
            return Ok(());
        }
        let mut table = Table::new(&["MODEL OR TOOL", "IN", "OUT", "CACHE READ", "CACHE WRITE", "COST"]);
        for (name, usage) in usage.models.iter().chain(&usage.tools) {
            table.row(cells(name, usage));
        }
        self.show.text(&table.plain());
        Ok(())
    }

    async fn tools(&mut self) -> anyhow::Result<()> {
        let tools = self.conversation.active_tools().await?;
        let text = if tools.is_empty() { "no tools".to_owned() } else { format!("tools: {}", tools.join(", ")) };
        self.show.note(&text);
        Ok(())
    }
}

/// Waits until a screen takes more.
async fn room(full: Option<&Screen>) {
    match full {
        Some(screen) => screen.room().await,
        None => std::future::pending().await,
    }
}

fn summarized(outcome: &Outcome<CompactionResult>) -> String {
    match outcome {
        Outcome::Completed(result) if result.submission_id.is_some() => {
            "the summary stands behind the next boundary at the latest".to_owned()
        }
        Outcome::Completed(_) => "there is nothing to compact".to_owned(),
        Outcome::Failed { error, .. } | Outcome::Faulted(error) => format!("the compaction failed: {}", error.message),
        Outcome::Aborted { .. } => "the compaction was aborted".to_owned(),
        Outcome::Orphaned(reason) => format!("the compaction could not run: {reason}"),
    }
}

fn name(model: Option<&ModelRef>) -> String {
    model.map_or_else(|| "no model".to_owned(), |model| format!("model {}/{}", model.provider, model.model_id))
}

fn cells(name: &str, usage: &Usage) -> [String; 6] {
    let cost = format!("${:.4}", usage.cost.total);
    [name.to_owned(), usage.input.to_string(), usage.output.to_string(), usage.cache_read.to_string(), usage.cache_write.to_string(), cost]
}

fn state(view: &TaskView) -> String {
    let list = |on: &[TaskId]| on.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match view {
        TaskView::Running => "running".to_owned(),
        TaskView::Ready { .. } => "ready".to_owned(),
        TaskView::Waiting { on } => format!("waits for {}", list(on)),
        TaskView::Completing => "completing".to_owned(),
        TaskView::Blocked { reason, error } => {
            format!("blocked: {reason}{}", error.as_ref().map(|error| format!(" ({error})")).unwrap_or_default())
        }
        TaskView::Sleeping { until } => format!("sleeps until {}", crate::output::time(*until)),
    }
}
