//! A command and everything that it started.

use std::collections::{HashMap, HashSet};
use std::io::{self, PipeReader};
use std::os::unix::process::{CommandExt as _, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use uuid::Uuid;

use super::LocalOptions;

/// The variable that marks the processes of a command: its host, as [`HOST`] names it, and a number of the command.
const MARK: &str = "PICOFLEET_COMMAND";

/// Between two looks at processes that were told to end.
const LOOK: Duration = Duration::from_millis(10);
/// How long the processes of a command may take to end when the shell has ended by itself, before they count as left: those that the
/// shell does not wait for, such as the end of `> >(tee log)`.
const SETTLE: Duration = Duration::from_millis(500);
/// How often killed processes are looked for. Some seconds: one that hangs in the kernel can't be ended by anybody.
const KILL_LOOKS: u32 = 300;

/// A running command. It is ended when this is dropped.
pub(super) struct Tree {
    /// The shell. It is not waited for before the tree is gone, so that its number names this session and group and no others.
    child: Option<Child>,
    mark: String,
    /// When the shell started; nothing older belongs to the tree.
    since: u64,
    /// Processes that were seen in the tree, with their start, by which a number that is used again is told apart.
    seen: HashMap<i32, u64>,
}

/// How it ended.
pub(super) struct Ended {
    pub(super) status: io::Result<ExitStatus>,
    /// How many processes besides the shell were still there.
    pub(super) left: usize,
}

impl Ended {
    pub(super) fn code(&self) -> Option<i32> {
        self.status.as_ref().ok().and_then(ExitStatus::code)
    }

    pub(super) fn signal(&self) -> Option<i32> {
        self.status.as_ref().ok().and_then(ExitStatusExt::signal)
    }
}

impl Tree {
    /// Starts `bash -c` in the workspace; gives what it and its children print. It blocks until the shell runs.
    pub(super) fn start(command: &str, options: &LocalOptions) -> io::Result<(Self, PipeReader)> {
        let (reader, writer) = io::pipe()?;
        let mark = format!("{}.{}", *HOST, Uuid::new_v4().simple());
        let mut shell = Command::new("bash");
        shell.arg("-c").arg(command).current_dir(&options.workspace);
        shell.env_clear().envs(&options.variables).env(MARK, &mark);
        shell.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
        if let Some((user, group)) = options.user {
            shell.gid(group).uid(user);
        }
        own_session(&mut shell);
        let child = shell.spawn()?;
        let since = Process::read(child.id().cast_signed()).map_or(0, |process| process.start);
        Ok((Self { child: Some(child), mark, since, seen: HashMap::new() }, reader))
    }

    /// The shell.
    pub(super) fn leader(&self) -> Option<Pid> {
        self.child.as_ref().and_then(|child| Pid::from_raw(child.id().cast_signed()))
    }

    /// Ends what is left: asks first where there is a grace, then kills. It blocks until that is done. With `settle` what ends soon by
    /// itself may.
    pub(super) fn end(mut self, grace: Duration, settle: bool) -> Ended {
        let mut present = self.look();
        let looks = if settle { SETTLE.as_millis().div_ceil(LOOK.as_millis()) } else { 0 };
        for _ in 0..looks {
            if present.is_empty() {
                break;
            }
            present = self.look_after_pause();
        }
        let left = present.iter().filter(|pid| Some(**pid) != self.leader()).count();
        Ended { status: self.finish(grace, present), left }
    }

    fn finish(&mut self, grace: Duration, mut present: Vec<Pid>) -> io::Result<ExitStatus> {
        let asks = grace.as_millis().div_ceil(LOOK.as_millis());
        if asks > 0 && !present.is_empty() {
            self.signal(Signal::TERM, &present);
            // A stopped process takes no notice before it goes on.
            self.signal(Signal::CONT, &present);
            for _ in 0..asks {
                present = self.look_after_pause();
                if present.is_empty() {
                    break;
                }
            }
        }
        self.signal(Signal::KILL, &present);
        for _ in 0..KILL_LOOKS {
            if present.is_empty() {
                break;
            }
            present = self.look_after_pause();
            self.signal(Signal::KILL, &present);
        }
        if !present.is_empty() {
            tracing::warn!(?present, "processes of a command can't be ended");
        }
        match self.child.take() {
            Some(mut child) if present.iter().all(|pid| pid.as_raw_pid() != child.id().cast_signed()) => child.wait(),
            _ => Err(io::Error::other("the shell can't be ended")),
        }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "processes that are nobody's children can only be looked at again, a bounded number of times"
    )]
    fn look_after_pause(&mut self) -> Vec<Pid> {
        std::thread::sleep(LOOK);
        self.look()
    }

    /// The group in one call, so that it can't outrun this, and what left it one by one. Processes that are gone are no error.
    fn signal(&self, signal: Signal, present: &[Pid]) {
        if let Some(leader) = self.leader() {
            let _ = rustix::process::kill_process_group(leader, signal);
        }
        for pid in present {
            let _ = rustix::process::kill_process(*pid, signal);
        }
    }

    /// The processes of the tree that run.
    fn look(&mut self) -> Vec<Pid> {
        let Some(leader) = self.leader() else { return Vec::new() };
        let all: Vec<Process> = processes().into_iter().filter(|process| process.start >= self.since).collect();
        let leader = leader.as_raw_pid();
        let mut members: HashSet<i32> = HashSet::new();
        for process in &all {
            let known = self.seen.get(&process.pid) == Some(&process.start);
            if known || process.session == leader || process.group == leader || process.mark().as_deref() == Some(&self.mark) {
                members.insert(process.pid);
            }
        }
        loop {
            let before = members.len();
            members.extend(all.iter().filter(|process| members.contains(&process.parent)).map(|process| process.pid).collect::<Vec<_>>());
            if members.len() == before {
                break;
            }
        }
        let members: Vec<&Process> = all.iter().filter(|process| members.contains(&process.pid)).collect();
        self.seen.extend(members.iter().map(|process| (process.pid, process.start)));
        members.iter().filter(|process| !process.dead).filter_map(|process| Pid::from_raw(process.pid)).collect()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let Some(child) = self.child.take() else { return };
        let (mark, seen) = (std::mem::take(&mut self.mark), std::mem::take(&mut self.seen));
        let mut tree = Self { child: Some(child), mark, since: self.since, seen };
        // At once, and the rest where it may take time: this may be a thread of the asynchronous runtime.
        if let Some(leader) = tree.leader() {
            let _ = rustix::process::kill_process_group(leader, Signal::KILL);
        }
        let rest = move || {
            let present = tree.look();
            // How it ended is of interest to nobody any more.
            let _ = tree.finish(Duration::ZERO, present);
        };
        if let Err(error) = std::thread::Builder::new().name("end-command".to_owned()).spawn(rest) {
            tracing::warn!(%error, "no thread to end a command's processes: only its group was killed");
        }
    }
}

