//! Streams whose form is another one than that of the API.

use picofleet_session::message::StopReason;

use crate::server::{END_CHUNKS, OPEN_HEAD, Server, all, text_chunk};

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
