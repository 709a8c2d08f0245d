//! Text without unpaired surrogates.

/// The text of UTF-16 units, without the surrogates that have no partner.
///
/// A Rust text cannot hold them at all, so this is where text that comes in as units becomes one. Nothing remains to do
/// for text that goes out.
#[must_use]
pub fn sanitize_surrogates(units: &[u16]) -> String {
    char::decode_utf16(units.iter().copied()).filter_map(Result::ok).collect()
}
