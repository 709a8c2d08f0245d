//! Paths and files.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::os::unix::net::UnixListener;

use picofleet_harness::tools::{EnvError, FileKind, FileSystem as _};

use crate::support::{LONG, Place, link, root};

async fn reads(place: &Place, path: &str) -> Result<String, EnvError> {
    let read = tokio::time::timeout(LONG, place.env.read(path, 1 << 20)).await.expect("reading does not block");
    read.map(|bytes| String::from_utf8(bytes).unwrap())
}

async fn writes(place: &Place, path: &str) -> Result<(), EnvError> {
    tokio::time::timeout(LONG, place.env.write(path, b"new")).await.expect("writing does not block")
}

fn outside(path: &str) -> EnvError {
    EnvError::Outside { path: path.to_owned() }
}

#[tokio::test]
async fn every_name_of_a_file_inside() {
    let place = Place::new();
    place.put("a/b.txt", "text");
    link(place.env.workspace(), place.outside("other-name"));
    let absolute = place.at("a/b.txt").to_string_lossy().into_owned();
    let linked = place.outside("other-name/a/b.txt").to_string_lossy().into_owned();
    for path in ["a/b.txt", "./a//b.txt", "a/../a/b.txt", &absolute, &linked] {
        assert_eq!(reads(&place, path).await.as_deref(), Ok("text"), "{path}");
    }
    let stat = place.env.stat("a/b.txt").await.unwrap();
    assert_eq!((stat.kind, stat.size), (FileKind::File, 4));
    assert_eq!(place.env.stat("a").await.unwrap().kind, FileKind::Directory);
    assert_eq!(place.env.stat(&place.env.workspace().to_string_lossy()).await.unwrap().kind, FileKind::Directory);
    assert_eq!(reads(&place, "none").await, Err(EnvError::NotFound { path: "none".to_owned() }));
}

#[tokio::test]
async fn what_leaves_the_workspace_is_refused() {
    let place = Place::new();
    place.put("a/b.txt", "text");
    std::fs::create_dir(place.outside("secret")).unwrap();
    std::fs::write(place.outside("secret/key"), "key").unwrap();
    link(place.outside("secret/key"), place.at("absolute"));
    link("../secret/key", place.at("relative"));
    link(place.outside("secret"), place.at("dir"));
    link("/", place.at("a/root"));
    link("/proc/self/root", place.at("magic"));
    let direct = place.outside("secret/key").to_string_lossy().into_owned();
    let up = place.at("../secret/key").to_string_lossy().into_owned();
    let below_root = format!("a/root{direct}");
    let below_magic = format!("magic{direct}");
    let all = ["../secret/key", "a/../../secret/key", "absolute", "relative", "dir/key", &direct, &up, &below_root, &below_magic];
    for path in all {
        assert_eq!(reads(&place, path).await, Err(outside(path)), "{path}");
        assert_eq!(writes(&place, path).await, Err(outside(path)), "{path}");
        assert_eq!(place.env.stat(path).await, Err(outside(path)), "{path}");
    }
    for path in ["dir/new", "dir/made/new", "../new", "a/root/tmp/picofleet-escape"] {
        assert_eq!(writes(&place, path).await, Err(outside(path)), "{path}");
    }
    assert_eq!(std::fs::read_to_string(place.outside("secret/key")).unwrap(), "key");
    assert_eq!(std::fs::read_dir(place.outside("secret")).unwrap().count(), 1);
    assert!(!std::path::Path::new("/tmp/picofleet-escape").exists());
}

#[tokio::test]
async fn links_that_stay_inside_are_followed_and_stay() {
    let place = Place::new();
    place.put("a/b.txt", "text");
    link(place.at("a/b.txt"), place.at("absolute"));
    link("a/b.txt", place.at("relative"));
    link(place.at("a"), place.at("dir"));
    link("nothing", place.at("dangling"));
    for path in ["absolute", "relative", "dir/b.txt"] {
        place.put("a/b.txt", "text");
        assert_eq!(reads(&place, path).await.as_deref(), Ok("text"), "{path}");
        writes(&place, path).await.unwrap();
        assert_eq!(place.get("a/b.txt"), "new", "{path}");
    }
    assert!(place.at("absolute").is_symlink() && place.at("relative").is_symlink());
    writes(&place, "dir/c/d.txt").await.unwrap();
    assert_eq!(place.get("a/c/d.txt"), "new");
    assert!(matches!(writes(&place, "dangling").await, Err(EnvError::Unsuitable { .. })));
    assert!(!place.at("nothing").exists());
}

