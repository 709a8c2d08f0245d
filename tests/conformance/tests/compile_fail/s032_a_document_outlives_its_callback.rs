//! An open document can't be the result of its callback (S032).

use picofleet_session::{CommitError, DocDefinition, DocToken, InSession, Session, every};

const DOCUMENT: DocToken<Vec<String>, InSession> = DocToken::new("d", 1, text);

fn text() -> DocDefinition<Vec<String>> {
    DocDefinition { initial: Vec::new, migrate: None, checkpoint_when: every::<1> }
}

async fn escape(session: &Session) {
    let _ = session.commit(async |tx| Ok::<_, CommitError>(tx.doc(&DOCUMENT, ()).await?)).await;
}

fn main() {}
