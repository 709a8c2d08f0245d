//! A model whose answers a test gives, one for each request, and that tells what it was asked.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt as _, StreamExt as _};
use picofleet_harness::config::ModelRef;
use picofleet_harness::effects::Models;
use picofleet_models::model::Model;
use picofleet_models::provider::{CancelDeferredError, Context, Provider, StreamEvent, StreamOptions, empty_answer};
use picofleet_session::message::{
    AssistantBlock, AssistantMessage, DeferredHandle, Message, StopReason, TextContent, ThinkingContent, ToolCall, Usage,
};
use picofleet_session::{Clock, Json, Millis};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// One answer.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    text: String,
    calls: Vec<(String, String, Json)>,
    error: Option<String>,
    /// More text, behind another [`Stage::release`].
    more: String,
    /// It stops behind its text until [`Stage::release`].
    held: bool,
    /// It comes later: the time between fetches, where the provider says one.
    deferred: Option<Option<u64>>,
    /// Its duration is no JSON number.
    broken: bool,
    /// What its beginning says that it spent.
    begun: Usage,
    /// What it spent, where it is not the usual.
    usage: Option<Usage>,
    /// What it thought before.
    thinking: String,
    /// It stopped at its output limit.
    cut: bool,
}

impl Reply {
    /// A text.
    pub fn text(text: &str) -> Self {
        Self { text: text.to_owned(), ..Self::default() }
    }

    /// Calls of a tool: its id, its name, and its arguments as JSON.
    pub fn call(id: &str, name: &str, arguments: &str) -> Self {
        Self::default().and_call(id, name, arguments)
    }

    /// One more call.
    #[must_use]
    pub fn and_call(mut self, id: &str, name: &str, arguments: &str) -> Self {
        self.calls.push((id.to_owned(), name.to_owned(), Json::parse(arguments.as_bytes()).unwrap()));
        self
    }

    /// An error; `503 overloaded` may pass, `401 unauthorized` does not.
    pub fn error(text: &str) -> Self {
        Self { error: Some(text.to_owned()), ..Self::default() }
    }

    /// A handle, to be fetched after this time.
    pub fn deferred(poll_after_ms: Option<u64>) -> Self {
        Self { deferred: Some(poll_after_ms), ..Self::default() }
    }

    /// Its beginning says that it spent this.
    #[must_use]
    pub fn begun(mut self, usage: Usage) -> Self {
        self.begun = usage;
        self
    }

    /// It spent this.
    #[must_use]
    pub fn usage(mut self, usage: Usage) -> Self {
        self.usage = Some(usage);
        self
    }

    /// It stops behind its text until [`Stage::release`].
    #[must_use]
    pub fn held(mut self) -> Self {
        self.held = true;
        self
    }

    /// It thought this before.
    #[must_use]
    pub fn thinking(mut self, text: &str) -> Self {
        text.clone_into(&mut self.thinking);
        self
    }

    /// It stopped at its output limit.
    #[must_use]
    pub fn cut(mut self) -> Self {
        self.cut = true;
        self
    }

    /// The message of a model that gives it at once.
    pub fn message(&self, model: &Model) -> AssistantMessage {
        whole(self, &empty_answer(model, Millis(0)), model, None, 0)
    }

    /// It goes on with more text once it is released, and stops again behind that.
    #[must_use]
    pub fn more(mut self, text: &str) -> Self {
        self.more = text.to_owned();
        self.held()
    }

    /// Its duration is no JSON number.
    #[must_use]
    pub fn broken(mut self) -> Self {
        self.broken = true;
        self
    }
}

/// What a request had.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The context.
    pub messages: Vec<Message>,
    /// Its options.
    pub options: StreamOptions,
}

/// The model. Clones are one.
#[derive(Clone)]
pub struct Stage {
    inner: Arc<Inner>,
}

struct Inner {
    clock: Clock,
    state: Mutex<State>,
    release: Semaphore,
}

type Answer = Arc<dyn Fn(&[Message]) -> Option<Reply> + Send + Sync>;

