//! Anthropic Messages: bytes become events that end once, the same in one piece and in two (see `decoding.rs`).
#![no_main]

mod decoding;

use libfuzzer_sys::fuzz_target;
use picofleet_models::anthropic::{API, AnthropicDecoder};
use picofleet_session::Millis;

fuzz_target!(|input: &[u8]| decoding::check(input, || AnthropicDecoder::new(&decoding::model(API), Millis(7))));
