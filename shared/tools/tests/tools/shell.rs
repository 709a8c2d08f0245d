//! Commands: output, environment, limits.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use picofleet_harness::tools::{EnvError, FileSystem as _, ShellExit};
use tokio_util::sync::CancellationToken;

use crate::support::{Place, root};

fn exit(code: i32) -> ShellExit {
    ShellExit { code: Some(code), signal: None, timed_out: false, left: 0, spill: None }
}

#[tokio::test]
async fn both_streams_come_in_order_with_the_code() {
    let place = Place::new();
    let (output, ended) = place.run("for i in 1 2 3; do echo out$i; echo err$i >&2; done; pwd; exit 3").await;
    let workspace = place.env.workspace().display();
    assert_eq!(output, format!("out1\nerr1\nout2\nerr2\nout3\nerr3\n{workspace}\n"));
    assert_eq!(ended, exit(3));
    assert_eq!(place.run("true").await, (String::new(), exit(0)));
    assert_eq!(place.run("no-such-command-here 2>/dev/null").await.1, exit(127));
}

/// Many at once: a shell often ends before the runtime has heard of its output.
#[tokio::test]
async fn nothing_of_the_end_is_lost() {
    let place = Place::new();
    for _ in 0..15 {
        let commands = (0..24).map(|number| {
            let place = &place;
            async move { assert_eq!(place.run(&format!("echo {number}")).await, (format!("{number}\n"), exit(0))) }
        });
        futures::future::join_all(commands).await;
    }
}

#[tokio::test]
async fn a_signal_is_told() {
    let place = Place::new();
    let (_, ended) = place.run("kill -9 $$").await;
    assert_eq!((ended.code, ended.signal), (None, Some(9)));
}

#[tokio::test]
async fn output_comes_while_the_command_runs() {
    let place = Place::new();
    let at = place.at("seen");
    let mut output = Vec::new();
    let mut take = |chunk: &[u8]| {
        output.extend_from_slice(chunk);
        if output == b"first\n" {
            std::fs::write(&at, "").unwrap();
        }
    };
    let command = "echo first; until [ -e seen ]; do sleep 0.01; done; echo second".to_owned();
    let request = picofleet_harness::tools::ShellRequest { command, timeout: Some(Duration::from_secs(50)) };
    let run = picofleet_harness::tools::Shell::run(&place.env, request, &mut take, CancellationToken::new());
    assert_eq!(run.await, Ok(exit(0)));
    assert_eq!(output, b"first\nsecond\n");
}

/// The test's own environment has names that are not allowed: the ones that cargo sets.
#[tokio::test]
async fn the_environment_is_scrubbed() {
    assert!(std::env::var_os("CARGO_PKG_NAME").is_some());
    let place = Place::new();
    let (output, _) = place.run("env -0 | tr '\\0\\n' '\\n '").await;
    for variable in output.lines() {
        let name = variable.split('=').next().unwrap();
        let by_the_shell = ["PWD", "SHLVL", "_", "OLDPWD", "PICOFLEET_COMMAND"];
        let allowed = picofleet_tools::local::VARIABLES.contains(&name) || name.starts_with("LC_");
        assert!(allowed || by_the_shell.contains(&name), "{variable}");
    }
    assert!(output.contains("PATH="), "{output}");
    let chosen = Place::with(|options| {
        options.variables.insert("CHOSEN".into(), "yes".into());
    });
    assert_eq!(chosen.run("echo $CHOSEN").await.0, "yes\n");
}

#[tokio::test]
async fn there_is_no_input_and_no_terminal_and_a_session_of_its_own() {
    let place = Place::new();
    let (output, ended) = place.run("cat; { : < /dev/tty; } 2> /dev/null && echo terminal; cut -d' ' -f5,6 /proc/$$/stat; echo $$").await;
    assert_eq!(ended, exit(0));
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines[0], format!("{} {}", lines[1], lines[1]), "{output}");
}

#[tokio::test]
async fn the_chosen_user_runs_it() {
    if !root() {
        return;
    }
    let place = Place::with(|options| options.user = Some((65_534, 65_533)));
    std::fs::set_permissions(place.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(place.run("id -u; id -g; id -G").await.0, "65534\n65533\n65533\n");
    let (_, ended) = place.run("head -c 100000 /dev/zero").await;
    let spill = ended.spill.unwrap();
    assert_eq!(place.run(&format!("wc -c < {}", spill.path)).await.0, "100000\n");
}

#[tokio::test]
async fn complete_output_is_kept_beyond_either_threshold() {
    let place = Place::new();
    assert_eq!(place.run("head -c 51200 /dev/zero").await.1.spill, None);
    assert_eq!(place.run("seq 2000").await.1.spill, None);
    for command in ["head -c 51201 /dev/zero", "yes | head -n 2001", "seq 100000"] {
        let (output, ended) = place.run(command).await;
        let spill = ended.spill.unwrap();
        assert!(spill.complete);
        assert_eq!(spill.bytes, output.len() as u64, "{command}");
        assert_eq!(std::fs::read(&spill.path).unwrap(), output.as_bytes(), "{command}");
        assert_eq!(std::fs::metadata(&spill.path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(place.env.read(&spill.path, 1 << 20).await.unwrap(), output.as_bytes(), "the tool read reaches it");
        assert!(matches!(place.env.write(&spill.path, b"").await, Err(EnvError::Outside { .. })));
    }
    for _ in 0..40 {
        place.run("yes | head -n 2001").await;
    }
    assert_eq!(std::fs::read_dir(place.outside("spill")).unwrap().count(), 32, "the oldest go");
}

#[tokio::test]
async fn a_place_for_output_that_can_not_be_used_does_not_stop_the_command() {
    let place = Place::new();
    std::fs::remove_dir_all(place.outside("spill")).unwrap();
    let (output, ended) = place.run("seq 100000").await;
    assert!(output.ends_with("100000\n"));
    assert_eq!(ended, exit(0));
}

#[tokio::test]
async fn a_call_that_is_cancelled_before_it_starts_starts_nothing() {
    let place = Place::new();
    let cancel = CancellationToken::new();
    cancel.cancel();
    assert_eq!(place.run_with("touch made", None, cancel).await.1, Err(EnvError::Cancelled));
    assert!(!place.at("made").exists());
}

#[tokio::test]
async fn a_workspace_that_is_gone_is_an_error() {
    let place = Place::new();
    std::fs::remove_dir_all(place.env.workspace()).unwrap();
    let ended = place.run_with("true", None, CancellationToken::new()).await.1;
    assert!(matches!(ended, Err(EnvError::Failed { .. })), "{ended:?}");
}

/// The environment of the process that starts commands, where the keys are.
#[tokio::test]
async fn a_command_can_not_read_its_host() {
    if root() {
        // Root reads everything, so this test runs itself again as another user.
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "shell::a_command_can_not_read_its_host"]).env("TMPDIR", "/tmp");
        let output = std::os::unix::process::CommandExt::uid(&mut again, 65_534).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let place = Place::new();
    assert!(place.run("cat /proc/$PPID/environ").await.0.contains("CARGO_PKG_NAME"), "that is why");
    picofleet_tools::LocalEnv::hide_host().unwrap();
    let (output, ended) = place.run("cat /proc/$PPID/environ").await;
    assert!(output.contains("Permission denied") && ended.code == Some(1), "{output}");
}
