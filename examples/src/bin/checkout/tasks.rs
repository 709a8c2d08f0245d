//! The two tasks of the shop.

use std::sync::Arc;

use picofleet_harness::effects::Fault;
use picofleet_harness::kind::{Next, NoDecision, Outcome, Running, TaskKind, TaskOptions, TxTasks as _};
use picofleet_harness::runtime::TaskRuntime;
use picofleet_session::{JoinPolicy, TaskError, TaskId};
use serde::{Deserialize, Serialize};

use crate::bank::{Bank, Declined};

/// Pays an order with all of its cards, or with none.
pub(crate) struct Checkout {
    pub(crate) payment: Arc<Payment>,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) name: String,
    pub(crate) cards: Vec<String>,
}

/// How the payments of an order ended, in the order of its cards.
#[derive(Serialize, Deserialize)]
pub(crate) struct Receipt {
    pub(crate) payments: Vec<String>,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(tag = "phase", rename_all = "camelCase")]
pub(crate) enum Checking {
    /// The payments are to be made.
    Pay,
    /// They are over.
    Collect { payments: Vec<TaskId<()>> },
}

impl Checkout {
    /// The payments and the wait for them are one commit: there is no moment at which a crash leaves some of them, or nobody who waits.
    async fn pay(&self, runtime: &TaskRuntime<Self>) -> Result<(), Fault> {
        runtime
            .commit(async |tx, task| {
                let mut payments = Vec::new();
                for card in &task.input.cards {
                    let card = Card { order: task.input.name.clone(), card: card.clone(), of: task.input.cards.len() };
                    payments.push(tx.create_task(&*self.payment, card, TaskOptions::owned_by(task.id)).await?);
                }
                let on = payments.iter().map(|payment| payment.erase()).collect();
                // The first that fails aborts the others; the wait ends when all are over.
                Ok::<_, Fault>(Next::Wait { checkpoint: Checking::Collect { payments }, on, policy: JoinPolicy::FailFast })
            })
            .await
    }

    async fn collect(&self, runtime: &TaskRuntime<Self>, payments: &[TaskId<()>]) -> Result<(), Fault> {
        let outcomes = runtime.outcomes(payments).await?;
        let failure = outcomes.iter().find_map(|outcome| match outcome {
            Outcome::Failed { error, .. } | Outcome::Faulted(error) => Some(error.clone()),
            _ => None,
        });
        let receipt = Receipt { payments: words(&outcomes) };
        let end = match failure {
            None => Outcome::Completed(receipt),
            Some(error) => Outcome::Failed { error, result: Some(receipt) },
        };
        runtime.commit(async |_, _| Ok::<_, Fault>(Next::End(end))).await
    }
}

fn words(outcomes: &[Outcome<()>]) -> Vec<String> {
    let word = |outcome: &Outcome<()>| match outcome {
        Outcome::Completed(()) => "completed",
        Outcome::Failed { .. } => "failed",
        Outcome::Aborted { .. } => "aborted",
        Outcome::Orphaned(_) => "orphaned",
        Outcome::Faulted(_) => "faulted",
    };
    outcomes.iter().map(|outcome| word(outcome).to_owned()).collect()
}

impl TaskKind for Checkout {
    const NAME: &'static str = "example.checkout";
    const VERSION: u32 = 1;
    type Input = Order;
    type Checkpoint = Checking;
    type Output = Receipt;
    type Decision = NoDecision;
    type Hooks = ();

    fn initial(&self, _: &Order) -> Checking {
        Checking::Pay
    }

    async fn run(&self, task: Running<Self>, runtime: TaskRuntime<Self>) -> Result<(), Fault> {
        match &task.checkpoint {
            Checking::Pay => self.pay(&runtime).await,
            Checking::Collect { payments } => self.collect(&runtime, payments).await,
        }
    }

    /// It runs behind the abort handlers of its payments, and sees how they ended.
    async fn abort(&self, task: Running<Self>, runtime: TaskRuntime<Self>) -> Result<(), Fault> {
        let result = match &task.checkpoint {
            Checking::Pay => None,
            Checking::Collect { payments } => Some(Receipt { payments: words(&runtime.outcomes(payments).await?) }),
        };
        runtime.commit(async |_, _| Ok::<_, Fault>(Next::End(Outcome::Aborted { reason: None, result }))).await
    }
}

/// Charges one card, and refunds it where it is aborted.
pub(crate) struct Payment {
    pub(crate) bank: Arc<Bank>,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Card {
    pub(crate) order: String,
    pub(crate) card: String,
    /// How many cards pay the order.
    pub(crate) of: usize,
}

impl Card {
    /// Names the payment at the bank. It is the same in every run of the task, so that the bank does nothing twice.
    pub(crate) fn key(&self) -> String {
        format!("{}/{}", self.order, self.card)
    }
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(tag = "phase", rename_all = "camelCase")]
pub(crate) enum Paying {
    /// The card is to be charged.
    Charge,
    /// It is charged; the bank is to confirm it.
    Confirm,
}

impl TaskKind for Payment {
    const NAME: &'static str = "example.payment";
    const VERSION: u32 = 1;
    type Input = Card;
    type Checkpoint = Paying;
    type Output = ();
    type Decision = NoDecision;
    type Hooks = ();

    fn initial(&self, _: &Card) -> Paying {
        Paying::Charge
    }

    async fn run(&self, task: Running<Self>, runtime: TaskRuntime<Self>) -> Result<(), Fault> {
        let next = match task.checkpoint {
            Paying::Charge => match self.bank.charge(&task.input).await? {
                Ok(()) => Next::Checkpoint(Paying::Confirm),
                Err(Declined(why)) => {
                    let error = TaskError { message: format!("{} was declined: {why}", task.input.card), detail: None };
                    Next::End(Outcome::Failed { error, result: None })
                }
            },
            Paying::Confirm => tokio::select! {
                confirmed = self.bank.confirmed(&task.input) => {
                    confirmed?;
                    Next::End(Outcome::Completed(()))
                }
                // Whoever is told to stop stops: the abort handler comes next.
                () = runtime.cancelled().cancelled() => return Err(Fault::Ended),
            },
        };
        runtime.commit(async |_, _| Ok::<_, Fault>(next)).await
    }

    async fn abort(&self, task: Running<Self>, runtime: TaskRuntime<Self>) -> Result<(), Fault> {
        self.bank.refund(&task.input).await?;
        runtime.commit(async |_, _| Ok::<_, Fault>(Next::End(Outcome::Aborted { reason: None, result: None }))).await
    }
}
