//! Streams whose form is another one than that of the API.

use picofleet_models::http::Decoder as _;
use picofleet_models::openai_chat::OpenAiChatDecoder;
use picofleet_models::provider::StreamEvent;
use picofleet_models::sse::SseMessage;
use picofleet_session::Millis;
use picofleet_session::message::StopReason;

use crate::server::{END_CHUNKS, OPEN_HEAD, Server, all, model, text_chunk};

#[tokio::test]
async fn chunks_that_are_no_json_or_of_another_form() {
    for (data, error) in [
        ("{not json", Some("Error reading response: malformed server-sent event JSON.")),
        ("[1]", None),
        ("7", None),
        (r#"{"choices":7,"usage":"much","id":3,"model":{}}"#, None),
        (r#"{"choices":[7]}"#, None),
        (r#"{"choices":[{"delta":[],"finish_reason":7}]}"#, None),
        (r#"{"choices":[{"delta":{"content":7,"reasoning":[],"tool_calls":{},"reasoning_details":[1]}}]}"#, None),
        (r#"{"choices":[{"delta":{"tool_calls":[1,null]}}]}"#, None),
        (r#"{"choices":[{"delta":{"unheard":{"of":1}}}],"usage":{"prompt_tokens":-5,"completion_tokens":1e300}}"#, None),
    ] {
        let answer = format!("{OPEN_HEAD}event: odd\ndata: {data}\n\nevent: ping\n\n{}{END_CHUNKS}", text_chunk("x"));
        let (_, message) = all(Server::always(answer).await.ask()).await;
        match error {
            Some(error) => assert!(message.error_message.as_deref().unwrap().starts_with(error), "{message:?}"),
            None => {
                assert_eq!(message.stop_reason, StopReason::Stop, "{data}: {message:?}");
                assert_eq!(message.content.len(), 1, "{data}");
            }
        }
    }
}

/// A part costs the server two bytes; it must not cost an event.
#[test]
fn parts_of_calls_that_say_nothing_make_one_event() {
    let mut decoder = OpenAiChatDecoder::new(&model("http://h"), Millis(1));
    let mut events = Vec::new();
    for part in [r#"{"index":0}"#, "{}", r#"{"index":0,"id":"c","function":{"name":"read","arguments":""}}"#] {
        let parts = [part; 100_000].join(",");
        let data = format!(r#"{{"choices":[{{"delta":{{"tool_calls":[{parts}]}}}}]}}"#);
        assert!(decoder.message(SseMessage { event: None, data }, &mut events).is_continue());
    }
    let data = r#"{"choices":[{"delta":{"tool_calls":[{"id":"c","function":{"arguments":"{}"}}]}}]}"#.to_owned();
    assert!(decoder.message(SseMessage { event: None, data }, &mut events).is_continue());
    let delta = |text: &str| StreamEvent::ToolCallDelta { index: 0, delta: text.to_owned() };
    let start = StreamEvent::ToolCallStart { index: 0, id: String::new(), name: String::new() };
    // The begin, then one silent part of each chunk, beside the one that tells the id and the name.
    assert_eq!(events, [start, delta(""), delta(""), delta(""), delta(""), delta(""), delta("{}")]);
}
