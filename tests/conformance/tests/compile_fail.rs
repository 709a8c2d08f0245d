//! Misuse that the types exclude does not compile: scenarios S032, S043 and X014, and what belongs to them.
//!
//! Each file of `compile_fail` is checked as a program of its own. What is compared is which errors the compiler has and how many, not
//! their wording, which changes with its version.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use picofleet_delta::Json;

/// The file, what is wrong in it, and how many times.
const CASES: [(&str, Mistake, usize); 11] = [
    ("s028_a_family_without_a_seed", Mistake::Type, 3),
    ("s030_a_snapshot_is_changed", Mistake::NoMethod, 1),
    ("s032_a_document_outlives_its_callback", Mistake::Escape, 1),
    ("s032_a_draft_outlives_its_callback", Mistake::Escape, 1),
    ("s032_a_transaction_moves_into_a_task", Mistake::Escape, 1),
    ("s032_a_transaction_outlives_its_callback", Mistake::Escape, 1),
    ("s035_an_address_of_another_scope", Mistake::Type, 4),
    ("s036_version_zero", Mistake::Constant, 1),
    ("s043_a_latest_document_as_of_a_fork", Mistake::NoPolicy, 2),
    ("s043_the_past_of_a_latest_document", Mistake::Type, 2),
    ("x014_an_acquisition_outlives_its_callback", Mistake::Escape, 1),
];

#[derive(Clone, Copy, Debug)]
enum Mistake {
    /// A value of another type.
    Type,
    /// There is no such method.
    NoMethod,
    /// The policy does not fit.
    NoPolicy,
    /// A constant that can't be.
    Constant,
    /// Something leaves the callback that it belongs to.
    Escape,
}

impl Mistake {
    /// Whether an error with this code and message is this mistake.
    fn is(self, code: Option<&str>, message: &str) -> bool {
        match self {
            Self::Type => code == Some("E0308"),
            Self::NoMethod => code == Some("E0599"),
            Self::NoPolicy => code == Some("E0277"),
            Self::Constant => code == Some("E0080"),
            // A lifetime that is too short has no code where the compiler finds it in a closure.
            Self::Escape => code == Some("E0521") || (code.is_none() && message.contains("lifetime")),
        }
    }
}

/// Makes a package with the cases, and one that has no mistake, as its programs.
fn package(folder: &Path, here: &Path) {
    fs::create_dir_all(folder).unwrap();
    let session = here.join("../../shared/session").canonicalize().unwrap();
    let mut manifest = "[workspace]\n\n[package]\nname = \"misuse\"\nedition = \"2024\"\n\n[dependencies]\n".to_owned();
    writeln!(manifest, "tokio = {{ version = \"1\", features = [\"rt\"] }}\npicofleet-session = {{ path = {:?} }}", session.display())
        .unwrap();
    fs::write(folder.join("right.rs"), "fn main() {\n    let _ = picofleet_session::ROOT_CONVERSATION_ID;\n}\n").unwrap();
    let files = CASES.map(|(case, ..)| (case, here.join("tests/compile_fail").join(format!("{case}.rs"))));
    for (name, path) in files.into_iter().chain([("right", folder.join("right.rs"))]) {
        write!(manifest, "\n[[bin]]\nname = {name:?}\npath = {:?}\n", path.display()).unwrap();
    }
    fs::write(folder.join("Cargo.toml"), manifest).unwrap();
    // The versions of the dependencies are those of the workspace, which are there without a download.
    fs::copy(here.join("../../Cargo.lock"), folder.join("Cargo.lock")).unwrap();
}

/// An error's code, where it has one, and its message.
type Error = (Option<String>, String);

/// The errors of each program.
type Errors = BTreeMap<String, Vec<Error>>;

/// What a message of cargo says about a program: an error, or with `None` that it was checked.
fn error_of(message: &Json) -> Option<(String, Option<Error>)> {
    let text = |value: &Json| value.as_str().map(|text| text.to_string());
    let program = text(message.get("target")?.get("name")?)?;
    match message.get("message") {
        None => Some((program, None)),
        Some(found) => {
            let error = text(found.get("level")?)? == "error" && !found.get("spans")?.as_array()?.is_empty();
            let code = found.get("code").and_then(|code| code.get("code")).and_then(text);
            error.then_some((program, Some((code, text(found.get("message")?)?))))
        }
    }
}

fn check(folder: &Path) -> Errors {
    let output = Command::new(env!("CARGO"))
        .args(["check", "--bins", "--keep-going", "--offline", "--quiet", "--message-format=json"])
        .current_dir(folder)
        .env("CARGO_TARGET_DIR", folder.join("target"))
        .env_remove("RUSTFLAGS")
        .output()
        .expect("cargo runs");
    let mut errors = Errors::new();
    for line in output.stdout.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"{")) {
        if let Some((program, error)) = error_of(&Json::parse_envelope(line).unwrap()) {
            errors.entry(program).or_default().extend(error);
        }
    }
    assert!(errors.get("right").is_some_and(Vec::is_empty), "{}", String::from_utf8_lossy(&output.stderr));
    errors
}

#[test]
fn s032_s043_x014_misuse_does_not_compile() {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let files = fs::read_dir(here.join("tests/compile_fail")).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut files: Vec<String> = files.collect();
    files.sort();
    assert_eq!(files, CASES.map(|(case, ..)| format!("{case}.rs")), "every file is a case");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("misuse");
    package(&folder, &here);
    let errors = check(&folder);
    for (case, mistake, count) in CASES {
        let found = errors.get(case).map(Vec::as_slice).unwrap_or_default();
        let all = found.iter().all(|(code, message)| mistake.is(code.as_deref(), message));
        assert!(all && found.len() == count, "{case}: {count} times {mistake:?} expected, found {found:?}");
    }
}
