//! Prompt sections as they are registered (section 7.4).

use std::sync::Arc;

use futures::future::BoxFuture;
use picofleet_session::ConversationId;

use crate::config::ModelRef;
use crate::effects::HookApi;
use crate::hooks::HookError;
use crate::tools::SharedTool;

/// What a prompt section is rendered from.
#[derive(Clone)]
pub struct PromptInput {
    /// The conversation.
    pub conversation: ConversationId,
    /// The tools of the request, in their order.
    pub tools: Vec<SharedTool>,
    /// The sections that the transcript shows.
    pub shown: Vec<(String, String)>,
    /// The model.
    pub model: Option<ModelRef>,
    /// How much it thinks.
    pub thinking_level: String,
    /// Reads of committed documents.
    pub read: HookApi,
}

/// Renders the text of a section. A function of a [`PromptInput`] is one, too.
pub trait PromptSection: Send + Sync + 'static {
    /// The text; `None` leaves the section out. The same input must give the same text: a new one costs the provider's prompt cache.
    ///
    /// An error keeps the text that the transcript shows, and is reported.
    fn render<'a>(&'a self, input: &'a PromptInput) -> BoxFuture<'a, Result<Option<String>, HookError>>;
}

impl<F: Fn(&PromptInput) -> Option<String> + Send + Sync + 'static> PromptSection for F {
    fn render<'a>(&'a self, input: &'a PromptInput) -> BoxFuture<'a, Result<Option<String>, HookError>> {
        Box::pin(async move { Ok(self(input)) })
    }
}

/// A registered section; wrappers get one and give one with the same key.
#[derive(Clone)]
pub struct Section {
    /// Its key.
    pub key: String,
    /// Its text is wrapped in its key.
    pub tag: bool,
    /// Its text.
    pub text: Arc<dyn PromptSection>,
}

impl Section {
    /// The text as the model sees it.
    pub(crate) fn wrap(&self, text: String) -> String {
        if self.tag { format!("<{0}>\n{text}\n</{0}>", self.key) } else { text }
    }
}
