use picofleet_models::config::ProviderConfig;

use super::*;

const FILE: &str = "[providers.local]\napi = \"openai-completions\"\nbase_url = \"http://127.0.0.1:1\"\napi_key_env = \"KEY\"\n";

fn parsed(text: &str, variables: &[(&str, &str)]) -> anyhow::Result<Config> {
    parse("p.toml", text, variables.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())))
}

fn error(text: &str, variables: &[(&str, &str)]) -> String {
    format!("{:#}", parsed(text, variables).unwrap_err())
}

#[test]
fn variables_override_the_file() {
    let config = parsed(FILE, &[("PICOFLEET_PROVIDERS__LOCAL__BASE_URL", "http://127.0.0.1:2"), ("PICOFLEET_VECTORS", "x")]).unwrap();
    assert_eq!(config.providers["local"].base_url.as_deref(), Some("http://127.0.0.1:2"));
    assert_eq!(config.storage.url, "sqlite:./picofleet.db");
    let config = parsed("", &[("PICOFLEET_STORAGE__URL", "memory:")]).unwrap();
    assert_eq!(config.storage.url, "memory:");
    // One provider in three variables, in any order.
    let whole = [
        ("PICOFLEET_PROVIDERS__X__BASE_URL", "http://127.0.0.1:3"),
        ("PICOFLEET_PROVIDERS__X__HTTP__IDLE_TIMEOUT_MS", "7"),
        ("PICOFLEET_PROVIDERS__X__API", "anthropic-messages"),
    ];
    let provider: ProviderConfig = parsed(FILE, &whole).unwrap().providers["x"].clone();
    assert_eq!((provider.base_url.as_deref(), provider.http.idle_timeout_ms), (Some("http://127.0.0.1:3"), Some(7)));
}

#[test]
fn an_error_names_its_line_or_its_variable() {
    let unknown = error("[storage]\nurl = \"memory:\"\nspeed = 3\n", &[]);
    assert!(unknown.contains("p.toml:3: unknown field `speed`"), "{unknown}");
    let broken = error("[storage\n", &[]);
    assert!(broken.contains("p.toml:1: "), "{broken}");
    let below = error("", &[("PICOFLEET_STORAGE__URL", "memory:"), ("PICOFLEET_STORAGE__URL__X", "1")]);
    assert!(below.contains("PICOFLEET_STORAGE__URL__X goes below url, which is no table"), "{below}");
}

#[test]
fn of_many_variables_only_the_bad_one_is_named() {
    let good = [("PICOFLEET_STORAGE__URL", "memory:"), ("PICOFLEET_DEFAULTS__MODEL", "scripted/demo")];
    for (variable, value, text) in [
        ("PICOFLEET_STORAGE__SPEED", "3", "unknown field `speed`"),
        ("PICOFLEET_TOOLS__USER", "root", "a value of the wrong type, expected struct User"),
        ("PICOFLEET_PROVIDERS__LOCAL__API", "smoke-signals", "an unknown word, expected one of `openai-completions`"),
        ("PICOFLEET_DEFAULTS__THINKING_LEVEL", "a lot", "an unknown word, expected one of `off`"),
        ("PICOFLEET_PROVIDERS__X__BASE_URL", "http://127.0.0.1:1", "missing field `api`"),
        // Of the right type, and still wrong.
        ("PICOFLEET_PROVIDERS__LOCAL__BASE_URL", "nowhere", "providers.local.base_url: it is no URL"),
        ("PICOFLEET_PROVIDERS__LOCAL__HTTP__IDLE_TIMEOUT_MS", "0", "providers.local.http.idle_timeout_ms: 0 "),
        ("PICOFLEET_TOOLS__WORKSPACE", "", "tools.workspace: it names no folder"),
    ] {
        let error = error(FILE, &[good[0], (variable, value), good[1]]);
        assert!(error.contains(&format!("{variable}: {text}")), "{error}");
        assert_eq!(error.matches("PICOFLEET_").count(), 1, "{error}");
    }
    // A provider that only variables make, and that lacks a URL: they are named.
    let lacking = error("", &[("PICOFLEET_PROVIDERS__X__API", "anthropic-messages"), good[0]]);
    assert!(lacking.contains("PICOFLEET_PROVIDERS__X__API: providers.x: base_url is missing"), "{lacking}");
}

