//! What holds for any input.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use picofleet_delta::Json;
use picofleet_models::anthropic::AnthropicDecoder;
use picofleet_models::arguments::{self, ArgumentsStream};
use picofleet_models::http::{Decoder, StreamEnd};
use picofleet_models::openai_chat::OpenAiChatDecoder;
use picofleet_models::openai_responses::ResponsesDecoder;
use picofleet_models::provider::StreamEvent;
use picofleet_models::sse::SseMessage;
use picofleet_models::{hash, js, sanitize, validate};
use picofleet_session::Millis;
use picofleet_session::message::{ToolCall, ToolDeclaration};
use proptest::prelude::*;

/// Values of every kind, with keys that JavaScript reorders.
fn any_json() -> impl Strategy<Value = Json> {
    let scalar = prop_oneof![
        Just(Json::null()),
        any::<bool>().prop_map(Json::from),
        (-5_i64..50).prop_map(Json::from),
        any::<f64>().prop_filter_map("finite", |value| Json::try_from(value).ok()),
        "[a-z0-9 😀\\\\\"\n]{0,6}".prop_map(Json::from),
    ];
    scalar.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(|items| items.into_iter().collect::<Json>()),
            prop::collection::vec(("[a-c0-3]{1,2}", inner), 0..4).prop_map(Json::object),
        ]
    })
}

/// Schemas that mean something often enough.
fn any_schema() -> impl Strategy<Value = Json> {
    let types = prop::sample::select(&["string", "number", "integer", "boolean", "null", "object", "array", "weird"][..]);
    let leaf = prop_oneof![
        Just(Json::build_object().build()),
        any::<bool>().prop_map(Json::from),
        types.clone().prop_map(|name| Json::build_object().with("type", name).build()),
        prop::collection::vec(types, 0..3).prop_map(|names| Json::build_object().with("type", Json::array(names)).build()),
        prop::sample::select(&["#", "#/a", "x#y", "#/$defs/0", "~"][..]).prop_map(|at| Json::build_object().with("$ref", at).build()),
        ("[a-c(\\[{\\\\*+^$?]{0,5}", 0_i64..4)
            .prop_map(|(pattern, size)| Json::build_object().with("pattern", pattern).with("maxLength", size).build()),
    ];
    leaf.prop_recursive(4, 24, 3, |inner| {
        let keyword = prop::sample::select(&["anyOf", "oneOf", "allOf", "prefixItems", "items", "enum", "required"][..]);
        let one = prop::sample::select(
            &["items", "additionalProperties", "not", "if", "then", "contains", "propertyNames", "unevaluatedProperties", "const", "type"]
                [..],
        );
        let named = prop::sample::select(&["properties", "patternProperties", "dependentSchemas", "$defs"][..]);
        prop_oneof![
            (keyword, prop::collection::vec(inner.clone(), 0..3))
                .prop_map(|(keyword, parts)| Json::object([(keyword, Json::array(parts))])),
            (one, inner.clone(), any::<bool>()).prop_map(|(keyword, part, object)| {
                let builder = Json::build_object().with(keyword, part);
                if object { builder.with("type", "object").build() } else { builder.build() }
            }),
            (named, prop::collection::vec(("[a-c0-3]{1,2}", inner), 0..3))
                .prop_map(|(keyword, parts)| Json::object([(keyword, Json::object(parts))])),
        ]
    })
}

fn call(arguments: Json) -> ToolCall {
    ToolCall { id: "c".to_owned(), name: "x".to_owned(), arguments, thought_signature: None, namespace: None, arguments_error: None }
}

fn tool(parameters: Json) -> ToolDeclaration {
    ToolDeclaration { name: "x".to_owned(), description: String::new(), parameters, constrained_sampling: None }
}

/// Cuts a text at places given as parts of its length.
fn pieces(text: &str, cuts: &[f64]) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a place in a short text")]
    let mut places: Vec<usize> = cuts.iter().map(|cut| (cut * chars.len() as f64) as usize).collect();
    places.extend([0, chars.len()]);
    places.sort_unstable();
    places.windows(2).map(|pair| chars[pair[0]..pair[1]].iter().collect()).collect()
}