/// Blocks until the shell has ended; leaves it to be waited for.
pub(super) fn wait_ended(leader: Pid) {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while matches!(rustix::process::waitid(WaitId::Pid(leader), options), Err(rustix::io::Errno::INTR)) {}
}

/// A session of its own: no terminal to ask at, and a number that names all that stay in it.
#[expect(unsafe_code, reason = "the standard library can make a process group in the child, but no session")]
fn own_session(command: &mut Command) {
    let setsid = || rustix::process::setsid().map(drop).map_err(io::Error::from);
    // SAFETY: between fork and exec only calls that are safe in a signal handler are allowed. setsid(2) is one; the closure makes no
    // other call, allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(setsid);
    }
}

/// Ends the processes of commands whose host is gone.
pub(super) fn end_orphans() -> usize {
    let mut found = HashSet::new();
    for _ in 0..KILL_LOOKS {
        let orphan = |process: &Process| {
            let mark = process.mark().filter(|_| !process.dead)?;
            host_gone(&mark).then(|| Pid::from_raw(process.pid)).flatten()
        };
        let orphans: Vec<Pid> = processes().iter().filter_map(orphan).collect();
        if orphans.is_empty() {
            break;
        }
        for pid in orphans {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
            found.insert(pid);
        }
    }
    found.len()
}

