//! Groups that share sessions at the same time.

use picofleet_session::storage::Head;
use picofleet_session::{CommitToken, Epoch, Millis, PartitionCount, Seq, SessionId};

use super::group::{Arrays, Part};
use super::rows;
use super::staged::Staged;
use crate::conformance::Database;

/// Makes each row of the chain take its time, so that two groups overlap.
const SLOW: &str = "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.005); RETURN NEW; END $$;
    CREATE TRIGGER slow BEFORE INSERT ON commit FOR EACH ROW EXECUTE FUNCTION slow();";

fn head(seq: i64) -> Head {
    Head { seq: Seq(seq), token: CommitToken::random(), epoch: Epoch(0), next_id: 2, opens: 0, at: Millis(0) }
}

/// Two owners that stand on the same commits write groups of the same sessions, one in the opposite order of the other. Each session goes to
/// one of the two, and the groups do not wait for each other in a circle.
#[tokio::test]
async fn groups_that_share_sessions_do_not_deadlock() {
    let database = Database::new().await;
    let (first, second) = (database.client().await, database.client().await);
    let mut sessions: Vec<(SessionId, Head)> = (0..32).map(|_| (SessionId::random(), head(0))).collect();
    for (id, head) in &sessions {
        let sql = "INSERT INTO commit (session_id, seq, token, epoch, next_id, opens, at) VALUES ($1, $2, $3, 0, 2, 0, 0)";
        first.execute(sql, &[&rows::uuid(*id), &head.seq.0, &rows::token(head.token)]).await.unwrap();
    }
    first.batch_execute(SLOW).await.unwrap();
    for _ in 0..3 {
        let staged = |_: &(SessionId, Head)| Staged { commits: vec![head(sessions[0].1.seq.0 + 1)], ..Staged::default() };
        let (ours, theirs): (Vec<Staged>, Vec<Staged>) = (sessions.iter().map(staged).collect(), sessions.iter().map(staged).collect());
        let part = |((id, head), staged): (&(SessionId, Head), _)| Part { session: *id, behind: head.token, staged };
        let forward = Arrays::new(sessions.iter().zip(&ours).map(part).collect(), PartitionCount::DEFAULT);
        let backward = Arrays::new(sessions.iter().zip(&theirs).map(part).rev().collect(), PartitionCount::DEFAULT);
        let (forward_parameters, backward_parameters) = (forward.parameters(), backward.parameters());
        let both = futures::join!(first.query(forward.sql(), &forward_parameters), second.query(backward.sql(), &backward_parameters));
        let (won, lost) = (both.0.unwrap(), both.1.unwrap());
        assert_eq!(won.len() + lost.len(), sessions.len(), "each session went to one of the two");
        let won: Vec<SessionId> = won.iter().map(|row| rows::session_id(row, 0).unwrap()).collect();
        for (index, session) in sessions.iter_mut().enumerate() {
            let staged = if won.contains(&session.0) { &ours[index] } else { &theirs[index] };
            session.1 = staged.commits[0];
        }
    }
}
