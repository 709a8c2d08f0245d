//! Versions start at 1 (section 3.1).

use picofleet_session::{DocDefinition, DocToken, InSession, every};

const DOCUMENT: DocToken<Vec<String>, InSession> = DocToken::new("d", 0, text);

fn text() -> DocDefinition<Vec<String>> {
    DocDefinition { initial: Vec::new, migrate: None, checkpoint_when: every::<1> }
}

fn kind() -> &'static str {
    DOCUMENT.kind
}

fn main() {}
