//! `config check` and `config show`: files, overrides, exit codes, no secrets.

use crate::place::Place;
use crate::server::{APIS, acme};

/// How every good answer of `config check` ends.
const NOT_LOOKED_AT: &str = "providers that can't be used now, for want of a key or a file: `picofleet models list` shows them\n";

#[tokio::test]
async fn without_a_file_the_defaults_are_good() {
    let place = Place::new();
    assert_eq!(
        place.run(&["config", "check"]).await.with(0),
        format!("ok: no file, only defaults; 0 providers, 0 models\n{NOT_LOOKED_AT}")
    );
    let shown = place.run(&["config", "show"]).await.with(0);
    assert!(shown.contains("url = \"sqlite:./picofleet.db\"") && shown.contains("workspace = \"./workspace\""), "{shown}");
    assert!(!place.path("picofleet.db").exists() && !place.path("workspace").exists());
}

#[tokio::test]
async fn what_is_configured_is_printed_as_json_too() {
    let place = Place::new();
    let none = place.run(&["config", "check", "-o", "json"]).await.with(0);
    assert_eq!(none, "{\"file\":null,\"providers\":0,\"models\":0}\n");
    place.write(
        "picofleet.toml",
        "[providers.a]\napi = \"anthropic-messages\"\nbase_url = \"http://127.0.0.1:9\"\nheaders = { x = \"hunter2\" }\napi_key_env = \"NO_SUCH_KEY\"\n\
         [[providers.a.models]]\nid = \"m\"\ncontext_window = 100\nmax_tokens = 10\n[defaults]\nmodel = \"a/m\"\n",
    );
    let check = place.run(&["config", "check", "-o", "json"]).await.with(0);
    assert_eq!(check, "{\"file\":\"picofleet.toml\",\"providers\":1,\"models\":1}\n");
    let shown = place.run(&["config", "show", "-o", "json"]).await.with(0);
    assert!(shown.contains("\"storage\":{\"url\":\"sqlite:./picofleet.db\",\"fsync\":true}") && !shown.contains("hunter2"), "{shown}");
    let not_set = shown.split_once("\"notSet\":[").unwrap().1;
    assert!(not_set.contains("\"storage.url\"") && not_set.contains("\"tools.workspace\"") && !not_set.contains("base_url"), "{shown}");
    let models = place.run(&["models", "list", "-o", "json"]).await.with(0);
    let begin = "{\"models\":[{\"model\":\"a/m\",\"api\":\"anthropic-messages\",\"contextWindow\":100,\"maxTokens\":10,\"default\":true}";
    assert!(models.starts_with(begin) && models.contains("\"problems\":[{\"provider\":\"a\",\"error\":"), "{models}");
    let tested = place.run(&["models", "test", "scripted/demo", "-o", "json"]).await;
    assert!(
        tested.out.starts_with("{\"model\":\"scripted/demo\",\"results\":[{\"what\":\"streamed answer\",\"works\":true,"),
        "{tested:?}"
    );
    assert!(tested.out.contains("{\"what\":\"error\",\"works\":null,") && tested.out.lines().count() == 1, "{tested:?}");
}

#[tokio::test]
async fn the_file_is_the_named_one_or_the_one_in_the_folder() {
    let mut place = Place::new();
    place.write("picofleet.toml", "[storage]\nurl = \"sqlite:in-folder.db\"\n");
    place.write("variable.toml", "[storage]\nurl = \"sqlite:by-variable.db\"\n");
    place.write("flag.toml", "[storage]\nurl = \"sqlite:by-flag.db\"\n");
    assert!(place.run(&["config", "show"]).await.with(0).contains("in-folder"));
    place.set("PICOFLEET_CONFIG", "variable.toml");
    assert!(place.run(&["config", "show"]).await.with(0).contains("by-variable"));
    assert!(place.run(&["config", "show", "--config", "flag.toml"]).await.with(0).contains("by-flag"));
    assert_eq!(
        place.run(&["--config", "flag.toml", "config", "check"]).await.with(0),
        format!("ok: flag.toml; 0 providers, 0 models\n{NOT_LOOKED_AT}")
    );
    place.set("PICOFLEET_STORAGE__URL", "sqlite:by-override.db");
    assert!(place.run(&["config", "show", "--config", "flag.toml"]).await.with(0).contains("by-override"));
    let missing = place.run(&["config", "check", "--config", "missing.toml"]).await.with(64);
    assert!(missing.contains("read the configuration missing.toml") && missing.contains("No such file"), "{missing}");
}

