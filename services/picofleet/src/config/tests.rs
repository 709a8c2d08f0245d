use picofleet_models::config::ProviderConfig;

use super::*;

const FILE: &str = "[providers.local]\napi = \"openai-completions\"\nbase_url = \"http://127.0.0.1:1\"\napi_key_env = \"KEY\"\n";

fn parsed(text: &str, variables: &[(&str, &str)]) -> anyhow::Result<Config> {
    parse("p.toml", text, variables.iter().map(|(k, v)| (k.into(), v.into()))).map(|merged| merged.config)
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

/// Names of variables have neither small letters nor dashes.
#[test]
fn variables_reach_every_key_that_the_file_has() {
    let file = FILE.replace("local", "Acme-Cloud")
        + "compat = { supportsStore = true }\nheaders = { x-team = \"red\" }\n"
        + "[[providers.Acme-Cloud.models]]\nid = \"a\"\ncontext_window = 1\nmax_tokens = 1\n"
        + "[[providers.Acme-Cloud.models]]\nid = \"b\"\ncontext_window = 9\nmax_tokens = 1\n";
    let changes = [
        ("PICOFLEET_PROVIDERS__ACME_CLOUD__BASE_URL", "http://127.0.0.1:2"),
        ("PICOFLEET_PROVIDERS__ACME_CLOUD__COMPAT__SUPPORTSSTORE", "false"),
        ("PICOFLEET_PROVIDERS__ACME_CLOUD__HEADERS__X_TEAM", "blue"),
        ("PICOFLEET_PROVIDERS__ACME_CLOUD__MODELS__1__MAX_TOKENS", "7"),
        ("PICOFLEET_PROVIDERS__ACME_CLOUD__MODELS__1__COMPAT", "{ supportsStrictMode = true }"),
    ];
    let config = parsed(&file, &changes).unwrap();
    assert_eq!(config.providers.keys().collect::<Vec<_>>(), ["Acme-Cloud"]);
    let provider = &config.providers["Acme-Cloud"];
    assert_eq!(provider.base_url.as_deref(), Some("http://127.0.0.1:2"));
    assert_eq!(provider.headers["x-team"], "blue");
    let shown = show(&config).unwrap();
    for expected in ["supportsStore = false", "x-team = \"[hidden]\"", "supportsStrictMode = true"] {
        assert!(shown.contains(expected), "{shown}");
    }
    assert_eq!([provider.models[0].max_tokens, provider.models[1].max_tokens], [1, 7]);
    // Errors name the variable, and the key as the file has it.
    let wrong = error(&file, &[("PICOFLEET_PROVIDERS__ACME_CLOUD__MODELS__1__MAX_TOKENS", "0")]);
    assert!(
        wrong.contains("PICOFLEET_PROVIDERS__ACME_CLOUD__MODELS__1__MAX_TOKENS: providers.Acme-Cloud.models.1.max_tokens: "),
        "{wrong}"
    );
    let beyond = error(&file, &[("PICOFLEET_PROVIDERS__ACME_CLOUD__MODELS__2__MAX_TOKENS", "7")]);
    assert!(beyond.contains("PICOFLEET_PROVIDERS__ACME_CLOUD__MODELS__2__MAX_TOKENS goes below models"), "{beyond}");
}

#[test]
fn a_variable_that_may_mean_several_keys_is_an_error() {
    let file = "[providers.a-b]\napi = \"scripted\"\n[providers.a_b]\napi = \"scripted\"\n";
    let several = error(file, &[("PICOFLEET_PROVIDERS__A_B__API", "scripted")]);
    assert!(several.contains("PICOFLEET_PROVIDERS__A_B__API") && several.contains("[\"a-b\", \"a_b\"]"), "{several}");
}

#[cfg(unix)]
#[test]
fn only_overrides_must_be_utf_8() {
    use std::os::unix::ffi::OsStringExt as _;

    let read = |name: &[u8], value: &[u8]| {
        let variable = (OsString::from_vec(name.to_vec()), OsString::from_vec(value.to_vec()));
        parse("p.toml", "", std::iter::once(variable)).map(|merged| merged.config).map_err(|error| format!("{error:#}"))
    };
    for (name, value) in [(&b"OTHER__X"[..], &b"\xff"[..]), (b"OTHER\xff__X", b"x"), (b"PICOFLEET_VECTORS", b"\xff")] {
        assert_eq!(read(name, value), Ok(Config::default()));
    }
    let value = read(b"PICOFLEET_STORAGE__URL", b"hunter2\xff").unwrap_err();
    assert!(value.starts_with("PICOFLEET_STORAGE__URL: ") && value.contains("UTF-8") && !value.contains("hunter2"), "{value}");
    let name = read(b"PICOFLEET_STORAGE__\xff", b"hunter2").unwrap_err();
    assert!(name.starts_with("PICOFLEET_STORAGE__\u{fffd}: ") && !name.contains("hunter2"), "{name}");
}

#[cfg(unix)]
#[test]
fn a_default_file_that_cannot_be_looked_at_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("picofleet.toml");
    assert_eq!(default_file(&path).unwrap(), None);
    std::fs::write(&path, "").unwrap();
    assert_eq!(default_file(&path).unwrap(), Some(path.clone()));
    let error = format!("{:#}", default_file(&path.join("picofleet.toml")).unwrap_err());
    assert!(error.starts_with("look for the configuration ") && error.contains("Not a directory"), "{error}");
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
        ("PICOFLEET_TOOLS__USER", "root", "a value of the wrong type, expected a table"),
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
        ("[storage]\nurl = \"postgres://u:hunter2@db\"\n".to_owned(), "p.toml:2: storage.url: the URL of a database is"),
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
    for url in ["postgres://u:hunter2@h:5432/d?sslmode=require", "postgresql://h:5432/d", "postgres://h:5432/d?password=hunter2"] {
        let parsed = parsed(url).unwrap();
        assert_eq!(
            (parsed.to_string(), format!("{parsed:?}")),
            ("postgres://h:5432/d".to_owned(), "Postgres(postgres://h:5432/d)".to_owned())
        );
    }
    for (url, error) in [
        ("sqlite:", StoreUrlError::Path),
        ("sqlite://a.db", StoreUrlError::Path),
        ("sqlite::memory:", StoreUrlError::Path),
        ("sqlite:a.db?mode=ro", StoreUrlError::Path),
        ("memory:x", StoreUrlError::Rest),
        ("postgres:d", StoreUrlError::Postgres),
        ("postgres://h", StoreUrlError::Postgres),
        ("postgresql:///d", StoreUrlError::Postgres),
        ("postgres://h/?user=u", StoreUrlError::Postgres),
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

#[test]
fn a_key_in_the_configuration_is_told_where_it_belongs() {
    let expected = "a key is not written into the configuration; set api_key_env to the name";
    for name in ["api_key", "apiKey", "api-key", "token"] {
        let error = error(&format!("{FILE}{name} = \"hunter2\"\n"), &[]);
        assert!(error.contains(&format!("p.toml:5: {expected}")) && !error.contains("hunter2"), "{error}");
    }
    let variable = error(FILE, &[("PICOFLEET_PROVIDERS__LOCAL__API_KEY", "hunter2")]);
    assert!(variable.contains(&format!("PICOFLEET_PROVIDERS__LOCAL__API_KEY: {expected}")) && !variable.contains("hunter2"), "{variable}");
    assert!(error("[tools]\ntoken = \"hunter2\"\n", &[]).contains("p.toml:2: unknown field `token`"));
}
