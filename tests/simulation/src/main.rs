//! `simulate`: runs seeds and says what was broken, how often each fault happened, and which never did.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser;

/// Runs seeded simulations of the fleet and checks its invariants after every commit.
#[derive(Parser)]
struct Arguments {
    /// How many seeds.
    #[arg(long, default_value_t = 500)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Say what each seed did.
    #[arg(long)]
    each: bool,
}

fn main() -> std::io::Result<ExitCode> {
    let Arguments { seeds, from, each } = Arguments::parse();
    let mut out = std::io::stdout().lock();
    let mut counts: BTreeMap<&'static str, u64> = BTreeMap::new();
    let (mut commits, mut broken) = (0, 0);
    for seed in from..from + seeds {
        let report = picofleet_simulation::run(seed)?;
        commits += report.commits;
        if each {
            writeln!(out, "seed {seed}: {} commits, {:?}", report.commits, report.counts)?;
        }
        for (what, count) in report.counts {
            *counts.entry(what).or_default() += count;
        }
        if !report.violations.is_empty() {
            broken += 1;
            writeln!(out, "seed {seed} is broken:")?;
            for violation in report.violations {
                writeln!(out, "  {violation}")?;
            }
        }
    }
    writeln!(out, "{seeds} seeds from {from}, {commits} commits")?;
    for (what, count) in counts {
        writeln!(out, "{count:>10}  {what}")?;
    }
    if broken > 0 {
        writeln!(out, "{broken} of {seeds} seeds are broken")?;
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}