#[derive(Default)]
struct State {
    replies: VecDeque<Reply>,
    answer: Option<Answer>,
    asked: Vec<Asked>,
    fetched: Vec<String>,
    cancelled: Vec<String>,
    refuse_cancel: bool,
    gone: bool,
    model: Option<Model>,
}

impl Stage {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { inner: Arc::new(Inner { clock, state: Mutex::default(), release: Semaphore::new(0) }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap()
    }

    /// Gives the next answer; a fetch of a deferred answer takes one too.
    pub fn give(&self, reply: Reply) {
        self.state().replies.push_back(reply);
    }

    /// Answers from now on by what is asked, also where several conversations ask at once; what this gives no answer to gets the next one.
    pub fn answer_by(&self, answer: impl Fn(&[Message]) -> Option<Reply> + Send + Sync + 'static) {
        self.state().answer = Some(Arc::new(answer));
    }

    /// The answer to a request; none of a fetch is given by what was asked.
    fn reply(&self, asked: &[Message]) -> Reply {
        let answer = self.state().answer.clone();
        let answer = answer.and_then(|answer| answer(asked));
        answer.or_else(|| self.state().replies.pop_front()).unwrap_or_else(|| Reply::error("401 no answer was given for this request"))
    }

    /// Lets one held answer go on.
    pub fn release(&self) {
        self.inner.release.add_permits(1);
    }

    /// The requests so far, without fetches.
    pub fn asked(&self) -> Vec<Asked> {
        self.state().asked.clone()
    }

    /// The handles that were fetched.
    pub fn fetched(&self) -> Vec<String> {
        self.state().fetched.clone()
    }

    /// The handles that were cancelled.
    pub fn cancelled(&self) -> Vec<String> {
        self.state().cancelled.clone()
    }

    /// Refuses to cancel deferred answers.
    pub fn refuse_cancel(&self) {
        self.state().refuse_cancel = true;
    }

    /// The model is not known any more.
    pub fn remove_model(&self) {
        self.state().gone = true;
    }

    /// The model is another one from now on.
    pub fn change_model(&self, change: impl FnOnce(&mut Model)) {
        change(self.state().model.get_or_insert_with(Self::model));
    }

    /// The model that it plays, where nothing was changed.
    pub fn model() -> Model {
        let text = br#"{"id":"m","name":"m","api":"stage","provider":"p","baseUrl":"","reasoning":true,"input":["text"],
            "cost":{"input":1,"output":1,"cacheRead":0,"cacheWrite":0},"contextWindow":100000,"maxTokens":1000}"#;
        Json::parse(text).unwrap().to().unwrap()
    }

    /// Its name in a configuration.
    pub fn model_ref() -> ModelRef {
        ModelRef { provider: "p".to_owned(), model_id: "m".to_owned() }
    }

    fn play(
        &self,
        model: &Model,
        reply: Reply,
        handle: Option<&DeferredHandle>,
        cancel: CancellationToken,
    ) -> BoxStream<'static, StreamEvent> {
        let number = self.state().asked.len();
        let empty = empty_answer(model, self.inner.clock.now());
        let message = whole(&reply, &empty, model, handle, number);
        let begun = AssistantMessage { usage: reply.begun, ..empty.clone() };
        let mut head = vec![StreamEvent::Start { message: Box::new(begun) }];
        if !reply.text.is_empty() {
            head.push(StreamEvent::TextStart { index: 0 });
            head.push(StreamEvent::TextDelta { index: 0, delta: reply.text.clone() });
        }
        let (stage, more, stopped) = (self.clone(), reply.more.clone(), cancel.clone());
        let middle = async move {
            if more.is_empty() {
                return Vec::new();
            }
            tokio::select! {
                biased;
                // The end says that it was cancelled.
                () = stopped.cancelled() => Vec::new(),
                permit = stage.inner.release.acquire() => {
                    permit.unwrap().forget();
                    vec![StreamEvent::TextDelta { index: 0, delta: more }]
                }
            }
        };
        let stage = self.clone();
        let tail = async move {
            if reply.held {
                tokio::select! {
                    biased;
                    () = cancel.cancelled() => {
                        let content = message.content.clone();
                        return StreamEvent::terminal(AssistantMessage { content, stop_reason: StopReason::Aborted, ..empty });
                    }
                    permit = stage.inner.release.acquire() => permit.unwrap().forget(),
                }
            }
            StreamEvent::terminal(message)
        };
        let middle = futures::stream::once(middle).flat_map(futures::stream::iter);
        futures::stream::iter(head).chain(middle).chain(futures::stream::once(tail)).boxed()
    }
}

