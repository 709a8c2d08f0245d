//! A session that nobody uses rests: its line is given up, and the next use opens it again (`design.md` 6).

use picofleet_session::CommitError;

use super::{LineError, SessionLine, State};
use crate::inspection::Scheduling;

/// The listener of commits that is the line's own.
const OWN_FOLLOWERS: usize = 1;

/// Who uses a line.
#[derive(Default)]
pub(super) struct Visits {
    /// How many use it now.
    now: usize,
    /// How many have used it.
    ever: u64,
    /// It rests: who comes now opens the session again.
    over: bool,
}

/// A use of a line: while it lasts the line does not rest.
pub struct Visit {
    line: SessionLine,
}

impl Drop for Visit {
    fn drop(&mut self) {
        let mut state = self.line.state();
        state.visits.now = state.visits.now.saturating_sub(1);
    }
}

impl SessionLine {
    /// Keeps the line from resting; `None` where it rests already, so that the session has to be opened again.
    #[must_use]
    pub fn visit(&self) -> Option<Visit> {
        let mut state = self.state();
        if state.visits.over {
            return None;
        }
        state.visits.now += 1;
        state.visits.ever += 1;
        drop(state);
        Some(Visit { line: self.clone() })
    }

    /// How often it was visited.
    #[must_use]
    pub fn visited(&self) -> u64 {
        self.state().visits.ever
    }

    /// Whether it rests.
    #[must_use]
    pub fn rests(&self) -> bool {
        self.state().visits.over
    }

    /// Whether it could rest: no task is live, nobody uses it, watches or holds anything.
    #[must_use]
    pub fn quiet(&self) -> bool {
        self.is_quiet(&self.state())
    }

    fn is_quiet(&self, state: &State) -> bool {
        let works = !state.tree.live.is_empty() || !state.held.is_empty() || !state.holds.is_empty();
        let followed = state.watches.read() || state.follows.read() || self.session().followers() > OWN_FOLLOWERS;
        state.visits.now == 0 && state.scheduling != Scheduling::Closing && !works && !followed
    }

    /// Gives the session up where it could rest; whether it did. Whoever has visited it before is done, and whoever comes later finds that
    /// it rests.
    ///
    /// # Errors
    /// [`LineError`]; it does not rest then.
    pub async fn rest(&self) -> Result<bool, LineError> {
        // On the line, so that no commit comes between the look and the seal.
        let rests = self
            .session()
            .commit(async |_| {
                let mut state = self.state();
                let rests = self.is_quiet(&state);
                if rests {
                    state.visits.over = true;
                    state.scheduling = Scheduling::Closing;
                }
                Ok::<_, CommitError>(rests)
            })
            .await?;
        if rests {
            self.release().await;
        }
        Ok(rests)
    }

    /// Gives the session up as it is: what runs goes on, but for a reservation that no beat has named yet; who waits asks again, and who
    /// watches is told that somebody else has it.
    pub async fn release(&self) {
        // A closure that holds the line would keep it for its whole time.
        self.end_holds().await;
        if let Err(error) = self.session().release().await {
            tracing::warn!(session = %self.session().id(), error = %error, "a session was not given up in order");
        }
        self.tell_an_end();
    }
}
