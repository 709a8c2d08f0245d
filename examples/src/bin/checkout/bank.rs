//! A bank, which is no part of the session: what it did is in its own file and survives every crash. It does nothing twice for one key.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use picofleet_examples::{Place, hold};
use picofleet_harness::effects::Fault;
use picofleet_session::TaskError;
use tokio::sync::watch;

use crate::tasks::Card;

/// The order that the bank never confirms.
const SLOW: &str = "slow";

/// The card that it declines.
const EXPIRED: &str = "expired";

pub(crate) struct Bank {
    file: PathBuf,
    /// One at a time looks into the file and writes.
    turn: Mutex<()>,
    changes: watch::Sender<u64>,
    /// Where it stops for ever, behind what it did and before it answers.
    holds: Option<String>,
}

/// A card that is not good.
pub(crate) struct Declined(pub(crate) String);

/// The file of the bank can't be used.
#[derive(Debug, thiserror::Error)]
#[error("the bank's file {path} can't be used")]
pub(crate) struct Broken {
    path: String,
    #[source]
    source: std::io::Error,
}

/// A task that can't reach its bank faults.
impl From<Broken> for Fault {
    fn from(broken: Broken) -> Self {
        Self::Failed(TaskError { message: format!("{broken}: {}", broken.source), detail: None })
    }
}

/// Where the example can hold: behind a line of the log.
pub(crate) const POINTS: [&str; 2] = ["charge late/visa", "refund late/visa"];

impl Bank {
    pub(crate) fn open(place: &Place) -> anyhow::Result<Self> {
        let holds = POINTS.into_iter().find(|point| place.holds(point));
        let (changes, _) = watch::channel(0);
        Ok(Self { file: place.folder().join("bank.log"), turn: Mutex::default(), changes, holds: holds.map(str::to_owned) })
    }

    /// Charges a card, once for its key.
    pub(crate) async fn charge(&self, card: &Card) -> Result<Result<(), Declined>, Broken> {
        if card.card == EXPIRED {
            // The others are charged by the time that the bank has found out.
            self.charged(&card.order, card.of - 1).await?;
            return Ok(Err(Declined("it has expired".to_owned())));
        }
        self.once(&format!("charge {}", card.key())).await?;
        Ok(Ok(()))
    }

    /// Gives back what was charged, once for its key; where nothing was it does nothing.
    pub(crate) async fn refund(&self, card: &Card) -> Result<(), Broken> {
        if self.lines()?.contains(&format!("charge {}", card.key())) {
            self.once(&format!("refund {}", card.key())).await?;
        }
        Ok(())
    }

    /// Waits until the bank confirms an order, which it does as a whole.
    pub(crate) async fn confirmed(&self, card: &Card) -> Result<(), Broken> {
        if card.order == SLOW {
            std::future::pending::<()>().await;
        }
        self.charged(&card.order, card.of).await
    }

    /// Waits until so many cards of an order are charged.
    pub(crate) async fn charged(&self, order: &str, cards: usize) -> Result<(), Broken> {
        let mut changes = self.changes.subscribe();
        let begins = format!("charge {order}/");
        while self.lines()?.iter().filter(|line| line.starts_with(&begins)).count() < cards {
            // The sender lives as long as the bank.
            let _ = changes.changed().await;
        }
        Ok(())
    }

    /// By order: how many cards were charged, and how many got their money back.
    pub(crate) fn balance(&self) -> Result<Vec<(String, usize, usize)>, Broken> {
        let mut orders: BTreeMap<String, (usize, usize)> = BTreeMap::new();
        for line in self.lines()? {
            let Some((what, key)) = line.split_once(' ') else { continue };
            let order = orders.entry(key.split('/').next().unwrap_or_default().to_owned()).or_default();
            if what == "charge" { order.0 += 1 } else { order.1 += 1 }
        }
        Ok(orders.into_iter().map(|(order, (charged, refunded))| (order, charged, refunded)).collect())
    }

    /// Does something that was not done yet, and answers.
    async fn once(&self, line: &str) -> Result<(), Broken> {
        {
            let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
            if !self.lines()?.iter().any(|known| known == line) {
                let mut file = OpenOptions::new().create(true).append(true).open(&self.file).map_err(|error| self.broken(error))?;
                file.write_all(format!("{line}\n").as_bytes()).map_err(|error| self.broken(error))?;
            }
        }
        self.changes.send_modify(|count| *count += 1);
        if self.holds.as_deref() == Some(line) {
            hold(line).await;
        }
        Ok(())
    }

    fn lines(&self) -> Result<Vec<String>, Broken> {
        match std::fs::read_to_string(&self.file) {
            Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(self.broken(error)),
        }
    }

    fn broken(&self, source: std::io::Error) -> Broken {
        Broken { path: self.file.display().to_string(), source }
    }
}
