//! `models list` and `models test`.

use crate::place::Place;
use crate::server::{APIS, Api, KEY, Manner, Server, acme};

const KEYED: &str = "api_key_env = \"ACME_KEY\"\nhttp = { environment_proxies = false }\n";

fn place(api: Api, server: &Server, more: &str) -> Place {
    let mut place = Place::new();
    place.write("picofleet.toml", &acme(api, &format!("http://127.0.0.1:{}", server.port), more));
    place.set("ACME_KEY", KEY);
    place
}

/// The line about one probe.
fn line<'a>(text: &'a str, what: &str) -> &'a str {
    text.lines().find(|line| line.starts_with(what)).unwrap_or_else(|| panic!("no line {what:?} in {text}"))
}

#[tokio::test]
async fn a_model_is_tried_for_a_stream_a_call_and_an_error() {
    for api in APIS {
        let server = Server::start(api, Manner::Good).await;
        let text = place(api, &server, KEYED).run(&["models", "test", "acme/m"]).await.with(0);
        assert!(line(&text, "streamed answer").contains("yes     2 pieces, 7 tokens in, 2 out"), "{}: {text}", api.name);
        assert!(line(&text, "tool call").contains("yes     get_time {\"city\":\"Paris\"}"), "{}: {text}", api.name);
        let error = line(&text, "error");
        assert!(error.contains("yes ") && error.contains("404") && error.contains("there is no such model"), "{}: {text}", api.name);
        let received = server.received();
        assert_eq!(received.len(), 3);
        for request in received {
            assert!(request.head.starts_with(&format!("POST {}", api.path)), "{}", request.head);
            let key = request.header("authorization").or_else(|| request.header("x-api-key")).unwrap();
            assert!(key.ends_with(KEY), "{key}");
        }
        assert!(!text.contains("hush"), "{text}");
    }
}

#[tokio::test]
async fn a_model_that_only_talks_does_not_work() {
    for api in APIS {
        let server = Server::start(api, Manner::Talks).await;
        let text = place(api, &server, KEYED).run(&["models", "test", "acme/m"]).await.with(1);
        assert!(line(&text, "streamed answer").contains("yes "), "{text}");
        assert!(line(&text, "tool call").contains("no      the model answered without a call"), "{text}");
        assert!(line(&text, "error").contains("a model that does not exist gave an answer"), "{text}");
        assert!(text.contains("error: 2 of 3 did not work"), "{text}");
    }
}

#[tokio::test]
async fn a_call_that_breaks_off_and_a_server_that_is_busy_do_not_work() {
    for api in APIS {
        let server = Server::start(api, Manner::Breaks).await;
        let text = place(api, &server, KEYED).run(&["models", "test", "acme/m"]).await.with(1);
        assert!(line(&text, "streamed answer").contains("yes "), "{text}");
        assert!(line(&text, "tool call").contains(" no "), "{}: {text}", api.name);
        let error = line(&text, "error ");
        assert!(error.contains("no      the server did not refuse the model: ") && error.contains("429"), "{}: {text}", api.name);
        assert!(text.contains("error: 2 of 3 did not work"), "{text}");
    }
}

