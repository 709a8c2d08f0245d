//! Commands: what they start is gone when they are over.

use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::time::Duration;

use picofleet_harness::tools::{EnvError, Shell as _, ShellRequest};
use picofleet_tools::{Bash, LocalEnv};
use tokio_util::sync::CancellationToken;

use crate::support::{Place, runs, wait_for};

/// Long enough for a busy machine to start what is to be ended.
const SOON: Option<Duration> = Some(Duration::from_secs(2));

/// A grandchild that ignores SIGTERM, and its loop.
const STUBBORN: &str = "(trap '' TERM; echo $BASHPID > pid.tmp; mv pid.tmp pid; while :; do sleep 0.05; done) & wait";

#[tokio::test]
async fn the_time_is_over_for_the_whole_tree() {
    let place = Place::new();
    let (_, ended) = place.run_with(STUBBORN, SOON, CancellationToken::new()).await;
    let ended = ended.unwrap();
    assert!(ended.timed_out);
    assert_eq!((ended.code, ended.signal), (None, Some(15)), "the shell takes the first signal");
    assert!(!runs(place.pid("pid").await));
}

#[tokio::test]
async fn the_first_signal_can_be_answered() {
    let place = Place::with(|_| {});
    let command = "trap 'echo bye; exit 4' TERM; while :; do sleep 0.02; done";
    let (output, ended) = place.run_with(command, SOON, CancellationToken::new()).await;
    assert!(output.ends_with("bye\n"), "what it prints then is kept: {output}");
    assert_eq!(ended.unwrap().code, Some(4));
}

#[tokio::test]
async fn cancellation_ends_the_whole_tree() {
    let place = Place::new();
    let cancel = CancellationToken::new();
    let (ended, pid) = tokio::join!(place.run_with(STUBBORN, None, cancel.clone()), async {
        let pid = place.pid("pid").await;
        cancel.cancel();
        pid
    });
    assert_eq!(ended.1, Err(EnvError::Cancelled));
    assert!(!runs(pid));
}

#[tokio::test]
async fn a_dropped_call_leaves_nothing() {
    let place = Place::new();
    let env = place.env.clone();
    let command = format!("setsid bash -c 'echo $$ > far.tmp; mv far.tmp far; sleep 1000' & {STUBBORN}");
    let call = tokio::spawn(async move {
        let request = ShellRequest { command, timeout: None };
        env.run(request, &mut |_: &[u8]| {}, CancellationToken::new()).await
    });
    let (near, far) = (place.pid("pid").await, place.pid("far").await);
    assert!(runs(near) && runs(far));
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    wait_for("both are gone", || (!runs(near) && !runs(far)).then_some(())).await;
}

/// Its runtime goes, too.
#[test]
fn a_runtime_that_ends_leaves_nothing() {
    let place = Place::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let env = place.env.clone();
    let pid = runtime.block_on(async {
        tokio::spawn(async move {
            let request = ShellRequest { command: STUBBORN.to_owned(), timeout: None };
            env.run(request, &mut |_: &[u8]| {}, CancellationToken::new()).await
        });
        place.pid("pid").await
    });
    drop(runtime);
    let look = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    look.block_on(wait_for("it is gone", || (!runs(pid)).then_some(())));
}

#[tokio::test]
async fn a_background_process_that_keeps_the_output_open_ends_with_the_command() {
    let place = Place::new();
    let (output, ended) = place.run("sleep 1000 & echo $! > pid; echo done").await;
    assert_eq!(output, "done\n");
    assert_eq!((ended.code, ended.left), (Some(0), 1));
    assert!(!runs(place.pid("pid").await));
}

#[tokio::test]
async fn what_ends_soon_after_the_shell_is_not_cut_off() {
    let place = Place::new();
    let (output, ended) = place.run("echo late > >(sleep 0.05; cat)").await;
    assert_eq!((output.as_str(), ended.left), ("late\n", 0));
}

