//! A fork as of an entry needs history (section 3.1).

use picofleet_session::{AsOf, DocDefinition, DocToken, Latest, every};

const DOCUMENT: DocToken<Vec<String>, Latest<AsOf>> = DocToken::new("d", 1, text);

fn text() -> DocDefinition<Vec<String>> {
    DocDefinition { initial: Vec::new, migrate: None, checkpoint_when: every::<1> }
}

fn main() {}