/// True when a partial value can still become the whole one: texts are starts, lists are starts, members are fewer.
fn is_partial_of(partial: &Json, whole: &Json) -> bool {
    if let (Some(partial), Some(whole)) = (partial.as_str(), whole.as_str()) {
        return whole.starts_with(&*partial);
    }
    if let (Some(partial), Some(whole)) = (partial.as_array(), whole.as_array()) {
        return partial.len() <= whole.len() && partial.iter().zip(whole.iter()).all(|(a, b)| is_partial_of(a, b));
    }
    if let (Some(partial), Some(whole)) = (partial.as_object(), whole.as_object()) {
        return partial.iter().all(|(key, value)| whole.get(key).is_some_and(|own| is_partial_of(value, own)));
    }
    // A number grows digit by digit; words are complete.
    partial == whole || (partial.as_f64().is_some() && whole.as_f64().is_some())
}

proptest! {
    #[test]
    fn streaming_takes_anything_in_any_pieces(text in "[\\[\\]{}\",:0-9.eE+\\-truefalsn\\\\u\n a😀]{0,40}", cuts in prop::collection::vec(0.0..1.0, 0..6)) {
        let mut stream = ArgumentsStream::default();
        for piece in pieces(&text, &cuts) {
            stream.push(&piece);
        }
        prop_assert_eq!(stream.text(), &text);
        prop_assert_eq!(stream.partial(), arguments::parse_streaming_json(&text));
        prop_assert_eq!(stream.finish(), arguments::parse_tool_call_arguments(&text));
    }

    #[test]
    fn every_start_of_an_object_streams_to_a_part_of_it(value in any_json()) {
        let value = Json::build_object().with("a", value).build();
        let text = value.to_string();
        for end in (0..=text.len()).filter(|end| text.is_char_boundary(*end)) {
            let partial = arguments::parse_streaming_json(&text[..end]);
            prop_assert!(is_partial_of(&partial, &value), "{} of {}", partial, text);
        }
        prop_assert_eq!(arguments::parse_streaming_json(&text), value.clone());
        prop_assert_eq!(arguments::parse_tool_call_arguments(&text).arguments, value);
    }

    #[test]
    fn the_tolerant_decoder_agrees_with_the_strict_one(text in "[\\[\\]{}\",:0-9.eE+\\-truefalsn\\\\u\n a😀]{0,24}") {
        if let Ok(strict) = text.parse::<Json>() {
            prop_assert_eq!(arguments::decode(&text).ok(), Some(strict));
        }
    }

    #[test]
    fn written_text_is_read_back(value in any_json()) {
        prop_assert_eq!(arguments::decode(&js::stringify(&value)).ok(), Some(value.clone()));
        prop_assert_eq!(arguments::decode(&js::stringify_pretty(&value)).ok(), Some(value.clone()));
        prop_assert_eq!(js::stringify_len(&value), js::utf16_len(&js::stringify(&value)));
    }

    #[test]
    fn sanitizing_twice_is_sanitizing_once(units in prop::collection::vec(prop_oneof![any::<u16>(), 0xd7f0_u16..0xe010], 0..20)) {
        let once = sanitize::sanitize_surrogates(&units);
        let again: Vec<u16> = once.encode_utf16().collect();
        prop_assert_eq!(&sanitize::sanitize_surrogates(&again), &once);
        prop_assert!(hash::short_hash(&once).len() <= 14);
    }

    #[test]
    fn validation_takes_any_schema_and_keeps_what_it_accepted(schema in any_schema(), value in any_json()) {
        let tool = tool(schema);
        if let Ok(accepted) = validate::validate_tool_arguments(&tool, &call(value)) {
            let again = validate::validate_tool_arguments(&tool, &call(accepted));
            prop_assert!(again.is_ok(), "{:?}", again);
        }
    }
}

