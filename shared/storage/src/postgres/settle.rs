//! What became of a group whose connection was lost (`protocol.md` 2).
//!
//! "Not landed" can't be read: the server may still be at it. It can be made true. A fence takes the place of each batch's first row; where
//! it gets it, the batch can never land there and is sent again on top of the fence. Where the place is taken, its token says by whom.

use picofleet_session::CommitToken;
use tokio_postgres::Error;
use uuid::Uuid;

use super::committer::{Committer, evict, uuids};
use super::connect::full;
use super::errors::{Class, class, code};
use super::line::Work;
use super::retry::Attempts;
use super::rows;

/// What became of the batches of a group.
#[derive(Default)]
pub(super) struct Settled {
    /// They are stored.
    pub(super) landed: Vec<Work>,
    /// Another owner has the line.
    pub(super) fenced: Vec<Work>,
    /// They are not stored and stand on top of a fence now.
    pub(super) again: Vec<Work>,
    /// It can't be told.
    pub(super) uncertain: Vec<Work>,
}

/// A fence at the place of each batch whose predecessor is there.
pub(super) const FENCE: &str = "INSERT INTO commit (session_id, seq, token, epoch, next_id, opens, at)
  SELECT b.session, b.seq, b.token, b.epoch, b.next_id, b.opens, b.at
  FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::uuid[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[])
    AS b (session, behind, seq, token, epoch, next_id, opens, at)
  WHERE (SELECT c.token FROM commit c WHERE c.session_id = b.session AND c.seq = b.seq - 1) = b.behind
  ON CONFLICT DO NOTHING";

/// Who has the places.
pub(super) const PLACES: &str = "SELECT b.session, (SELECT c.token FROM commit c WHERE c.session_id = b.session AND c.seq = b.seq)
  FROM unnest($1::uuid[], $2::bigint[]) AS b (session, seq)";

impl Committer {
    /// Finds out about each batch, on a new connection.
    pub(super) async fn settle(&mut self, mut works: Vec<Work>, attempts: &mut Attempts) -> Settled {
        works.sort_by_key(Work::session);
        // The same fences in every attempt: one whose answer was lost is known again.
        let fences: Vec<CommitToken> = works.iter().map(|_| CommitToken::random()).collect();
        loop {
            if self.link(attempts).await.is_err() {
                break;
            }
            match self.places(&works, &fences).await {
                Ok(places) => return sorted(works, &fences, &places),
                Err(error) => {
                    tracing::warn!(store = %self.access.place.0, error = %full(&error), "a lost group is not settled yet");
                    match class(&error) {
                        Class::Again if code(&error) == Some("55P03") => self.evict().await,
                        Class::Again | Class::Refused => {}
                        Class::Unable | Class::Unknown => self.lose(),
                    }
                    if !attempts.again().await {
                        break;
                    }
                }
            }
        }
        Settled { uncertain: works, ..Settled::default() }
    }

    async fn places(&mut self, works: &[Work], fences: &[CommitToken]) -> Result<Vec<Option<Uuid>>, Error> {
        let lost = self.lost;
        let access = self.access.clone();
        let Some(link) = self.link_now() else { return Ok(vec![None; works.len()]) };
        // Where the server is still at it, it would hold the places until it notices that nobody is there.
        evict(&link.client, &access, lost).await?;
        let sessions = uuids(works.iter());
        let behind: Vec<Uuid> = works.iter().map(|work| rows::token(work.behind())).collect();
        let tokens: Vec<Uuid> = fences.iter().map(|token| rows::token(*token)).collect();
        let heads: Vec<_> = works.iter().map(Work::head).collect();
        let seqs: Vec<i64> = heads.iter().map(|head| head.seq.0 + 1).collect();
        let epochs: Vec<i64> = heads.iter().map(|head| head.epoch.0).collect();
        let next_ids: Vec<i64> = heads.iter().map(|head| head.next_id).collect();
        let opens: Vec<i64> = heads.iter().map(|head| i64::from(head.opens)).collect();
        let ats: Vec<i64> = heads.iter().map(|head| head.at.0).collect();
        link.client.execute(FENCE, &[&sessions, &behind, &seqs, &tokens, &epochs, &next_ids, &opens, &ats]).await?;
        // A statement of its own: its snapshot shows who won against the fence.
        let rows = link.client.query(PLACES, &[&sessions, &seqs]).await?;
        rows.iter().map(|row| row.try_get(1)).collect()
    }
}

fn sorted(works: Vec<Work>, fences: &[CommitToken], places: &[Option<Uuid>]) -> Settled {
    let mut settled = Settled::default();
    for ((mut work, fence), place) in works.into_iter().zip(fences).zip(places) {
        match place {
            Some(token) if *token == rows::token(work.first()) => settled.landed.push(work),
            Some(token) if *token == rows::token(*fence) => {
                work.rebase(*fence);
                settled.again.push(work);
            }
            _ => settled.fenced.push(work),
        }
    }
    settled
}