/// Whether the process that a mark names is gone for certain. Numbers of another namespace say nothing here.
fn host_gone(mark: &str) -> bool {
    let mut parts = mark.split('.');
    let (Some(namespace), Some(Ok(pid)), Some(Ok(start))) =
        (parts.next(), parts.next().map(str::parse), parts.next().map(str::parse::<u64>))
    else {
        return false;
    };
    if namespace != HOST.split('.').next().unwrap_or_default() {
        return false;
    }
    match (Process::read(pid), Pid::from_raw(pid)) {
        (Some(process), _) => process.start != start || process.dead,
        // It may be hidden from this user.
        (None, Some(pid)) => rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH),
        (None, None) => false,
    }
}

/// This process, as marks name it: the namespace of process ids, the id, the start.
static HOST: LazyLock<String> = LazyLock::new(|| {
    let pid = rustix::process::getpid().as_raw_pid();
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let namespace: String = namespace.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
    let start = Process::read(pid).map_or(0, |process| process.start);
    format!("{namespace}.{pid}.{start}")
});

/// A process of the system.
struct Process {
    pid: i32,
    parent: i32,
    group: i32,
    session: i32,
    /// Ticks since the machine started.
    start: u64,
    /// It has ended and was not waited for.
    dead: bool,
}

impl Process {
    fn read(pid: i32) -> Option<Self> {
        Self::parse(pid, &std::fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// The line of `/proc/PID/stat`; the name, which may have any bytes, stands in brackets.
    fn parse(pid: i32, stat: &[u8]) -> Option<Self> {
        let behind = stat.iter().rposition(|byte| *byte == b')')? + 1;
        let fields: Vec<&str> = std::str::from_utf8(&stat[behind..]).ok()?.split_ascii_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<i32>().ok();
        let dead = matches!(*fields.first()?, "Z" | "X" | "x");
        Some(Self { pid, parent: number(1)?, group: number(2)?, session: number(3)?, start: fields.get(19)?.parse().ok()?, dead })
    }

    fn mark(&self) -> Option<String> {
        let environment = std::fs::read(format!("/proc/{}/environ", self.pid)).ok()?;
        let value = |variable: &[u8]| variable.strip_prefix(MARK.as_bytes())?.strip_prefix(b"=").map(<[u8]>::to_vec);
        let value = environment.split(|byte| *byte == 0).find_map(value)?;
        String::from_utf8(value).ok()
    }
}

/// Every process that can be seen; none where the system does not show them this way.
fn processes() -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let read = |entry: io::Result<std::fs::DirEntry>| Process::read(entry.ok()?.file_name().to_str()?.parse().ok()?);
    entries.filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_blanks_does_not_shift_the_fields() {
        let stat = b"42 (a) R 1 (b) S 7 8 9 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 12345 0 0";
        let process = Process::parse(42, stat).unwrap();
        assert_eq!((process.parent, process.group, process.session, process.start, process.dead), (7, 8, 9, 12_345, false));
        assert!(Process::parse(42, b"42 (x) Z 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 5").unwrap().dead);
        assert!(Process::parse(42, b"42 (x").is_none());
    }

    #[test]
    fn only_a_host_of_this_namespace_that_is_gone_is_gone() {
        let (namespace, rest) = HOST.split_once('.').unwrap();
        let (pid, start) = rest.split_once('.').unwrap();
        let later = start.parse::<u64>().unwrap() + 1;
        assert!(!host_gone(&format!("{namespace}.{pid}.{start}.mark")));
        assert!(host_gone(&format!("{namespace}.{pid}.{later}.mark")));
        assert!(!host_gone(&format!("{namespace}0.{pid}.{later}.mark")));
        assert!(!host_gone("what a program wrote there"));
    }
}
