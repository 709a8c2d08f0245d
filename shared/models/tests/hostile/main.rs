//! Servers that mean no good, for each API: bounded memory, one classified error, no hang, no leaked key.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail as tests do")]

mod api;
mod ends;
mod floods;
#[path = "../kit/loopback.rs"]
mod loopback;
mod strangers;

use picofleet_session::message::{AssistantMessage, StopReason};

/// Makes each of the functions a test for each API.
macro_rules! for_each_api {
    ($($scenario:ident)*) => {
        mod openai_chat {
            $(#[tokio::test] async fn $scenario() { super::$scenario(&crate::api::CHAT).await; })*
        }
        mod openai_responses {
            $(#[tokio::test] async fn $scenario() { super::$scenario(&crate::api::RESPONSES).await; })*
        }
        mod anthropic {
            $(#[tokio::test] async fn $scenario() { super::$scenario(&crate::api::ANTHROPIC).await; })*
        }
    };
}
use for_each_api;

fn error_of(message: &AssistantMessage) -> &str {
    assert_eq!(message.stop_reason, StopReason::Error, "{message:?}");
    message.error_message.as_deref().unwrap()
}
