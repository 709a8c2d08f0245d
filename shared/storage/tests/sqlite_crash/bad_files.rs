//! Files that are no store.
