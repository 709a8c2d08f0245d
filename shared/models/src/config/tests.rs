use super::*;
use crate::model::InputKind;

const FULL: &str = r#"
    [providers.openai]
    api = "openai-completions"
    base_url = "https://api.example/v1"
    api_key_env = "OPENAI_API_KEY"
    ca_file = "ca.pem"
    headers = { x-team = "blue", x-api-key = "hush" }
    compat = { supportsStore = false, supportsStrictMode = false }
    limits = { concurrency = 4, requests_per_minute = 60, tokens_per_minute = 100000, queue_max = 10, wait_max_ms = 1000 }
    breaker = { failures = 3, open_ms = 500 }
    http = { connect_timeout_ms = 1000, environment_proxies = false }
    [[providers.openai.models]]
    id = "org/big"
    name = "Big"
    context_window = 200000
    max_tokens = 16384
    reasoning = true
    input = ["text", "image"]
    cost = { input = 1.25, output = 10, cache_read = 0.125, tiers = [{ input_tokens_above = 200000, input = 2.5, output = 15 }] }
    thinking_levels = { minimal = false, xhigh = true, high = "strong" }
    prompt_cache = { short = 300 }
    sampling_params = { top_p = 0.9 }
    sampling_params_by_thinking_level = { off = { top_k = 5 } }
    compat = { supportsStrictMode = true }
    [[providers.openai.models]]
    id = "small"
    context_window = 8000
    max_tokens = 1000

    [providers.script]
    api = "scripted"

    [defaults]
    model = "openai/org/big"
    thinking_level = "high"
"#;

fn config(text: &str) -> ModelsConfig {
    toml::from_str(text).unwrap()
}

fn problems(text: &str) -> Vec<String> {
    let config = config(text);
    check(&config.providers, &config.defaults).iter().map(ToString::to_string).collect()
}

#[test]
fn a_full_table_gives_models() {
    let config = config(FULL);
    assert_eq!(check(&config.providers, &config.defaults), []);
    assert_eq!(config.defaults.model_parts(), Some(("openai", "org/big")));
    let provider = &config.providers["openai"];
    let [big, small] = &*provider.models("openai") else { panic!("{provider:?}") };
    let expected = r#"{"id":"org/big","name":"Big","api":"openai-completions","provider":"openai",
        "baseUrl":"https://api.example/v1","reasoning":true,"input":["text","image"],
        "cost":{"input":1.25,"output":10,"cacheRead":0.125,"cacheWrite":0,
            "tiers":[{"inputTokensAbove":200000,"input":2.5,"output":15,"cacheRead":0,"cacheWrite":0}]},
        "contextWindow":200000,"maxTokens":16384,"headers":{"x-team":"blue","x-api-key":"hush"},
        "thinkingLevelMap":{"minimal":null,"xhigh":"xhigh","high":"strong"},"promptCache":{"short":300},
        "samplingParams":{"top_p":0.9},"samplingParamsByThinkingLevel":{"off":{"top_k":5}},
        "compat":{"supportsStore":false,"supportsStrictMode":true}}"#;
    assert_eq!(picofleet_delta::Json::from_serde(big).unwrap(), expected.parse::<picofleet_delta::Json>().unwrap());
    assert_eq!((small.name.as_str(), small.reasoning, small.input.as_slice()), ("small", false, &[InputKind::Text][..]));
    assert_eq!((provider.limits.concurrency, provider.breaker.failures), (Some(4), 3));
    let options = provider.http.client_options();
    assert_eq!((options.connect_timeout.as_secs(), options.environment_proxies), (1, false));
}

#[test]
fn nothing_is_a_good_configuration() {
    assert_eq!(problems(""), <[String; 0]>::default());
    assert_eq!(problems("[defaults]\nmodel = \"scripted/demo\""), <[String; 0]>::default());
}

#[test]
fn what_is_shown_hides_headers_and_members_that_may_be_credentials() {
    let shown = toml::Value::try_from(config(FULL)).unwrap();
    let headers = &shown["providers"]["openai"]["headers"];
    assert_eq!((headers["x-team"].as_str(), headers["x-api-key"].as_str()), (Some("[hidden]"), Some("[hidden]")));
    assert!(!format!("{shown:?}").contains("hush"));

    let routing = r#"
        [providers.a]
        api = "openai-completions"
        base_url = "http://a"
        [providers.a.compat]
        promptCacheKeyMode = "enabled"
        supportsThinkingTokenBudget = true
        openRouterRouting = { order = ["blue"], api_key = "hush", nested = [{ auth = { list = ["hush"], limit = 3 } }] }
        [[providers.a.models]]
        id = "m"
        context_window = 1
        max_tokens = 1
        sampling_params = { max_tokens = 5, user_token = "hush", stop = "blue" }
        sampling_params_by_thinking_level = { off = { secret = "hush", top_k = 5 } }
        compat = { chatTemplateArgs = { password = "hush" } }
    "#;
    assert_eq!(problems(routing), <[String; 0]>::default());
    let shown = toml::to_string(&config(routing)).unwrap();
    assert!(!shown.contains("hush"), "{shown}");
    let expected = routing.replace("hush", "[hidden]");
    assert_eq!(
        toml::from_str::<toml::Value>(&shown).unwrap()["providers"]["a"]["compat"],
        toml::from_str::<toml::Value>(&expected).unwrap()["providers"]["a"]["compat"]
    );
    assert_eq!(config(&shown), config(&expected));
    assert_eq!(problems(&shown), <[String; 0]>::default());
}