#[tokio::test]
async fn no_regular_file_is_refused_without_waiting() {
    let place = Place::new();
    rustix::fs::mknodat(rustix::fs::CWD, place.at("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let _socket = UnixListener::bind(place.at("socket")).unwrap();
    std::fs::create_dir(place.at("dir")).unwrap();
    if root() {
        let zero = rustix::fs::makedev(1, 5);
        rustix::fs::mknodat(rustix::fs::CWD, place.at("device"), rustix::fs::FileType::CharacterDevice, 0o600.into(), zero).unwrap();
    } else {
        std::fs::create_dir(place.at("device")).unwrap();
    }
    for path in ["pipe", "socket", "dir", "device"] {
        assert!(matches!(reads(&place, path).await, Err(EnvError::Unsuitable { .. })), "{path}");
        assert!(matches!(writes(&place, path).await, Err(EnvError::Unsuitable { .. })), "{path}");
    }
    assert_eq!(place.env.stat("pipe").await.unwrap().kind, FileKind::Other);
    for path in ["", "a\0b"] {
        assert!(matches!(reads(&place, path).await, Err(EnvError::Unsuitable { .. })), "{path:?}");
    }
    for path in [".", "dir/", "dir/..", "new/"] {
        assert!(matches!(writes(&place, path).await, Err(EnvError::Unsuitable { .. })), "{path}");
    }
    place.put("file", "");
    assert!(matches!(writes(&place, "file/below").await, Err(EnvError::Unsuitable { .. } | EnvError::Failed { .. })));
}

#[tokio::test]
async fn a_huge_file_is_refused_at_once() {
    let place = Place::new();
    std::fs::File::create(place.at("huge")).unwrap().set_len(1 << 40).unwrap();
    let error = reads(&place, "huge").await.unwrap_err();
    assert_eq!(error.to_string(), "huge has 1099511627776 bytes, more than 1048576");
    place.put("fits", "12345");
    assert_eq!(place.env.read("fits", 5).await.unwrap(), b"12345");
    assert!(matches!(place.env.read("fits", 4).await, Err(EnvError::Unsuitable { .. })));
}

#[tokio::test]
async fn writing_makes_directories_and_keeps_rights_and_owner() {
    let place = Place::new();
    writes(&place, "deep/er/new.txt").await.unwrap();
    assert_eq!(place.get("deep/er/new.txt"), "new");
    place.put("tool.sh", "old");
    std::fs::set_permissions(place.at("tool.sh"), PermissionsExt::from_mode(0o751)).unwrap();
    if root() {
        std::os::unix::fs::chown(place.at("tool.sh"), Some(1_234), Some(1_235)).unwrap();
    }
    std::fs::hard_link(place.at("tool.sh"), place.outside("same")).unwrap();
    let before = std::fs::metadata(place.at("tool.sh")).unwrap();
    writes(&place, "tool.sh").await.unwrap();
    let after = std::fs::metadata(place.at("tool.sh")).unwrap();
    assert_eq!((after.mode(), after.uid(), after.gid()), (before.mode(), before.uid(), before.gid()));
    assert_ne!(after.ino(), before.ino(), "a new file took its place");
    assert_eq!(std::fs::read_to_string(place.outside("same")).unwrap(), "old", "the file outside keeps its content");
    let names: Vec<_> = std::fs::read_dir(place.env.workspace()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "nothing temporary stays: {names:?}");
}

#[tokio::test]
async fn a_write_protected_file_stays() {
    let place = Place::new();
    if root() {
        return;
    }
    place.put("fixed", "old");
    std::fs::set_permissions(place.at("fixed"), PermissionsExt::from_mode(0o444)).unwrap();
    assert!(matches!(writes(&place, "fixed").await, Err(EnvError::Failed { .. })));
    assert_eq!(place.get("fixed"), "old");
}

#[tokio::test]
async fn a_new_file_belongs_to_the_chosen_user() {
    if !root() {
        return;
    }
    let place = Place::with(|options| options.user = Some((65_534, 65_534)));
    writes(&place, "new").await.unwrap();
    let metadata = std::fs::metadata(place.at("new")).unwrap();
    assert_eq!((metadata.uid(), metadata.gid()), (65_534, 65_534));
}

#[tokio::test]
async fn replacing_needs_the_expected_content() {
    let place = Place::new();
    place.put("f", "one");
    assert_eq!(place.env.replace("f", b"one", b"two").await, Ok(true));
    for other in ["one", "tw", "twoo", ""] {
        assert_eq!(place.env.replace("f", other.as_bytes(), b"three").await, Ok(false), "{other}");
    }
    assert_eq!(place.get("f"), "two");
    assert_eq!(place.env.replace("none", b"", b"x").await, Ok(false));
    assert_eq!(place.env.replace("../f", b"", b"x").await, Err(outside("../f")));
}