/// Each with the line in the file and the exit code of a wrong command line, for every command that reads the configuration.
#[tokio::test]
async fn what_is_wrong_is_told_with_its_line() {
    for (text, expected) in [
        ("[storage]\n\nspeed = 3\n", "picofleet.toml:3: unknown field `speed`"),
        ("[storage\n", "picofleet.toml:1: "),
        ("[storage]\nurl = \"postgres://u:hunter2@db\"\n", "picofleet.toml:2: storage.url: the URL of a database is"),
        (
            "[storage]\nurl = \"jsonl:\"\n",
            "picofleet.toml:2: storage.url: sqlite: is followed by the path of a file, jsonl: by that of a directory",
        ),
        ("[storage]\nurl = \"hunter2\"\n", "picofleet.toml:2: storage.url: no store has such a URL"),
        ("[defaults]\nthinking_level = \"hunter2\"\n", "picofleet.toml:2: defaults.thinking_level: an unknown word, expected one of `off`"),
        ("[defaults]\nmodel = \"a/m\"\n", "picofleet.toml:2: defaults.model: there is no provider"),
        (
            "[providers.a]\napi = \"openai-responses\"\nbase_url = \"http://u:hunter2@a\"\n",
            "picofleet.toml:3: providers.a.base_url: it has a user",
        ),
        (
            "[providers.a]\napi = \"scripted\"\n[providers.a.http]\nidle_timeout_ms = 0\n",
            "picofleet.toml:4: providers.a.http.idle_timeout_ms: 0 ",
        ),
        ("[providers.a]\napi = \"scripted\"\nheaders = \"hunter2\"\n", "picofleet.toml:3: providers.a.headers: a value of the wrong type"),
        (
            "[providers.a]\napi = \"scripted\"\n[providers.a.headers]\nx-team = \"hunter2\\nhunter2\"\n",
            "picofleet.toml:4: providers.a.headers.x-team: its value has a line break",
        ),
        (
            "[providers.a]\napi = \"scripted\"\napi_key_env = \"sk-hunter2\"\n",
            "picofleet.toml:3: providers.a.api_key_env: it looks like a key",
        ),
        (
            "[providers.a]\napi = \"openai-completions\"\nbase_url = \"https://a/v1/chat/completions\"\n",
            "picofleet.toml:3: providers.a.base_url: it ends with /chat/completions, which each request adds by itself; write base_url = \"https://a/v1\"",
        ),
        (
            "[storage]\nurl = \"memory:\"\n[tools]\nuser = { id = \"hunter2\", group = 1 }\n",
            "picofleet.toml:4: tools.user.id: a value of the wrong type, expected a whole number",
        ),
        ("defaults = \"hunter2\"\n", "picofleet.toml:1: defaults: a value of the wrong type, expected a table"),
        (
            "[providers.a]\napi = \"scripted\"\n[[providers.a.models]]\nid = \"m\"\n",
            "picofleet.toml:3: providers.a.models.0: missing field `context_window`",
        ),
        ("[storage]\nfsync = \"hunter2\"\n", "picofleet.toml:2: storage.fsync: a value of the wrong type, expected a boolean"),
        (
            "[providers.a]\napi = \"scripted\"\n[[providers.a.models]]\nid = 3\n",
            "picofleet.toml:4: providers.a.models.0.id: a value of the wrong type, expected a string",
        ),
        ("[providers.a]\napi = \"scripted\"\n\napi_key = \"hunter2\"\n", "picofleet.toml:4: a key is not written into the configuration"),
    ] {
        let place = Place::new();
        place.write("picofleet.toml", text);
        for command in [&["config", "check"][..], &["config", "show"], &["models", "list"], &["models", "test", "a/m"], &["run", "hello"]] {
            let told = place.run(command).await.with(64);
            assert!(told.contains(expected) && !told.contains("hunter2"), "{command:?}: {told}");
        }
        assert!(!place.path("picofleet.db").exists() && !place.path("workspace").exists());
    }
}

