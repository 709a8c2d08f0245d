//! What a session left when it was used last.

use picofleet_session::message::Message;
use picofleet_session::{ROOT_CONVERSATION_ID, SessionId};

use super::Work;
use crate::failure::Failure;
use crate::glance;

/// What a conversation was at.
#[derive(Default)]
pub(crate) struct Unfinished {
    /// Somebody was being answered.
    pub(crate) busy: bool,
    /// The end of the answer that was cut off, and will be asked for again.
    cut: Option<String>,
}

impl Unfinished {
    /// What is said when it goes on; `prompted` when something is said to it, too.
    pub(crate) fn remark(&self, session: SessionId, prompted: bool) -> Option<String> {
        match &self.cut {
            _ if !self.busy && prompted => None,
            _ if !self.busy => Some(format!("nothing was left to do in session {session}; say something to go on with it")),
            None => Some(format!("session {session} goes on with its unfinished work")),
            Some(cut) => Some(format!(
                "session {session} goes on with its unfinished work: the answer was cut off behind {cut:?}, and comes again from its begin"
            )),
        }
    }
}

/// Reads it without opening the session, and looks whether what goes on can be asked.
pub(super) async fn read(work: &Work, session: SessionId) -> anyhow::Result<Unfinished> {
    let conversation = work.target.conversation.unwrap_or(ROOT_CONVERSATION_ID);
    let reader = work.store.reader(session).await?;
    let live = glance::live(&*reader, conversation).await?.unwrap_or_default();
    let unfinished = Unfinished { busy: live.run.is_some(), cut: None };
    let Some(generation) = live.generation.filter(|generation| generation.deferred.is_none()) else { return Ok(unfinished) };
    let Some(Message::Assistant(message)) = generation.message.and_then(|message| message.to().ok()) else { return Ok(unfinished) };
    let text = Message::Assistant(message).text();
    let cut = glance::end(&text);
    Ok(Unfinished { cut: (!cut.is_empty()).then_some(cut), ..unfinished })
}

/// Whether the model of a session that goes on can be asked, before it is opened.
pub(crate) async fn askable(work: &Work, session: SessionId) -> anyhow::Result<()> {
    let conversation = work.target.conversation.unwrap_or(ROOT_CONVERSATION_ID);
    let reader = work.store.reader(session).await?;
    let stored = glance::config(&*reader, conversation).await?.and_then(|config| config.model);
    let named = work.target.model.as_deref().map(|name| super::model(name, &work.services)).transpose()?;
    let Some(model) = named.or(stored).or_else(|| work.fresh.model.clone()) else { return Ok(()) };
    let name = format!("{}/{}", model.provider, model.model_id);
    if work.services.models.find(&model).is_none() {
        let text =
            format!("the model {name} of session {session} is not configured; name another one with --model, of `picofleet models list`");
        return Err(Failure::Usage(text).into());
    }
    work.fresh.usable(&model)
}