fn whole(reply: &Reply, empty: &AssistantMessage, model: &Model, handle: Option<&DeferredHandle>, number: usize) -> AssistantMessage {
    let mut message = empty.clone();
    if let Some(poll_after_ms) = reply.deferred {
        let new = || DeferredHandle {
            provider: model.provider.clone(),
            model_id: model.id.clone(),
            api: model.api.clone(),
            id: format!("deferred-{number}"),
            expires_at: None,
            poll_after_ms: None,
            data: None,
        };
        message.deferred = Some(DeferredHandle { poll_after_ms, ..handle.cloned().unwrap_or_else(new) });
        message.stop_reason = StopReason::Deferred;
        return message;
    }
    if !reply.thinking.is_empty() {
        let thinking = ThinkingContent { thinking: reply.thinking.clone(), thinking_signature: None, redacted: None };
        message.content.push(AssistantBlock::Thinking(thinking));
    }
    if !reply.text.is_empty() {
        message.content.push(AssistantBlock::Text(TextContent::new(format!("{}{}", reply.text, reply.more))));
    }
    for (id, name, arguments) in &reply.calls {
        message.content.push(AssistantBlock::ToolCall(ToolCall {
            id: id.clone(),
            name: name.clone(),
            arguments: arguments.clone(),
            thought_signature: None,
            namespace: None,
            arguments_error: None,
        }));
    }
    message.usage = reply.usage.unwrap_or_else(|| Usage { input: 10, output: 5, total_tokens: 15, ..Usage::default() });
    message.stop_reason = if reply.calls.is_empty() { StopReason::Stop } else { StopReason::ToolUse };
    if reply.cut {
        message.stop_reason = StopReason::Length;
    }
    if let Some(error) = &reply.error {
        message.stop_reason = StopReason::Error;
        message.error_message = Some(error.clone());
    }
    if reply.broken {
        message.duration_ms = Some(f64::NAN);
    }
    message
}

impl Provider for Stage {
    fn stream(
        &self,
        model: &Model,
        context: &Context,
        options: &StreamOptions,
        cancel: CancellationToken,
    ) -> BoxStream<'static, StreamEvent> {
        self.state().asked.push(Asked { messages: context.messages.clone(), options: options.clone() });
        self.play(model, self.reply(&context.messages), None, cancel)
    }

    fn fetch_deferred(&self, model: &Model, handle: &DeferredHandle, cancel: CancellationToken) -> BoxStream<'static, StreamEvent> {
        self.state().fetched.push(handle.id.clone());
        self.play(model, self.reply(&[]), Some(handle), cancel)
    }

    fn cancel_deferred(&self, _model: &Model, handle: &DeferredHandle) -> BoxFuture<'static, Result<(), CancelDeferredError>> {
        let mut state = self.state();
        state.cancelled.push(handle.id.clone());
        let refused = state.refuse_cancel;
        async move { if refused { Err(CancelDeferredError::Refused("no".to_owned())) } else { Ok(()) } }.boxed()
    }
}

impl Models for Stage {
    fn find(&self, model: &ModelRef) -> Option<(Model, Arc<dyn Provider>)> {
        let known = *model == Self::model_ref() && !self.state().gone;
        let model = || self.state().model.clone().unwrap_or_else(Self::model);
        known.then(|| (model(), Arc::new(self.clone()) as Arc<dyn Provider>))
    }
}