#[test]
fn unknown_keys_are_errors_with_their_line() {
    for (text, key) in [
        ("[providers.a]\napi = \"scripted\"\nbase_ulr = \"x\"", "base_ulr"),
        ("[providers.a]\napi = \"scripted\"\nlimits = { rpm = 1 }", "rpm"),
        ("[providers.a]\napi = \"scripted\"\nmodels = [{ id = \"a\", context_window = 1, max_tokens = 1, cost = { in = 1 } }]", "in"),
        ("[defaults]\n\nmodle = \"x\"", "modle"),
    ] {
        let error = toml::from_str::<ModelsConfig>(text).unwrap_err().to_string();
        assert!(error.contains(&format!("unknown field `{key}`")) && error.contains("at line 3"), "{error}");
    }
}

#[test]
fn what_does_not_hold_together_is_told_with_its_place() {
    for (text, expected) in [
        ("[providers.a]\napi = \"openai-responses\"", "providers.a: base_url is missing; set the URL of the API, without its last part"),
        (
            "[providers.a]\napi = \"openai-responses\"\nbase_url = \"nowhere\"",
            "providers.a.base_url: it is no URL (relative URL without a base); correct it",
        ),
        (
            "[providers.a]\napi = \"openai-responses\"\nbase_url = \"ftp://a\"",
            "providers.a.base_url: it is no http or https URL; correct it",
        ),
        (
            "[providers.a]\napi = \"openai-responses\"\nbase_url = \"http://u:hush@a\"",
            "providers.a.base_url: it has a user or a password in it; use api_key_env or api_key_file",
        ),
        (
            "[providers.a]\napi = \"openai-responses\"\nbase_url = \"http://a/?b\"",
            "providers.a.base_url: it has a query or a fragment, after which no path can follow; remove it",
        ),
        (
            "[providers.a]\napi = \"scripted\"\napi_key_env = \"A\"\napi_key_file = \"b\"",
            "providers.a: api_key_env and api_key_file are both set; keep one",
        ),
        (
            "[providers.a]\napi = \"anthropic-messages\"\nbase_url = \"http://a\"\nca_file = \"ca.pem\"",
            "providers.a.ca_file: only an https base_url has certificates to check; remove it or correct base_url",
        ),
        (
            "[providers.a]\napi = \"scripted\"\nca_file = \"ca.pem\"",
            "providers.a.ca_file: only an https base_url has certificates to check; remove it or correct base_url",
        ),
        (
            "[providers.a]\napi = \"anthropic-messages\"\nbase_url = \"https://a\"\nca_file = \"\"",
            "providers.a.ca_file: it names no file; set its path or remove it",
        ),
        (
            "[providers.a]\napi = \"anthropic-messages\"\nbase_url = \"http://a\"\nscript = \"s\"",
            "providers.a.script: only a provider with api = \"scripted\" plays a script; remove it",
        ),
        (
            "[providers.a]\napi = \"scripted\"\nlimits = { concurrency = 0 }",
            "providers.a.limits.concurrency: 0 lets nothing through; remove it for no limit",
        ),
        (
            "[providers.a]\napi = \"scripted\"\nhttp = { first_byte_timeout_ms = 0 }",
            "providers.a.http.first_byte_timeout_ms: 0 gives no request the time to be answered; remove it for the usual time",
        ),
        ("[providers.\"a/b\"]\napi = \"scripted\"", "providers.a/b: the id of a provider is not empty and has no slash; rename it"),
        (
            "[providers.a]\napi = \"scripted\"\nmodels = [{ id = \"m\", context_window = 0, max_tokens = 1 }]",
            "providers.a.models.0.context_window: it is 0; set the number of tokens that the provider documents",
        ),
        (
            "[providers.a]\napi = \"scripted\"\nmodels = [{ id = \"m\", context_window = 1, max_tokens = 1, cost = { input = -1 } }]",
            "providers.a.models.0.cost: a price is negative or no number; set US dollars for a million tokens",
        ),
        ("[providers.a]\napi = \"scripted\"\ncompat = 1", "providers.a.compat: it is no table; write it as one"),
        (
            "[providers.a]\napi = \"scripted\"\ncompat = { supportsStore = true }",
            "providers.a.compat.supportsStore: scripted has no compat; remove it",
        ),
        (
            "[providers.a]\napi = \"openai-completions\"\nbase_url = \"http://a\"\n[[providers.a.models]]\nid = \"m\"\ncontext_window = 1\n\
             max_tokens = 1\ncompat = { supportsStore = \"no\" }",
            "providers.a.models.0.compat.supportsStore: it is no flag; write true or false",
        ),
        (
            "[providers.a]\napi = \"scripted\"\n[[providers.a.models]]\nid = \"m\"\ncontext_window = 1\nmax_tokens = 1\n\
             [[providers.a.models]]\nid = \"m\"\ncontext_window = 1\nmax_tokens = 1",
            "providers.a.models.1.id: \"m\" is there twice; keep one of the models",
        ),
        (
            "[providers.a]\napi = \"openai-responses\"\nbase_url = \"http://a:0/v1\"",
            "providers.a.base_url: no server has the port 0; correct it",
        ),
        (
            "[providers.a]\napi = \"scripted\"\nheaders = { \"a b\" = \"hush\" }",
            "providers.a.headers.a b: it is no name of a header; correct it",
        ),
        (
            "[providers.a]\napi = \"scripted\"\nheaders = { x-a = \"hush\\nhush\" }",
            "providers.a.headers.x-a: its value has a line break or another control character in it; remove that",
        ),
        (
            "[providers.a]\napi = \"scripted\"\nheaders = { Host = \"a\" }",
            "providers.a.headers.Host: the client sets this header itself; remove it",
        ),
        (
            "[providers.a]\napi = \"scripted\"\nheaders = { content-length = \"1\" }",
            "providers.a.headers.content-length: the client sets this header itself; remove it",
        ),
        (
            "[providers.a]\napi = \"scripted\"\nheaders = { Transfer-Encoding = \"chunked\" }",
            "providers.a.headers.Transfer-Encoding: the client sets this header itself; remove it",
        ),
        (
            "[providers.a]\napi = \"scripted\"\nheaders = { connection = \"close\" }",
            "providers.a.headers.connection: the client sets this header itself; remove it",
        ),
        (
            "[providers.\"a\\u001b\"]\napi = \"scripted\"",
            "providers.a\u{1b}: it has a line break or another control character in it; remove it",
        ),
        (
            "[providers.a]\napi = \"scripted\"\nmodels = [{ id = \"m\\n\", context_window = 1, max_tokens = 1 }]",
            "providers.a.models.0.id: it has a line break or another control character in it; remove it",
        ),
        (
            "[providers.a]\napi = \"scripted\"\nmodels = [{ id = \"m\", name = \"\\u009b\", context_window = 1, max_tokens = 1 }]",
            "providers.a.models.0.name: it has a line break or another control character in it; remove it",
        ),
        (
            "[providers.a]\napi = \"scripted\"\napi_key_env = \"sk-hush\"",
            "providers.a.api_key_env: it looks like a key; the NAME of the variable that has the key belongs here, as in \"OPENAI_API_KEY\"",
        ),
        ("[providers.a]\napi = \"scripted\"\nscript = \"\"", "providers.a.script: it names no file; set its path or remove it"),
        (
            "[providers.a]\napi = \"scripted\"\nmodels = [{ id = \"m\", context_window = 10, max_tokens = 11 }]",
            "providers.a.models.0.max_tokens: no output is larger than the context_window of 10; correct one of them",
        ),
        (
            "[providers.a]\napi = \"scripted\"\nmodels = [{ id = \"m\", context_window = 1, max_tokens = 1 }]\n\
             [defaults]\nmodel = \"a/m\"\nthinking_level = \"low\"",
            "defaults.thinking_level: the default model does not think; set reasoning = true for it, or write \"off\" or remove it",
        ),
        ("[defaults]\nmodel = \"m\"", "defaults.model: \"m\" is no PROVIDER/MODEL; write both"),
        ("[defaults]\nmodel = \"a/m\"", "defaults.model: there is no provider \"a\"; configure it or name one of scripted"),
        (
            "[providers.a]\napi = \"scripted\"\n[defaults]\nmodel = \"a/m\"",
            "defaults.model: the provider \"a\" has no model \"m\"; add it to its models",
        ),
    ] {
        assert_eq!(problems(text), [expected], "{text}");
    }
}
