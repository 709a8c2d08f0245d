//! A set of ids. Those of a session follow each other, so that it needs about a bit for each and not a hash table's dozens.

use std::collections::BTreeMap;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Seen(BTreeMap<i64, u64>);

impl Seen {
    /// Adds an id, and says whether it is new.
    pub(super) fn insert(&mut self, id: i64) -> bool {
        let word = self.0.entry(id >> 6).or_default();
        let bit = 1 << (id & 63);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_id_is_new_once() {
        let ids = [0, 1, 63, 64, 65, 127, 128, 1 << 40, (1 << 40) + 1, i64::MAX];
        let mut seen = Seen::default();
        assert!(ids.iter().all(|id| seen.insert(*id)));
        assert!(!ids.iter().any(|id| seen.insert(*id)));
        assert!(seen.insert(62) && seen.insert(129));
    }
}
