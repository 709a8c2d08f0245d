//! Benchmarks of sessions and storage; they live in `benches/`.