/// A terminal would obey them, and lines of the table would look as if they were the program's.
#[tokio::test]
async fn escape_sequences_and_line_breaks_of_a_server_are_shown_and_not_obeyed() {
    for api in APIS {
        let server = Server::start(api, Manner::Steers).await;
        let text = place(api, &server, KEYED).run(&["models", "test", "acme/m"]).await.with(1);
        let call = line(&text, "tool call");
        assert!(call.contains("no      it called get\\u{1b}[2J\\ntime, and only get_time was offered"), "{}: {text}", api.name);
        assert_eq!(text.lines().count(), 6, "{text}");
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
        assert!(line(&text, "error ").contains("404"), "{text}");
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_key_that_is_no_text_is_told() {
    use std::os::unix::ffi::OsStringExt as _;

    let mut place = Place::new();
    place.write("picofleet.toml", &acme(APIS[0], "http://127.0.0.1:1", KEYED));
    place.set("ACME_KEY", std::ffi::OsString::from_vec(b"hush\xff".to_vec()));
    let text = place.run(&["models", "list"]).await.with(0);
    assert!(line(&text, "provider acme").contains("the environment variable ACME_KEY: it is not UTF-8"), "{text}");
    assert!(!text.contains("hush"), "{text}");
}

/// No request is made with it.
#[tokio::test]
async fn a_key_that_no_header_can_have_is_told_with_its_variable_or_file() {
    let mut place = Place::new();
    place.set("ACME_KEY", "hush\nhush");
    place.write("key", "hush\u{7}hush");
    for (more, expected) in [
        (KEYED, "the environment variable ACME_KEY: it has several lines; it must have the key alone"),
        ("api_key_file = \"key\"\n", "the file key: it has a control character in it; it must have the key alone"),
    ] {
        place.write("picofleet.toml", &acme(APIS[0], "http://127.0.0.1:1", more));
        for (command, code) in [(&["models", "list"][..], 0), (&["models", "test", "acme/m"], 1)] {
            let text = place.run(command).await.with(code);
            assert!(text.contains(expected) && !text.contains("hush"), "{text}");
        }
    }
}

/// A server that repeats all that it was told, with the key in its usual header and in one of the user's.
#[tokio::test]
async fn a_server_that_repeats_the_request_gives_no_key_away() {
    let other = "headers = { x-goog-api-key = \"sk-hush-0123456789\" }\nhttp = { environment_proxies = false }\n";
    for api in APIS {
        for more in [KEYED, other] {
            let server = Server::start(api, Manner::Refuses).await;
            let text = place(api, &server, more).run(&["models", "test", "acme/m"]).await.with(1);
            assert!(line(&text, "streamed answer").contains("you sent POST"), "{text}");
            for what in ["tool call", "error "] {
                assert!(line(&text, what).contains("-       not tried, since the key was refused"), "{text}");
            }
            assert!(text.contains("error: 1 of 1 did not work; the rest was not tried, since the key was refused"), "{text}");
            assert!(text.contains("[redacted]") && !text.contains("hush"), "{text}");
            assert!(server.received()[0].head.contains(KEY));
            assert_eq!(server.received().len(), 1);
        }
    }
}

#[tokio::test]
async fn a_server_without_keys_is_asked_without_one() {
    for api in APIS {
        let server = Server::start(api, Manner::Good).await;
        let place = place(api, &server, "http = { environment_proxies = false }\n");
        place.run(&["config", "check"]).await.with(0);
        place.run(&["models", "test", "acme/m"]).await.with(0);
        let head = server.received()[0].head.to_lowercase();
        assert!(!head.contains("authorization") && !head.contains("api-key"), "{head}");
    }
}

#[tokio::test]
async fn the_built_in_model_is_tried_without_a_server() {
    let text = Place::new().run(&["models", "test", "scripted/demo"]).await.with(0);
    assert!(line(&text, "tool call").contains("yes     bash"), "{text}");
    assert!(line(&text, "error").contains("-       does not apply"), "{text}");
}

#[tokio::test]
async fn a_model_that_is_not_there_is_told() {
    for (name, expected) in [("acme/other", "there is no model acme/other"), ("m", "\"m\" is no PROVIDER/MODEL")] {
        let text = Place::new().run(&["models", "test", name]).await.with(64);
        assert!(text.contains(expected), "{text}");
    }
}

#[tokio::test]
async fn a_server_that_is_away_ends_the_test() {
    for api in APIS {
        let server = Server::start(api, Manner::Good).await;
        let place = place(api, &server, KEYED);
        drop(server);
        let text = place.run(&["models", "test", "acme/m"]).await.with(1);
        assert!(line(&text, "streamed answer").contains("no      Connection error"), "{text}");
        for what in ["tool call", "error "] {
            assert!(line(&text, what).contains("-       not tried, since the server was not reached"), "{text}");
        }
        assert!(!text.contains("hush"), "{text}");
    }
}

/// As with a wrong `base_url`: a refusal of a model that does not exist says nothing then. Pages of servers are long.
#[tokio::test]
async fn a_server_that_has_nothing_there_fails_all_and_its_page_is_cut() {
    for api in APIS {
        let server = Server::start(api, Manner::Lost).await;
        let text = place(api, &server, KEYED).run(&["models", "test", "acme/m"]).await.with(1);
        assert!(line(&text, "streamed answer").contains("nothing is here"), "{text}");
        assert!(line(&text, "error ").contains("no      an ordinary request fails as well: "), "{text}");
        assert!(text.contains("error: 3 of 3 did not work"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() < 2200), "{text}");
        assert_eq!(server.received().len(), 3);
    }
}

/// What is tried and how long it may take is said before the answer comes.
#[tokio::test]
async fn a_server_that_stalls_is_not_waited_for_in_silence() {
    let server = Server::start(APIS[0], Manner::Stalls).await;
    let place = place(APIS[0], &server, KEYED);
    let shown = place.start(&["models", "test", "acme/m"]).until("streamed answer").await;
    assert!(shown.contains("acme/m is asked for three things; each may take up to 60 s\n"), "{shown}");
}

#[tokio::test]
async fn the_list_has_models_and_providers_that_cannot_be_used() {
    let place = Place::new();
    let file = acme(APIS[0], "http://127.0.0.1:1", "api_key_env = \"ACME_KEY\"\n");
    place.write("picofleet.toml", &format!("{file}[defaults]\nmodel = \"acme/m\"\n"));
    let text = place.run(&["models", "list"]).await.with(0);
    let own = line(&text, "acme/m (default)");
    assert!(own.contains("openai-completions") && own.contains("100000") && own.contains("1000"), "{text}");
    assert!(line(&text, "scripted/demo").contains("200000"), "{text}");
    assert!(
        line(&text, "provider acme").contains("can't be used: read a key from the environment variable ACME_KEY: it is not set"),
        "{text}"
    );
}

#[tokio::test]
async fn the_list_shows_what_is_missing() {
    let place = Place::new();
    let provider = |id: &str, api: &str, more: &str| format!("[providers.{id}]\napi = \"{api}\"\n{more}\n");
    let https = "base_url = \"https://127.0.0.1:1\"\n";
    place.write(
        "picofleet.toml",
        &[
            provider("a", "openai-responses", &format!("{https}api_key_env = \"ACME_KEY\"")),
            provider("b", "openai-responses", &format!("{https}api_key_file = \"no-key\"")),
            provider("c", "openai-responses", &format!("{https}ca_file = \"no-ca\"")),
            provider("d", "scripted", "script = \"no-script\""),
        ]
        .concat(),
    );
    assert!(place.run(&["config", "check"]).await.with(0).contains("`picofleet models list` shows them"));
    let text = place.run(&["models", "list"]).await.with(0);
    for (id, expected) in [("a", "ACME_KEY: it is not set"), ("b", "the file no-key"), ("c", "in no-ca"), ("d", "the script no-script")] {
        assert!(line(&text, &format!("provider {id} can't be used: ")).contains(expected), "{text}");
    }
}
