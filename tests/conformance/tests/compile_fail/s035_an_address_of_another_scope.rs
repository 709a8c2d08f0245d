//! A token's scope decides what names its documents.

use picofleet_session::{CommitError, ConversationId, Current, DocDefinition, DocToken, InSession, InTask, Latest, Session, every};

const IN_CONVERSATION: DocToken<Vec<String>, Latest<Current>> = DocToken::new("d", 1, text);
const IN_SESSION: DocToken<Vec<String>, InSession> = DocToken::new("d", 1, text);
const IN_TASK: DocToken<Vec<String>, InTask> = DocToken::new("d", 1, text);

fn text() -> DocDefinition<Vec<String>> {
    DocDefinition { initial: Vec::new, migrate: None, checkpoint_when: every::<1> }
}

async fn misnamed(session: &Session, conversation: ConversationId) {
    let _ = session.snapshot(&IN_CONVERSATION, ()).await;
    let _ = session.snapshot(&IN_SESSION, conversation).await;
    let _ = session.watch_doc(&IN_TASK, conversation).await;
    let _: Result<(), CommitError> = session
        .commit(async |tx| {
            tx.doc(&IN_TASK, conversation).await?;
            Ok(())
        })
        .await;
}

fn main() {}
