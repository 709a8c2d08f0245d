//! Views of conversations and watches of documents as a host gets them (sections 9.2 and 9.3).

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use picofleet_session::{DocToken, DocValue, DocumentId, FamilyToken, Frame, Json, Scope, StoredReader, Watch, WatchEnd};
use tokio_util::sync::CancellationToken;

use super::follow::Hub;
use super::{Conversation, Harness, HostError};
use crate::effects::watch::Source;
use crate::view::{ConversationView, Mount};
use crate::wire::{Answer, Refusal, WatchCall, Watched};

/// What a view's errors name it.
const KIND: &str = "the view of a conversation";

/// A watch that is fed looks no document up, so that any name does.
const NAME: DocumentId = match DocumentId::new(1) {
    Ok(name) => name,
    Err(_) => unreachable!(),
};

/// The newest committed view of a conversation, always at hand. Dropping it ends the observation.
pub struct ViewState {
    hub: Arc<Hub>,
}

/// The committed views of a conversation with the operations between them, one frame a commit that touches the view: what
/// [`Watch`] is for a document. Dropping it stops it.
pub struct ViewWatch {
    watch: Watch<ConversationView>,
    /// As long as somebody observes, frames come.
    hub: Arc<Hub>,
}

impl Conversation {
    /// Its view, which follows what is committed.
    ///
    /// # Errors
    /// [`HostError::NotFound`], [`HostError::Unavailable`].
    pub async fn view_state(&self) -> Result<ViewState, HostError> {
        Ok(ViewState { hub: Hub::of(&self.harness.caller, self.id).await? })
    }

    /// Its view, and every later one as a frame. A reader that leaves more than 100 frames gets one root replacement in their place.
    ///
    /// # Errors
    /// [`HostError::NotFound`], [`HostError::Unavailable`].
    pub async fn watch(&self) -> Result<ViewWatch, HostError> {
        let hub = Hub::of(&self.harness.caller, self.id).await?;
        Ok(ViewWatch::attach(hub))
    }
}

impl Harness {
    /// Watches a token's document: the committed value, and every later one as a frame (section 9.2). `None` where there is none. It stays
    /// with this incarnation. Where the session gets another owner it goes on with one root replacement.
    ///
    /// # Errors
    /// [`HostError::Unavailable`]; [`HostError::Invalid`] where hosts have too many watches, and for a value that the token can't read.
    pub async fn watch_doc<T: DocValue, S: Scope>(&self, token: &DocToken<T, S>, at: S::At) -> Result<Option<Watch<T>>, HostError> {
        self.watch_stored(token.reader(at)).await
    }

    /// [`Harness::watch_doc`] of a member of a family.
    ///
    /// # Errors
    /// As [`Harness::watch_doc`].
    pub async fn watch_doc_in<T: DocValue, I, S: Scope>(
        &self,
        family: &FamilyToken<T, I, S>,
        at: S::At,
        key: &str,
    ) -> Result<Option<Watch<T>>, HostError> {
        self.watch_stored(family.reader(at, key)).await
    }

    async fn watch_stored<T: DocValue>(&self, reader: StoredReader) -> Result<Option<Watch<T>>, HostError> {
        let caller = &self.caller;
        // Nothing but its own end ends it.
        let ends = (CancellationToken::new(), CancellationToken::new());
        let source = Source::new(Arc::clone(caller.transport()), caller.session(), None, ends);
        match caller.request(source.asks(WatchCall::Begin(reader.address().clone()))).await? {
            Answer::Watched(Watched::Begun(stored)) => {
                let invalid = |error: picofleet_session::DefinitionError| HostError::Invalid { field: None, why: error.to_string() };
                let (watch, feeder) = source.watch(reader, *stored).map_err(invalid)?;
                // It ends with the watch.
                tokio::spawn(feeder);
                Ok(Some(watch))
            }
            Answer::Watched(Watched::Absent) => Ok(None),
            Answer::Refused(Refusal::Gone) => Err(HostError::Unavailable("the session is closing".to_owned())),
            other => Err(super::call::value::<()>(other).map_or_else(HostError::from, |()| HostError::Answer("no watch".to_owned()))),
        }
    }
}

impl ViewState {
    /// The newest view, as [`ConversationView`] is written; after the end it stays as it was.
    #[must_use]
    pub fn value(&self) -> Json {
        self.hub.mount().view()
    }

    /// The newest revision, to look at single documents of it.
    #[must_use]
    pub fn mount(&self) -> Mount {
        self.hub.mount()
    }

    /// Waits for a revision that shows something else than an earlier one; `None` once the observation has ended.
    pub async fn newer(&self, than: &Mount) -> Option<Mount> {
        self.hub.behind(than.at()).await
    }

    /// Why it ended; `None` while it goes on.
    #[must_use]
    pub fn end(&self) -> Option<WatchEnd> {
        self.hub.end()
    }
}

impl ViewWatch {
    fn attach(hub: Arc<Hub>) -> Self {
        let watch = hub.view(|mount| Watch::fed(KIND, NAME, mount.view()));
        Self { watch, hub }
    }

    /// Hands each frame to `listener`, one after the other, until the watch ends. A failing listener ends it.
    pub async fn run<F, E>(self, listener: F) -> WatchEnd
    where
        F: AsyncFnMut(Frame<ConversationView>) -> Result<(), E>,
        E: std::error::Error + Send + Sync + 'static,
    {
        let Self { watch, hub } = self;
        let end = watch.run(listener).await;
        drop(hub);
        end
    }

    /// Ends the watch once `token` is cancelled: from then on nothing is delivered.
    #[must_use]
    pub fn until(self, token: CancellationToken) -> Self {
        Self { watch: self.watch.until(token), hub: self.hub }
    }
}

impl Deref for ViewWatch {
    type Target = Watch<ConversationView>;

    fn deref(&self) -> &Self::Target {
        &self.watch
    }
}

impl DerefMut for ViewWatch {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.watch
    }
}
