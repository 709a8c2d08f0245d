//! A document that keeps only its newest value has no past to ask for (S043).

use picofleet_session::{ConversationId, Current, DocDefinition, DocToken, EntryId, InSession, Latest, Session, every};

const LATEST: DocToken<Vec<String>, Latest<Current>> = DocToken::new("d", 1, text);
const IN_SESSION: DocToken<Vec<String>, InSession> = DocToken::new("d", 1, text);

fn text() -> DocDefinition<Vec<String>> {
    DocDefinition { initial: Vec::new, migrate: None, checkpoint_when: every::<1> }
}

async fn past(session: &Session, conversation: ConversationId, at: EntryId) {
    let _ = session.snapshot_as_of(&LATEST, conversation, at).await;
    let _ = session.snapshot_as_of(&IN_SESSION, conversation, at).await;
}

fn main() {}
