//! A member of a family needs its key and its seed (section 3.3).

use picofleet_session::{CommitError, FamilyDefinition, FamilyToken, InSession, Session, every};

const FAMILY: FamilyToken<Vec<String>, String, InSession> = FamilyToken::new("f", 1, member);

fn member() -> FamilyDefinition<Vec<String>, String> {
    FamilyDefinition { initial: |seed| vec![seed.clone()], migrate: None, checkpoint_when: every::<1> }
}

async fn unseeded(session: &Session) {
    let _: Result<(), CommitError> = session
        .commit(async |tx| {
            tx.doc(&FAMILY, ()).await?;
            tx.doc_in(&FAMILY, (), "key", &1).await?;
            Ok(())
        })
        .await;
    let _ = session.snapshot(&FAMILY, ()).await;
}

fn main() {}