#[test]
fn what_does_not_hold_together_has_its_line() {
    let models = "[[providers.local.models]]\nid = \"m\"\ncontext_window = 1\nmax_tokens = 1\n";
    for (text, expected) in [
        (format!("{FILE}http = {{ idle_timeout_ms = 0 }}\n"), "p.toml:5: providers.local.http.idle_timeout_ms: 0 "),
        (format!("{FILE}[providers.local.http]\n\nconnect_timeout_ms = 0\n"), "p.toml:7: providers.local.http.connect_timeout_ms: 0 "),
        (format!("{FILE}{models}{models}"), "p.toml:10: providers.local.models.1.id: \"m\" is there twice"),
        ("\n[providers.\"a.b\"]\napi = \"openai-responses\"\n".to_owned(), "p.toml:2: providers.a.b: base_url is missing"),
        ("[defaults]\n\nmodel = \"a/m\"\n".to_owned(), "p.toml:3: defaults.model: there is no provider"),
        ("tools.workspace = \"\"\n".to_owned(), "p.toml:1: tools.workspace: it names no folder"),
        ("[tools]\nuser = { id = 4294967295, group = 1 }\n".to_owned(), "p.toml:2: tools.user: 4294967295 is no user"),
        ("[storage]\nurl = \"postgres://u:hunter2@db/x\"\n".to_owned(), "p.toml:2: storage.url: this build cannot open PostgreSQL"),
    ] {
        let error = error(&text, &[]);
        assert!(error.contains(expected) && !error.contains("hunter2"), "{error}");
        // The file is right about the place also where variables override other keys.
        let error = self::error(&text, &[("PICOFLEET_DEFAULTS__THINKING_LEVEL", "off")]);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn errors_repeat_no_value() {
    for text in [
        "[providers.a]\napi = \"sk-hunter2\"\n",
        "[providers.a]\napi = \"sk-hunter2, expected a\"\n",
        "[providers.a]\napi = \"scripted\"\nheaders = \"Bearer hunter2\"\n",
        "[providers.a]\napi = \"scripted\"\nheaders = [\n\"Bearer hunter2\"]\n",
        "[tools]\nuser = { id = \"hunter2\", group = 1 }\n",
        "[tools]\nworkspace = \"\"\"\nhunter2= \\q\"\"\"\n",
    ] {
        let error = error(text, &[]);
        assert!(!error.contains("hunter2") && error.contains("p.toml:"), "{error}");
    }
    let variable = error("", &[("PICOFLEET_PROVIDERS__A__API", "hunter2")]);
    assert!(!variable.contains("hunter2"), "{variable}");
}

#[test]
fn a_store_url_names_what_this_build_can_open() {
    let parsed = |url: &str| url.parse::<StoreUrl>();
    for (url, path) in [("sqlite:./a.db", "./a.db"), ("sqlite:a b.db", "a b.db"), ("sqlite:/var/a.db", "/var/a.db")] {
        assert_eq!(parsed(url), Ok(StoreUrl::Sqlite(path.into())));
        assert_eq!(parsed(url).unwrap().to_string(), url);
    }
    assert_eq!(parsed("jsonl:./a"), Ok(StoreUrl::Jsonl("./a".into())));
    assert_eq!(parsed("jsonl:./a").unwrap().to_string(), "jsonl:./a");
    assert_eq!(parsed("memory:"), Ok(StoreUrl::Memory));
    for (url, error) in [
        ("sqlite:", StoreUrlError::Path),
        ("sqlite://a.db", StoreUrlError::Path),
        ("sqlite::memory:", StoreUrlError::Path),
        ("sqlite:a.db?mode=ro", StoreUrlError::Path),
        ("memory:x", StoreUrlError::Rest),
        ("postgres://u:p@h/d", StoreUrlError::Postgres),
        ("postgresql://h/d", StoreUrlError::Postgres),
        ("jsonl:", StoreUrlError::Path),
        ("jsonl://x", StoreUrlError::Path),
        ("picofleet.db", StoreUrlError::Unknown),
        ("", StoreUrlError::Unknown),
    ] {
        assert_eq!(parsed(url), Err(error), "{url}");
    }
}

#[test]
fn headers_are_hidden() {
    let config = parsed(&format!("{FILE}headers = {{ authorization = \"hunter2\", accept = \"text\" }}\n"), &[]).unwrap();
    let shown = show(&config).unwrap();
    assert!(!shown.contains("hunter2") && shown.contains("KEY"), "{shown}");
    assert!(!format!("{config:?}").contains("hunter2"), "{config:?}");
}
