//! Tools that are to be sampled by a grammar go as usual ones: no provider is told of the grammar.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use picofleet_delta::Json;
use picofleet_models::model::Model;
use picofleet_models::provider::{Context, StreamOptions};
use picofleet_models::{anthropic, openai_chat, openai_responses};
use picofleet_session::Millis;

const TOOL: &str = r#"{"name":"t","description":"d","parameters":{"type":"object","properties":{"a":{"type":"string"}}},
    "constrainedSampling":{"type":"grammar","variants":{"openai_lark":"start: /a/"}}}"#;

fn model(api: &str) -> Model {
    let text = format!(
        r#"{{"id":"m","name":"M","api":"{api}","provider":"acme","baseUrl":"http://h","reasoning":false,"input":["text"],
            "cost":{{"input":0,"output":0,"cacheRead":0,"cacheWrite":0}},"contextWindow":1000,"maxTokens":100,
            "compat":{{"supportsStrictMode":true,"supportsStrictTools":true}}}}"#
    );
    text.parse::<Json>().unwrap().to().unwrap()
}

#[test]
fn they_are_sent_without_it() {
    let text = format!(r#"{{"messages":[{{"role":"user","content":"x","timestamp":1}}],"tools":[{TOOL}]}}"#);
    let context: Context = text.parse::<Json>().unwrap().to().unwrap();
    let (options, key) = (StreamOptions::default(), "key".into());
    let bodies = [
        openai_chat::request(&model(openai_chat::API), &context, &options, Some(&key), Millis(7)).unwrap().body().to_vec(),
        openai_responses::request(&model(openai_responses::API), &context, &options, Some(&key)).unwrap().body().to_vec(),
        anthropic::request(&model(anthropic::API), &context, &options, Some(&key), Millis(7)).unwrap().body().to_vec(),
    ];
    for body in bodies {
        let text = String::from_utf8(body).unwrap();
        let body: Json = text.parse().unwrap();
        let tools = body.get("tools").and_then(Json::as_array).unwrap();
        assert_eq!(tools.iter().count(), 1, "{text}");
        assert!(text.contains(r#""name":"t""#) && !text.contains("lark") && !text.contains("grammar"), "{text}");
        assert!(!text.contains(r#""strict":true"#), "{text}");
    }
}
