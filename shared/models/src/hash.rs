//! The short hash that shortens tool call ids.

/// A hash of the UTF-16 units of a text in base 36: two multiplicative hashes of 32 bits that are mixed at the end, the
/// second one first. It tells ids apart; it protects nothing.
#[must_use]
pub fn short_hash(text: &str) -> String {
    let (mut first, mut second) = (0xdead_beef_u32, 0x41c6_ce57_u32);
    for unit in text.encode_utf16() {
        first = (first ^ u32::from(unit)).wrapping_mul(2_654_435_761);
        second = (second ^ u32::from(unit)).wrapping_mul(1_597_334_677);
    }
    first = (first ^ (first >> 16)).wrapping_mul(2_246_822_507) ^ (second ^ (second >> 13)).wrapping_mul(3_266_489_909);
    second = (second ^ (second >> 16)).wrapping_mul(2_246_822_507) ^ (first ^ (first >> 13)).wrapping_mul(3_266_489_909);
    base36(second) + &base36(first)
}

fn base36(mut value: u32) -> String {
    let mut digits = Vec::new();
    loop {
        digits.extend(char::from_digit(value % 36, 36));
        value /= 36;
        if value == 0 {
            return digits.iter().rev().collect();
        }
    }
}
