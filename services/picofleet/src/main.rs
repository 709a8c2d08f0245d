//! The `picofleet` binary: it only wires.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    picofleet::main(picofleet::standard)
}
