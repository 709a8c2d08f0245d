//! Conversations that are made with an initialization (section 2.2): it runs in the commit that makes them, behind every setup.

use picofleet_session::{Bound, CommitError, ConversationId, ConversationRecord, EntryId, Setups, Tx};

use super::call::{Caller, once, value};
use super::{Conversation, ConversationOptions, Harness, HostError};
use crate::effects::{Guard, Held, nothing_held};
use crate::wire::{Answer, Begin, HoldId, HostCall, Refusal, Request};

impl Harness {
    /// The root conversation. Where it is not there yet, one commit makes it and runs `init`; else `init` is not called and nothing is
    /// written.
    ///
    /// # Errors
    /// As [`Harness::create_conversation_with`].
    pub async fn root_with<E, F>(&self, init: F) -> Result<Conversation, E>
    where
        F: AsyncFnOnce(&Tx, ConversationId) -> Result<(), E>,
        E: From<HostError> + From<CommitError>,
    {
        let id = self.caller.create(HostCall::Root, init).await?;
        Ok(Conversation::new(self.clone(), id))
    }

    /// [`Harness::create_conversation`] with an initialization: `init` runs once in the commit that makes the conversation, behind its
    /// setups and the change of its configuration. Tables can't be read in it; documents can. The session's line waits for it, at most for
    /// its bound: no effects in it. With a key that made the conversation before it is not called.
    ///
    /// # Errors
    /// What `init` says; as [`Harness::create_conversation`], [`HostError::Invalid`] also for a tool that `init` activates and that is not
    /// registered, [`HostError::Unavailable`] also where the line did not wait for it. Nothing is made then.
    pub async fn create_conversation_with<E, F>(&self, options: ConversationOptions, init: F) -> Result<Conversation, E>
    where
        F: AsyncFnOnce(&Tx, ConversationId) -> Result<(), E>,
        E: From<HostError> + From<CommitError>,
    {
        let ConversationOptions { ownership, config, key } = options;
        let config = config.map(|patch| patch.to_json()).transpose().map_err(HostError::from)?;
        let id = self.caller.create(once(key, HostCall::CreateConversation { ownership, config }), init).await?;
        Ok(Conversation::new(self.clone(), id))
    }
}

impl Conversation {
    /// [`Conversation::fork`] with an initialization, which finds what the fork copied.
    ///
    /// # Errors
    /// As [`Conversation::fork`] and [`Harness::create_conversation_with`].
    pub async fn fork_with<E, F>(&self, at: EntryId, options: ConversationOptions, init: F) -> Result<Conversation, E>
    where
        F: AsyncFnOnce(&Tx, ConversationId) -> Result<(), E>,
        E: From<HostError> + From<CommitError>,
    {
        let ConversationOptions { ownership, config, key } = options;
        let config = config.map(|patch| patch.to_json()).transpose().map_err(HostError::from)?;
        let call = once(key, HostCall::Fork { conversation: self.id, at, ownership, config });
        let id = self.harness.caller.create(call, init).await?;
        Ok(Conversation::new(self.harness.clone(), id))
    }
}

impl Caller {
    /// Makes what `call` asks for in a commit that ends with `init`. What is there already is answered without it.
    async fn create<E, F>(&self, call: HostCall, init: F) -> Result<ConversationId, E>
    where
        F: AsyncFnOnce(&Tx, ConversationId) -> Result<(), E>,
        E: From<HostError> + From<CommitError>,
    {
        nothing_held(self.session())?;
        let hold = HoldId::random();
        let mut guard = Guard::new(self.transport(), self.session(), hold);
        let begin = Begin { make: Some(Box::new(call)), ..Begin::default() };
        let begun = match self.request(Request::Begin { hold, begin: Box::new(begin) }).await {
            Ok(Answer::Begun(begun)) => *begun,
            Ok(answer) => {
                guard.disarm();
                return Ok(record(answer)?.id);
            }
            // Nothing is written before the end.
            Err(HostError::OutcomeUnknown(why)) => return Err(HostError::Unavailable(why).into()),
            Err(error) => return Err(error.into()),
        };
        let Some(made) = begun.conversation.clone() else {
            return Err(HostError::Answer("a commit that makes a conversation began without it".to_owned()).into());
        };
        let held = Held::new(self.transport(), self.session(), hold, begun, Vec::new());
        let bound = Bound { conversation: Some(made.id), task: None };
        let run = held.run(bound, Setups::default(), async |tx: &Tx| {
            tx.close_reads();
            init(tx, made.id).await
        });
        let ((), writes) = run.await.map_err(|error| error.or(&mut guard, gone()))?;
        match self.request(Request::Finish { hold, writes: Box::new(writes) }).await? {
            Answer::Done => {
                guard.disarm();
                Ok(made.id)
            }
            answer => Err(record(answer).err().unwrap_or_else(gone).into()),
        }
    }
}

fn gone() -> HostError {
    HostError::Unavailable("its line did not wait for the commit; make it again, and keep effects and waits out of it".to_owned())
}

fn record(answer: Answer) -> Result<ConversationRecord, HostError> {
    match answer {
        Answer::Refused(Refusal::Gone) => Err(gone()),
        answer => Ok(value(answer)?),
    }
}
