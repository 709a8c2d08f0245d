//! A checkout that pays with several cards at once: a task with child tasks that fail fast, and abort handlers that refund.
//!
//! `Checkout` creates a `Payment` for each card and waits for all of them. Where one fails, the others are aborted, each refunds what it
//! charged, and `Checkout` decides what that means. Where somebody aborts `Checkout`, its payments are aborted first.
//!
//! `cargo run -p picofleet-examples --bin checkout`; kill it in the middle of an order with `... FOLDER --hold 'charge late/visa'` or
//! `... FOLDER --hold 'refund late/visa'`, and run it again with `... FOLDER`: no card is charged or refunded twice.

mod bank;
mod tasks;

use std::collections::BTreeMap;
use std::sync::Arc;

use picofleet_examples::{App, Place, say};
use picofleet_harness::host::{AbortTask, Conversation};
use picofleet_harness::kind::{Outcome, TaskOptions, TxTasks as _};
use picofleet_harness::registry::Registry;
use picofleet_session::{DocDefinition, DocToken, Initial, Latest, TaskId, every};
use serde::{Deserialize, Serialize};

use bank::Bank;
use tasks::{Checkout, Order, Payment, Receipt};

/// The orders that were placed. An order is in it from the commit on that creates its task, so that nobody places it twice.
static ORDERS: DocToken<Orders, Latest<Initial>> =
    DocToken::new("example.orders", 1, || DocDefinition { initial: Orders::default, migrate: None, checkpoint_when: every::<16> });

#[derive(Default, Serialize, Deserialize)]
struct Orders {
    placed: BTreeMap<String, TaskId<Receipt>>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let place = Place::of_arguments(&bank::POINTS)?;
    let bank = Arc::new(Bank::open(&place)?);
    let checkout = Arc::new(Checkout { payment: Arc::new(Payment { bank: Arc::clone(&bank) }) });
    let registry = Registry::new();
    registry.task(Arc::clone(&checkout.payment))?;
    registry.task(Arc::clone(&checkout))?;
    let app = App::open(place.folder(), registry, "turns = []").await?;

    say("An order that four cards pay:");
    let books = order(&app.root, &checkout, "books", &["visa", "master", "amex", "diners"]).await?;
    say(format_args!("  {}", told(&app.harness.wait_for_task(books).await?)));

    say("An order with an expired card among four:");
    let late = order(&app.root, &checkout, "late", &["visa", "expired", "amex", "diners"]).await?;
    say(format_args!("  {}", told(&app.harness.wait_for_task(late).await?)));

    say("An order that the bank never confirms, until the shop aborts it:");
    let slow = order(&app.root, &checkout, "slow", &["visa", "master"]).await?;
    bank.charged("slow", 2).await?;
    if app.harness.abort_task(slow.erase()).await? == AbortTask::Terminal {
        say("  (it was aborted before)");
    }
    say(format_args!("  {}", told(&app.harness.wait_for_task(slow).await?)));

    say("What the bank did:");
    for (order, charged, refunded) in bank.balance()? {
        say(format_args!("  {order}: {charged} charged, {refunded} refunded"));
    }
    app.close().await
}

/// Places an order, or finds the task of the one with this name.
async fn order(root: &Conversation, checkout: &Checkout, name: &str, cards: &[&str]) -> anyhow::Result<TaskId<Receipt>> {
    root.commit(async |tx| {
        let orders = tx.doc(&ORDERS, root.id()).await?;
        if let Some(placed) = orders.read()?.placed.get(name) {
            return Ok(*placed);
        }
        let order = Order { name: name.to_owned(), cards: cards.iter().map(|&card| card.to_owned()).collect() };
        let task = tx.create_task(checkout, order, TaskOptions::top_level()).await?;
        orders.edit(|orders| orders.placed.insert(name.to_owned(), task))?;
        Ok(task)
    })
    .await
}

fn told(outcome: &Outcome<Receipt>) -> String {
    let payments = |receipt: &Receipt| receipt.payments.join(", ");
    match outcome {
        Outcome::Completed(receipt) => format!("paid [{}]", payments(receipt)),
        Outcome::Failed { error, result } => format!("failed: {} [{}]", error.message, result.as_ref().map(payments).unwrap_or_default()),
        Outcome::Aborted { result, .. } => format!("aborted [{}]", result.as_ref().map(payments).unwrap_or_default()),
        Outcome::Orphaned(reason) => format!("orphaned: {reason}"),
        Outcome::Faulted(error) => format!("faulted: {}", error.message),
    }
}
