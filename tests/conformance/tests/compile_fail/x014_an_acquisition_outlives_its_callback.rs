//! An acquisition that is pending when the callback returns can't go on (X014).

use picofleet_session::{CommitError, DocDefinition, DocToken, InSession, Session, every};

const DOCUMENT: DocToken<Vec<String>, InSession> = DocToken::new("d", 1, text);

fn text() -> DocDefinition<Vec<String>> {
    DocDefinition { initial: Vec::new, migrate: None, checkpoint_when: every::<1> }
}

async fn escape(session: &Session) {
    let mut pending = None;
    let _: Result<(), CommitError> = session
        .commit(async |tx| {
            pending = Some(Box::pin(tx.doc(&DOCUMENT, ())));
            Ok(())
        })
        .await;
    if let Some(pending) = pending {
        let _ = pending.await.is_ok();
    }
}

fn main() {}
