//! The ledger of a conversation's own spend (section 8.6).

use std::collections::BTreeMap;

use picofleet_models::usage::{COUNT_MAX, bounded};
use picofleet_session::message::{AssistantMessage, Usage};
use picofleet_session::{ConversationId, DocDefinition, DocToken, Initial, Json, Latest, Tx, TxError};
use serde::{Deserialize, Serialize};

/// Kind `pi.usage`, version 1, latest, fresh in forks; a complete base on every change.
pub static USAGE: DocToken<UsageState, Latest<Initial>> =
    DocToken::new("pi.usage", 1, || DocDefinition { initial: UsageState::default, migrate: None, checkpoint_when: |_, _, _| true });

/// What a conversation spent.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct UsageState {
    /// By `provider/model`: assistant entries and summarization attempts.
    pub models: BTreeMap<String, Usage>,
    /// By tool: what tools spent themselves.
    pub tools: BTreeMap<String, Usage>,
}

impl UsageState {
    /// Adds another conversation's spend.
    pub fn add(&mut self, other: &UsageState) {
        for (name, usage) in &other.models {
            add(self.models.entry(name.clone()).or_default(), usage);
        }
        for (name, usage) in &other.tools {
            add(self.tools.entry(name.clone()).or_default(), usage);
        }
    }
}

/// Adds one usage to another. Optional counters appear only once somebody reported them. A sum stays within what is stored exactly, and what
/// is out of range counts as 0.
pub fn add(sum: &mut Usage, usage: &Usage) {
    let usage = &bounded(*usage);
    add_all(sum, usage);
    let stays = |count: &mut u64| *count = (*count).min(COUNT_MAX);
    [&mut sum.input, &mut sum.output, &mut sum.cache_read, &mut sum.cache_write, &mut sum.total_tokens].into_iter().for_each(stays);
    sum.cache_write_1h.iter_mut().chain(&mut sum.reasoning).for_each(stays);
    let cost = &mut sum.cost;
    for part in [&mut cost.input, &mut cost.output, &mut cost.cache_read, &mut cost.cache_write, &mut cost.total] {
        *part = part.clamp(f64::MIN, f64::MAX);
    }
}

fn add_all(sum: &mut Usage, usage: &Usage) {
    let optional = |a: Option<u64>, b: Option<u64>| match (a, b) {
        (None, None) => None,
        (a, b) => Some(a.unwrap_or_default().saturating_add(b.unwrap_or_default())),
    };
    sum.input = sum.input.saturating_add(usage.input);
    sum.output = sum.output.saturating_add(usage.output);
    sum.cache_read = sum.cache_read.saturating_add(usage.cache_read);
    sum.cache_write = sum.cache_write.saturating_add(usage.cache_write);
    sum.cache_write_1h = optional(sum.cache_write_1h, usage.cache_write_1h);
    sum.reasoning = optional(sum.reasoning, usage.reasoning);
    sum.total_tokens = sum.total_tokens.saturating_add(usage.total_tokens);
    sum.cost.input += usage.cost.input;
    sum.cost.output += usage.cost.output;
    sum.cost.cache_read += usage.cost.cache_read;
    sum.cost.cache_write += usage.cost.cache_write;
    sum.cost.total += usage.cost.total;
    sum.cost.total_from_provider = match (sum.cost.total_from_provider, usage.cost.total_from_provider) {
        (None, None) => None,
        (a, b) => Some(a.unwrap_or(true) && b.unwrap_or(true)),
    };
}

/// Counts a model's message.
///
/// # Errors
/// As [`Tx::doc`].
pub async fn count_message(tx: &Tx, conversation: ConversationId, message: &AssistantMessage) -> Result<(), TxError> {
    count(tx, conversation, "models", &format!("{}/{}", message.provider, message.model), &message.usage).await
}

/// Counts what a tool spent itself.
///
/// # Errors
/// As [`Tx::doc`].
pub async fn count_tool(tx: &Tx, conversation: ConversationId, tool: &str, usage: &Usage) -> Result<(), TxError> {
    count(tx, conversation, "tools", tool, usage).await
}

async fn count(tx: &Tx, conversation: ConversationId, group: &str, name: &str, usage: &Usage) -> Result<(), TxError> {
    let place = tx.doc(&USAGE, conversation).await?.draft.key(group).key(name);
    // What is stored was written here; another form counts as nothing rather than to fail the run.
    let mut sum = place.get().and_then(|value: Json| value.to::<Usage>().ok()).unwrap_or_default();
    add(&mut sum, usage);
    place.set_serde(&sum)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use picofleet_session::message::Cost;

    use super::*;

    #[test]
    fn a_sum_stays_within_what_is_stored() {
        let cost = Cost { total: f64::MAX, ..Cost::default() };
        let much = Usage { input: COUNT_MAX, output: 1, total_tokens: COUNT_MAX, reasoning: Some(COUNT_MAX), cost, ..Usage::default() };
        let mut sum = much;
        add(&mut sum, &much);
        assert_eq!((sum.input, sum.output, sum.total_tokens, sum.reasoning), (COUNT_MAX, 2, COUNT_MAX, Some(COUNT_MAX)));
        assert_eq!(sum.cost.total, f64::MAX);
        let before = sum;
        add(&mut sum, &Usage { input: u64::MAX, cost: Cost { total: f64::NAN, ..Cost::default() }, ..Usage::default() });
        assert_eq!(sum, before, "what is out of range is not counted");
        assert_eq!(Json::from_serde(&sum).unwrap().to::<Usage>().unwrap(), sum, "it is stored and read as it is");
    }
}
