//! A draft ends with its callback (S032).

use picofleet_session::{CommitError, DocDefinition, DocToken, InSession, Session, every};

const DOCUMENT: DocToken<Vec<String>, InSession> = DocToken::new("d", 1, text);

fn text() -> DocDefinition<Vec<String>> {
    DocDefinition { initial: Vec::new, migrate: None, checkpoint_when: every::<1> }
}

async fn escape(session: &Session) {
    let mut escaped = None;
    let _: Result<(), CommitError> = session
        .commit(async |tx| {
            escaped = Some(tx.doc(&DOCUMENT, ()).await?.draft);
            Ok(())
        })
        .await;
    let _ = escaped.map(|draft| draft.get());
}

fn main() {}
