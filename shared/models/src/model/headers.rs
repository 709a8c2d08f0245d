//! Headers of requests.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, DerefMut};

use serde::{Deserialize, Serialize};

/// Headers by their names. A value may be a credential whatever its name is, so `Debug` shows the names alone.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Headers<V = Option<String>>(BTreeMap<String, V>);

impl<V> Headers<V> {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<V> fmt::Debug for Headers<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl<V> Default for Headers<V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<V> Deref for Headers<V> {
    type Target = BTreeMap<String, V>;

    fn deref(&self) -> &BTreeMap<String, V> {
        &self.0
    }
}

impl<V> DerefMut for Headers<V> {
    fn deref_mut(&mut self) -> &mut BTreeMap<String, V> {
        &mut self.0
    }
}

impl<V> FromIterator<(String, V)> for Headers<V> {
    fn from_iter<I: IntoIterator<Item = (String, V)>>(headers: I) -> Self {
        Self(headers.into_iter().collect())
    }
}

impl<V, const N: usize> From<[(String, V); N]> for Headers<V> {
    fn from(headers: [(String, V); N]) -> Self {
        headers.into_iter().collect()
    }
}
