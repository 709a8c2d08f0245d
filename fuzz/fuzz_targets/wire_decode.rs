//! Compressed batches: the decoder refuses or understands, and what it understands survives the encoder.
//!
//! An input is the JSON text of a stream: an array of batches.
#![no_main]

use libfuzzer_sys::fuzz_target;
use picofleet_delta::{Json, ops_from_json, ops_to_json, wire};

fuzz_target!(|data: &[u8]| {
    let Ok(stream) = Json::parse(data) else { return };
    let (mut decoder, mut encoder, mut again) = (wire::Decoder::new(), wire::Encoder::new(), wire::Decoder::new());
    for batch in stream.as_array().into_iter().flatten() {
        let Ok(ops) = decoder.decode(batch) else { return };
        assert!(ops_from_json(&ops_to_json(&ops)).as_ref() == Ok(&ops));
        let encoded = encoder.encode(&ops);
        let sent = Json::parse_envelope(&encoded.to_vec()).expect("a batch adds few levels to its payloads");
        assert!(again.decode(&sent).as_ref() == Ok(&ops));
    }
});
