//! `simulate`: runs seeds and says what was broken, how often each fault happened, and which never did.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser;
use picofleet_simulation::Guard;

/// Runs seeded simulations of the fleet and checks its invariants after every commit.
#[derive(Parser)]
struct Arguments {
    /// How many seeds.
    #[arg(long, default_value_t = 500)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Take each guard of the line away in turn; each must be missed within so many seeds.
    #[arg(long)]
    broken: bool,
    /// Say what each seed did.
    #[arg(long)]
    each: bool,
}

fn main() -> std::io::Result<ExitCode> {
    let Arguments { seeds, from, each, broken: breaks } = Arguments::parse();
    if breaks {
        return missed(seeds, from);
    }
    let mut out = std::io::stdout().lock();
    let mut counts: BTreeMap<&'static str, u64> = BTreeMap::new();
    let mut guards: BTreeMap<&'static str, u64> = BTreeMap::new();
    let (mut commits, mut broken) = (0, 0);
    for seed in from..from + seeds {
        let report = picofleet_simulation::run(seed, None)?;
        commits += report.commits;
        if each {
            writeln!(out, "seed {seed}: {} commits, {:?}", report.commits, report.counts)?;
        }
        for (guard, fired) in report.guards {
            *guards.entry(guard).or_default() += fired;
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
    for (guard, fired) in &guards {
        writeln!(out, "{fired:>10}  guard {guard}")?;
    }
    if broken > 0 {
        writeln!(out, "{broken} of {seeds} seeds are broken")?;
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// The guards that a simulation can take away: without the others there is nothing to go on with.
const BREAKABLE: [Guard; 7] =
    [Guard::Repeated, Guard::Gone, Guard::AbortGate, Guard::Held, Guard::OwnedWork, Guard::RestartLimit, Guard::Cascade];

/// Runs seeds without each guard until something is broken; a guard that nobody misses is an error.
fn missed(seeds: u64, from: u64) -> std::io::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    let mut unmissed = 0;
    for guard in BREAKABLE {
        let mut found = None;
        for seed in from..from + seeds {
            let report = picofleet_simulation::run(seed, Some(guard))?;
            if let Some(violation) = report.violations.into_iter().next() {
                found = Some((seed, violation));
                break;
            }
        }
        match found {
            Some((seed, violation)) => {
                writeln!(out, "without {}: seed {seed}: {}", guard.name(), violation.chars().take(160).collect::<String>())?
            }
            None => {
                unmissed += 1;
                writeln!(out, "without {}: nothing was broken in {seeds} seeds", guard.name())?;
            }
        }
    }
    Ok(if unmissed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