#[tokio::test]
async fn a_bad_variable_is_named_and_good_ones_are_not() {
    let mut place = Place::new();
    place.write("picofleet.toml", "[storage]\nurl = \"memory:\"\n");
    place.set("PICOFLEET_TOOLS__WORKSPACE", "elsewhere");
    place.set("PICOFLEET_STORAGE__URL", "postgres://u:hunter2@db");
    // No override: it has no section.
    place.set("PICOFLEET_VECTORS", "x");
    let told = place.run(&["config", "check"]).await.with(64);
    assert!(told.contains("PICOFLEET_STORAGE__URL: storage.url: the URL of a database is"), "{told}");
    assert!(!told.contains("WORKSPACE") && !told.contains("VECTORS") && !told.contains("hunter2"), "{told}");
}

#[cfg(unix)]
#[tokio::test]
async fn an_override_that_is_not_utf_8_is_told() {
    use std::os::unix::ffi::OsStringExt as _;

    let bytes = |bytes: &[u8]| std::ffi::OsString::from_vec(bytes.to_vec());
    let mut place = Place::new();
    place.set("OTHER", bytes(b"\xff"));
    place.run(&["config", "check"]).await.with(0);
    place.set("PICOFLEET_STORAGE__URL", bytes(b"sqlite:hunter2\xff"));
    let told = place.run(&["config", "check"]).await.with(64);
    assert!(told.contains("PICOFLEET_STORAGE__URL: ") && told.contains("not UTF-8") && !told.contains("hunter2"), "{told}");
}

/// A link to itself, and one that leads nowhere: neither is the same as no file.
#[cfg(unix)]
#[tokio::test]
async fn a_file_in_the_folder_that_cannot_be_read_is_told() {
    for target in ["picofleet.toml", "nowhere.toml"] {
        let place = Place::new();
        std::os::unix::fs::symlink(target, place.path("picofleet.toml")).unwrap();
        let told = place.run(&["config", "check"]).await.with(64);
        assert!(told.contains("read the configuration picofleet.toml"), "{told}");
    }
}

/// A pipe that nobody writes to would be waited for, and the device never ends.
#[cfg(unix)]
#[tokio::test]
async fn only_a_regular_file_of_a_good_size_is_read() {
    let place = Place::new();
    assert!(std::process::Command::new("mkfifo").arg(place.path("pipe")).status().unwrap().success());
    place.write("large.toml", &"#".repeat((1 << 20) + 1));
    place.write("good.toml", &"#".repeat(1 << 20));
    let kind = "it is a pipe, a device or a socket; only a regular file is read";
    for (file, expected) in [("/dev/zero", kind), ("pipe", kind), (".", "it is a folder"), ("large.toml", "it has more than 1 MiB")] {
        let told = place.run(&["config", "check", "--config", file]).await.with(64);
        assert!(told.contains(&format!("read the configuration {file}")) && told.contains(expected), "{told}");
    }
    place.run(&["config", "check", "--config", "good.toml"]).await.with(0);
}

#[tokio::test]
async fn no_output_has_a_secret() {
    let mut place = Place::new();
    place.set("ACME_KEY", "hunter2-in-variable");
    place.write("key", "hunter2-in-file");
    let headers =
        "api_key_env = \"ACME_KEY\"\nheaders = { x-team = \"blue\", x-goog-api-key = \"hunter2-in-header\", Cookie = \"a=hunter2\" }\n";
    let file = "[providers.other]\napi = \"anthropic-messages\"\nbase_url = \"http://127.0.0.1:1\"\napi_key_file = \"key\"\n";
    place.write("picofleet.toml", &format!("{}{file}", acme(APIS[0], "http://127.0.0.1:1", headers)));
    for command in [&["config", "check"][..], &["config", "show"], &["models", "list"]] {
        let text = place.run(command).await.with(0);
        assert!(!text.contains("hunter2"), "{command:?}: {text}");
    }
    let shown = place.run(&["config", "show"]).await.with(0);
    for kept in ["ACME_KEY", "api_key_file = \"key\"", "x-team = \"[hidden]\"", "x-goog-api-key = \"[hidden]\"", "Cookie = \"[hidden]\""] {
        assert!(shown.contains(kept), "no {kept} in {shown}");
    }
}

