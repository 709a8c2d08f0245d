//! The `picofleet` binary: it only wires.

use std::process::ExitCode;

fn main() -> ExitCode {
    picofleet::main(picofleet::standard)
}
