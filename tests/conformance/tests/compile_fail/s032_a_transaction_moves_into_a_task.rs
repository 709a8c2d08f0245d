//! Detached work has no transaction (S032; section 12).

use picofleet_session::{CommitError, EntryDraft, ROOT_CONVERSATION_ID, Session};

async fn escape(session: &Session) {
    let _: Result<(), CommitError> = session
        .commit(async |tx| {
            tokio::spawn(async move { tx.append_entry(ROOT_CONVERSATION_ID, EntryDraft::new("t")).await.is_ok() });
            Ok(())
        })
        .await;
}

fn main() {}