/// A thread of 2 MiB, as tests and workers have, holds the deepest validation.
#[test]
fn validation_is_bounded_in_depth() {
    let nested = |open: &str, inner: &str, close: &str, depth: usize| -> Json {
        (open.repeat(depth) + inner + &close.repeat(depth)).parse().unwrap()
    };
    let values = [nested("{\"a\":", "1", "}", 500), nested("[", "1", "]", 500)];
    let schemas = [
        nested("{\"properties\":{\"a\":", "{}", "}}", 250),
        nested("{\"anyOf\":[", "{}", "]}", 250),
        nested("{\"allOf\":[", "{\"type\":\"string\"}", "]}", 250),
        nested("{\"not\":", "{}", "}", 500),
        nested("{\"type\":[\"array\",\"object\"],\"items\":", "{}", "}", 500),
        "{\"$ref\":\"#\"}".parse().unwrap(),
        "{\"type\":[\"object\",\"array\"],\"properties\":{\"a\":{\"$ref\":\"#\"}},\"items\":{\"$ref\":\"#\"}}".parse().unwrap(),
        "{\"unevaluatedProperties\":false,\"allOf\":[{\"$ref\":\"#\"}]}".parse().unwrap(),
    ];
    for schema in &schemas {
        for value in &values {
            let result = validate::validate_tool_arguments(&tool(schema.clone()), &call(value.clone()));
            let error = result.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.is_empty() || error.starts_with("Validation failed"), "{error}");
        }
    }
}

/// Branches that multiply are cut off, with an error and in bounded time.
#[test]
fn validation_is_bounded_in_work() {
    let mut schema: Json = "{\"type\":\"object\",\"properties\":{\"z\":{\"type\":\"null\"}},\"required\":[\"z\"]}".parse().unwrap();
    for _ in 0..40 {
        schema = Json::build_object().with("anyOf", Json::array([schema.clone(), schema])).build();
    }
    let error = validate::validate_tool_arguments(&tool(schema), &call("{\"a\":1}".parse().unwrap())).unwrap_err().to_string();
    assert!(error.contains("nests too deeply or is too large to be checked"), "{}", &error[..error.len().min(300)]);
}

/// A model of an API with prices.
fn model(api: &str) -> picofleet_models::model::Model {
    let text = format!(
        r#"{{"id":"m","name":"M","api":"{api}","provider":"p","baseUrl":"http://h","reasoning":false,"input":[],
            "cost":{{"input":0,"output":0,"cacheRead":0,"cacheWrite":0}},"contextWindow":0,"maxTokens":0}}"#
    );
    text.parse::<Json>().unwrap().to().unwrap()
}

/// Blocks that a decoder takes of a server that begins one after the other and never stops.
fn blocks(mut decoder: impl Decoder, event: impl Fn(usize) -> String) -> (usize, String) {
    let mut events = Vec::new();
    let mut at = 0;
    while decoder.message(SseMessage { event: Some("content_block_start".to_owned()), data: event(at) }, &mut events).is_continue() {
        at += 1;
        assert!(at < 20_000, "it goes on and on");
    }
    decoder.end(StreamEnd::Complete, &mut events);
    let last = events.last().and_then(StreamEvent::final_message).unwrap();
    (last.content.len(), last.error_message.clone().unwrap())
}

#[test]
fn an_answer_has_no_more_than_so_many_blocks() {
    let call = |at| format!(r#"{{"choices":[{{"delta":{{"tool_calls":[{{"index":{at},"id":"c{at}","function":{{"name":"x"}}}}]}}}}]}}"#);
    let chat = blocks(OpenAiChatDecoder::new(&model("openai-completions"), Millis(0)), call);
    let item = |at| format!(r#"{{"type":"response.output_item.added","output_index":{at},"item":{{"type":"function_call","name":"x"}}}}"#);
    let responses = blocks(ResponsesDecoder::new(&model("openai-responses"), Millis(0)), item);
    let begun = |at| format!(r#"{{"type":"content_block_start","index":{at},"content_block":{{"type":"text","text":""}}}}"#);
    let anthropic = blocks(AnthropicDecoder::new(&model("anthropic-messages"), Millis(0)), begun);
    for ((count, error), api) in [(chat, "OpenAI chat completions"), (responses, "OpenAI Responses"), (anthropic, "Anthropic")] {
        assert_eq!((count, error), (10_000, format!("{api} stream has more than 10000 content blocks")));
    }
}
