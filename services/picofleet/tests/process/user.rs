//! `[tools] user`.

use std::os::unix::fs::MetadataExt as _;

use crate::place::{Place, RUNS};

const WRITES: &str = r#"
[[turns]]
[[turns.blocks]]
type = "toolCall"
name = "bash"
arguments = { command = "echo user:$(id -u):$(id -g):$(id -G):$USER:; echo home:$HOME:; echo x > made" }
[[turns]]
[[turns.blocks]]
type = "toolCall"
name = "write"
arguments = { path = "written", content = "x" }
[[turns]]
blocks = [{ type = "text", chunks = ["done"] }]
"#;

/// Any user that is not this one; it need not have a name.
const OTHER: (u32, u32) = (54_321, 54_322);

#[tokio::test]
async fn tools_work_as_the_configured_user() {
    let _runs = RUNS.read().await;
    let root = rustix::process::geteuid().is_root();
    let mut place = Place::scripted(WRITES);
    for (variable, value) in [("HOME", "/root"), ("USER", "root")] {
        place.set(variable, value);
    }
    place.set("PICOFLEET_TOOLS__USER", format!("{{ id = {}, group = {} }}", OTHER.0, OTHER.1));
    // The other user has to come to the workspace.
    std::fs::set_permissions(place.path("."), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let ended = place.run(&["run", "go"]).await;
    if !root {
        // Only root can choose; the error says so before anything runs.
        let text = ended.with(64);
        assert!(text.contains("[tools] user is") && text.contains("only root can choose"), "{text}");
        return;
    }
    let text = ended.with(0);
    // No group of root's is left, and no home of root's.
    assert!(text.contains(&format!("user:{}:{}:{}::", OTHER.0, OTHER.1, OTHER.1)), "{text}");
    let home = place.path("workspace").canonicalize().unwrap();
    assert!(text.contains(&format!("home:{}:", home.display())), "{text}");
    for name in ["workspace", "workspace/made", "workspace/written"] {
        let owner = std::fs::metadata(place.path(name)).unwrap();
        assert_eq!((owner.uid(), owner.gid()), OTHER, "{name}");
    }
}
