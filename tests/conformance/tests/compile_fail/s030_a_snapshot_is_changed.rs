//! A committed revision is immutable (section 3.3).

use picofleet_session::{DocDefinition, DocToken, InSession, Session, every};

const DOCUMENT: DocToken<Vec<String>, InSession> = DocToken::new("d", 1, text);

fn text() -> DocDefinition<Vec<String>> {
    DocDefinition { initial: Vec::new, migrate: None, checkpoint_when: every::<1> }
}

async fn change(session: &Session) {
    let value = session.snapshot_json(&DOCUMENT, ()).await.ok().flatten();
    value.map(|value| value.key("a").set(1));
}

fn main() {}
