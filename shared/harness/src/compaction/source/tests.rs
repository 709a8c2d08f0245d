use picofleet_session::Json;
use picofleet_session::message::{ImageContent, StopReason, TextContent, ThinkingContent, Usage};

use super::*;

fn user(text: &str) -> Message {
    Message::from(UserMessage { content: text.into(), timestamp: Millis(1) })
}

fn assistant(content: Vec<AssistantBlock>) -> AssistantMessage {
    AssistantMessage {
        content,
        api: String::new(),
        provider: String::new(),
        model: String::new(),
        response_model: None,
        response_id: None,
        provider_thinking_level: None,
        thinking_level: None,
        diagnostics: None,
        usage: Usage::default(),
        stop_reason: StopReason::Stop,
        deferred: None,
        error_message: None,
        raw_stop_reason: None,
        end_turn: None,
        timestamp: Millis(1),
        duration_ms: None,
    }
}

fn text(text: &str) -> AssistantBlock {
    AssistantBlock::Text(TextContent::new(text))
}

fn thinking(text: &str) -> AssistantBlock {
    AssistantBlock::Thinking(ThinkingContent { thinking: text.to_owned(), thinking_signature: None, redacted: None })
}

fn call(name: &str, arguments: &str) -> AssistantBlock {
    AssistantBlock::ToolCall(ToolCall {
        id: "c".to_owned(),
        name: name.to_owned(),
        arguments: Json::parse(arguments.as_bytes()).unwrap(),
        thought_signature: None,
        namespace: None,
        arguments_error: None,
    })
}

fn result(content: Vec<UserBlock>) -> Message {
    Message::from(ToolResultMessage {
        tool_call_id: "c".to_owned(),
        tool_name: "t".to_owned(),
        content,
        details: None,
        usage: None,
        nested_calls: None,
        is_error: false,
        timestamp: Millis(1),
        duration_ms: None,
    })
}

#[test]
fn each_kind_of_message_has_its_label() {
    let blocks =
        vec![thinking("hm"), text("I look."), call("read", r#"{"path":"a b","lines":[1,2]}"#), text("And I list."), call("list", "{}")];
    let messages = [user("hi"), Message::from(assistant(blocks)), result(vec![UserBlock::Text(TextContent::new("found"))])];
    let expected = "[User]: hi\n\n[Assistant thinking]: hm\n\n[Assistant]: I look.\nAnd I list.\n\n\
        [Assistant tool calls]: read(path=\"a b\", lines=[1,2]); list()\n\n[Tool result]: found";
    assert_eq!(transcript(&messages), expected);
}

#[test]
fn what_has_no_text_is_left_out_and_an_image_is_named() {
    let system = Message::from(SystemMessage {
        content: "secret".into(),
        sections: None,
        tools_added: None,
        tools_removed: None,
        timestamp: Millis(1),
    });
    let image = UserBlock::Image(ImageContent { data: "AAAA".to_owned(), mime_type: "image/png".to_owned() });
    let messages = [system, user(""), Message::from(assistant(Vec::new())), result(vec![image])];
    assert_eq!(transcript(&messages), "[Tool result]: [image]");
}

#[test]
fn a_long_result_is_cut_between_characters() {
    let of = |count: usize| transcript(&[result(vec![UserBlock::Text(TextContent::new("\u{1f600}".repeat(count)))])]);
    assert_eq!(of(2_000), format!("[Tool result]: {}", "\u{1f600}".repeat(2_000)));
    assert_eq!(of(2_003), format!("[Tool result]: {}\n[3 more characters left out]", "\u{1f600}".repeat(2_000)));
}

#[test]
fn a_request_is_the_same_whenever_it_is_made() {
    let messages = [user("hi")];
    assert_eq!(request(&messages, Some("tests")), request(&messages, Some("tests")));
    let [Message::System(system), Message::User(asked)] = &request(&messages, None)[..] else { panic!("two messages") };
    assert!(matches!(&system.content, TextOrBlocks::Text(text) if !text.is_empty()));
    let TextOrBlocks::Text(text) = &asked.content else { panic!("no text") };
    assert!(text.starts_with("<conversation>\n[User]: hi\n</conversation>\n\n") && !text.contains("Additional focus"), "{text}");
}

#[test]
fn the_text_of_a_summary_is_its_text_blocks() {
    assert_eq!(summary_text(&assistant(vec![thinking("hm"), text("a"), text("b")])), "a\nb");
    assert_eq!(summary_text(&assistant(vec![thinking("hm")])), "");
}