/// Each leaves the shell in another way.
#[tokio::test]
async fn who_leaves_the_group_or_the_session_ends_too() {
    let place = Place::new();
    let body = "echo $$ > pid.tmp; mv pid.tmp pid; exec sleep 1000";
    let wait = "until [ -e pid ]; do sleep 0.01; done";
    let group = format!("set -m; bash -c '{body}' > /dev/null 2>&1 & {wait}");
    let session = format!("setsid bash -c '{body}' & {wait}");
    let orphan = format!("(setsid bash -c '({body}) & exit' > /dev/null 2>&1 &) ; {wait}").replace("echo $$", "echo $BASHPID");
    for command in [group, session, orphan] {
        let _ = std::fs::remove_file(place.at("pid"));
        let (_, ended) = place.run(&command).await;
        assert!(ended.left >= 1, "{command}");
        assert!(!runs(place.pid("pid").await), "{command}");
    }
}

/// Without the mark, in another session, but still a child of the shell when the time is over.
#[tokio::test]
async fn who_clears_its_environment_ends_with_its_parent() {
    let place = Place::new();
    let command = "env -i PATH=\"$PATH\" setsid bash -c 'echo $$ > pid.tmp; mv pid.tmp pid; exec sleep 1000' & wait";
    let (_, ended) = place.run_with(command, SOON, CancellationToken::new()).await;
    assert!(ended.unwrap().timed_out);
    assert!(!runs(place.pid("pid").await));
}

#[tokio::test]
async fn a_stopped_process_ends() {
    let place = Place::with(|_| {});
    let command = "trap 'echo bye; exit 4' TERM; sleep 1000 & kill -STOP $!; echo $! > pid; kill -STOP $$";
    let (output, ended) = place.run_with(command, SOON, CancellationToken::new()).await;
    let ended = ended.unwrap();
    assert!(ended.timed_out);
    assert!(output.ends_with("bye\n") && ended.code == Some(4), "it goes on to answer the signal: {output}");
    assert!(!runs(place.pid("pid").await));
}

#[tokio::test]
async fn closed_output_is_not_the_end() {
    let place = Place::new();
    let (output, ended) = place.run("echo a; exec > /dev/null 2>&1; sleep 0.2; touch made; exit 5").await;
    assert_eq!((output.as_str(), ended.code), ("a\n", Some(5)));
    assert!(place.at("made").exists());
}

#[tokio::test]
async fn commands_side_by_side_do_not_end_each_other() {
    let place = Place::new();
    let long = place.run("until [ -e go ]; do sleep 0.01; done; echo long");
    let short = async {
        for _ in 0..5 {
            assert_eq!(place.run("sleep 1000 & echo short").await.0, "short\n");
        }
        place.put("go", "");
    };
    let (long, ()) = tokio::join!(long, short);
    assert_eq!(long.0, "long\n");
    assert_eq!(long.1.code, Some(0));
}

/// A gigabyte goes through and stays nowhere.
#[tokio::test]
async fn much_output_needs_little_memory() {
    let place = Place::new();
    let command = r#"{"command": "yes \"$(head -c 199 /dev/zero | tr '\\0' x)\" | head -c 1073741824", "timeout": 600}"#;
    let called = place.call(&Bash::new(), command).await;
    assert!(called.result.is_ok(), "{:?}", called.result);
    assert_eq!(called.output.len() as u64 + called.dropped.0, 1 << 30);
    assert!(called.output.len() <= 50 * 1024);
    let [remark] = &called.remarks[..] else { panic!("{:?}", called.remarks) };
    let path = remark.strip_prefix("first part of the output, 67,108,864 bytes, is in ").unwrap();
    assert_eq!(std::fs::metadata(path).unwrap().len(), 64 << 20);
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak_kib: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak_kib < 200 * 1024, "{peak_kib} KiB at the most");
}

/// A command whose host was killed: its mark names a process that is gone.
#[tokio::test]
async fn orphans_of_a_killed_host_are_ended() {
    let mut gone = Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap();
    let namespace: String = namespace.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
    let mark = format!("{namespace}.{}.1.mark", gone.id());
    let mut orphan = Command::new("sleep").arg("1000").env("PICOFLEET_COMMAND", mark).spawn().unwrap();
    let ended = tokio::task::spawn_blocking(LocalEnv::end_orphans).await.unwrap();
    assert!(ended >= 1, "also those that an earlier run of the tests left");
    assert_eq!(orphan.wait().unwrap().signal(), Some(9));
}
