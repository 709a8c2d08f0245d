//! A transaction ends with its callback (S032).

use picofleet_session::{CommitError, Session, Tx};

async fn escape(session: &Session) {
    let mut escaped: Option<&Tx> = None;
    let _: Result<(), CommitError> = session
        .commit(async |tx| {
            escaped = Some(tx);
            Ok(())
        })
        .await;
    let _ = escaped.map(Tx::now);
}

fn main() {}