#[tokio::test]
async fn what_is_shown_is_a_good_configuration() {
    let place = Place::new();
    place.write("picofleet.toml", &acme(APIS[2], "https://127.0.0.1:1", "ca_file = \"ca.pem\"\nlimits = { concurrency = 3 }\n"));
    let shown = place.run(&["config", "show"]).await.with(0);
    place.write("shown.toml", &shown);
    assert_eq!(
        place.run(&["config", "check", "--config", "shown.toml"]).await.with(0),
        format!("ok: shown.toml; 1 providers, 1 models\n{NOT_LOOKED_AT}")
    );
    // Nothing in it is a default any more.
    let bare = shown.replace("  # default", "");
    assert!(shown.contains("fsync = true  # default\n") && shown.contains("concurrency = 3\n"), "{shown}");
    assert_eq!(place.run(&["config", "show", "--config", "shown.toml"]).await.with(0), bare);
}

#[tokio::test]
async fn the_example_of_the_readme_is_a_good_configuration() {
    let readme = include_str!("../../../../README.md");
    let example = readme.split_once("```toml\n").unwrap().1.split("```").next().unwrap();
    let place = Place::new();
    place.write("picofleet.toml", example);
    assert_eq!(place.run(&["config", "check"]).await.with(0), format!("ok: picofleet.toml; 1 providers, 1 models\n{NOT_LOOKED_AT}"));
    // What is commented out is right, too.
    let comments = ["# ca_file = ", "# user = "].iter().fold(example.to_owned(), |text, key| text.replace(key, &key[2..]));
    assert_eq!(comments.matches("# ").count(), example.matches("# ").count() - 2);
    place.write("picofleet.toml", &comments);
    place.run(&["config", "check"]).await.with(0);
}

/// The names that are expected at a table, by what is said about a key that is not there.
async fn names(place: &Place, file: &str, table: &str) -> Vec<String> {
    let begin = format!("{table}\n");
    assert_eq!(file.matches(&begin).count(), 1, "{table}");
    place.write("nonsense.toml", &file.replace(&begin, &format!("{begin}nonsense = 1\n")));
    let told = place.run(&["config", "check", "--config", "nonsense.toml"]).await.with(64);
    // One name, two, or more stand there in different words.
    let (_, expected) = told.split_once("unknown field `nonsense`, expected ").unwrap_or_else(|| panic!("{table}: {told}"));
    expected.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[tokio::test]
async fn the_page_about_the_configuration_has_every_key_and_is_right() {
    let page = include_str!("../../../../docs/configuration.md");
    let example = page.split_once("```toml\n").unwrap().1.split("```").next().unwrap();
    let place = Place::new();
    place.write("picofleet.toml", example);
    place.run(&["config", "check"]).await.with(0);
    let bare: Vec<String> = example.lines().map(|line| line.split('#').next().unwrap().trim_end().to_owned() + "\n").collect();
    let bare = bare.concat();
    let mut all = Vec::new();
    for table in [
        "[providers.openai]",
        "[providers.openai.limits]",
        "[providers.openai.breaker]",
        "[providers.openai.http]",
        "[[providers.openai.models]]",
        "[providers.openai.models.cost]",
        "[[providers.openai.models.cost.tiers]]",
        "[defaults]",
        "[storage]",
        "[tools]",
    ] {
        all.extend(names(&place, &bare, table).await);
    }
    assert!(all.len() > 40, "{all:?}");
    for name in all {
        let set = bare.lines().any(|line| {
            line.starts_with(&format!("{name} = ")) || line.ends_with(&format!(".{name}]")) || line.ends_with(&format!(".{name}]]"))
        });
        assert!(set, "{name} is not in the page");
    }
}

#[tokio::test]
async fn a_wrong_command_line_has_its_exit_code() {
    let place = Place::new();
    for arguments in [&["config"][..], &["config", "other"], &["models", "test"], &["run"], &["run", "x", "--session", "y"], &[]] {
        place.run(arguments).await.with(64);
    }
    let help = place.run(&["config", "check", "--help"]).await.with(0);
    assert!(help.contains("whether variables are set, files are there or servers answer"), "{help}");
    assert!(place.run(&["--help"]).await.with(0).contains("config"));
    assert!(place.run(&["--version"]).await.with(0).starts_with("picofleet "));
}
