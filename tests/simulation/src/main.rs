//! `simulate`: runs seeds and says what was broken, how often each fault happened and each guard fired, and which never did.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::Parser;
use picofleet_simulation::{Guard, Report};

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
    /// With `--broken`: only this guard.
    #[arg(long)]
    guard: Option<String>,
    /// Say what each seed did.
    #[arg(long)]
    each: bool,
}

/// What several seeds came to.
#[derive(Default)]
struct Sum {
    commits: u64,
    broken: u64,
    counts: BTreeMap<&'static str, u64>,
    guards: BTreeMap<&'static str, u64>,
}

impl Sum {
    fn add(&mut self, report: &Report) {
        self.commits += report.commits;
        self.broken += u64::from(!report.violations.is_empty());
        for (what, count) in &report.counts {
            *self.counts.entry(what).or_default() += count;
        }
        for (guard, fired) in &report.guards {
            *self.guards.entry(guard).or_default() += fired;
        }
    }
}

fn main() -> std::io::Result<ExitCode> {
    let arguments = Arguments::parse();
    if arguments.broken {
        return missed(arguments.seeds, arguments.from, arguments.guard.as_deref());
    }
    let Arguments { seeds, from, each, .. } = arguments;
    let (next, sum) = (AtomicU64::new(from), Mutex::new(Sum::default()));
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        let work = || -> std::io::Result<()> {
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= from + seeds {
                    return Ok(());
                }
                let report = picofleet_simulation::run(seed, None)?;
                tell(&report, each)?;
                sum.lock().unwrap_or_else(std::sync::PoisonError::into_inner).add(&report);
            }
        };
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let stopped = |_| Err(std::io::Error::other("a simulation panicked"));
        running.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(stopped))
    })?;
    let sum = sum.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    summarize(seeds, from, &sum)
}

fn tell(report: &Report, each: bool) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    if each {
        writeln!(out, "seed {}: {} commits, {:?}, guards {:?}", report.seed, report.commits, report.counts, report.guards)?;
    }
    if !report.violations.is_empty() {
        writeln!(out, "seed {} is broken:", report.seed)?;
        for violation in &report.violations {
            writeln!(out, "  {violation}")?;
        }
    }
    Ok(())
}

/// The sums, and whether all is well: nothing broken, and over many seeds everything has happened and every guard has fired.
fn summarize(seeds: u64, from: u64, sum: &Sum) -> std::io::Result<ExitCode> {
    /// From so many seeds on each guard is needed at least once, and everything that may happen happens.
    const MANY: u64 = 500;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{seeds} seeds from {from}, {} commits", sum.commits)?;
    for (what, count) in &sum.counts {
        writeln!(out, "{count:>10}  {what}")?;
    }
    for (guard, fired) in &sum.guards {
        writeln!(out, "{fired:>10}  guard {guard}")?;
    }
    let never = |counted: &BTreeMap<&'static str, u64>| {
        let zero = counted.iter().filter(|(_, count)| **count == 0);
        zero.map(|(what, _)| *what).collect::<Vec<_>>().join(", ")
    };
    let (idle, absent) = (never(&sum.guards), never(&sum.counts));
    if seeds >= MANY && !(idle.is_empty() && absent.is_empty()) {
        writeln!(out, "guards that were never needed: {idle}; what never happened: {absent}")?;
        return Ok(ExitCode::FAILURE);
    }
    if sum.broken > 0 {
        writeln!(out, "{} of {seeds} seeds are broken; run one again with --from SEED --seeds 1 --each", sum.broken)?;
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs seeds without each guard until something is broken; a guard that nobody misses is an error.
fn missed(seeds: u64, from: u64, only: Option<&str>) -> std::io::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    let mut unmissed = 0;
    for guard in Guard::ALL.into_iter().filter(|guard| only.is_none_or(|only| only == guard.name())) {
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
                let short: String = violation.chars().take(160).collect();
                writeln!(out, "without {}: seed {seed}: {short}", guard.name())?;
            }
            None => {
                unmissed += 1;
                writeln!(out, "without {}: nothing was broken in {seeds} seeds", guard.name())?;
            }
        }
    }
    Ok(if unmissed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
