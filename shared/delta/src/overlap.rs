//! How much of the end of one string is the start of another.

use crate::text::StrRef;

/// Units of the old string that an emitter searches, from its end.
pub const DEFAULT_SCAN: usize = 65_536;

/// Units of the new string that a candidate must match before it is looked at.
pub const DEFAULT_PROBE: usize = 64;

/// Candidates that are looked at for each probe length, so that repetitive text cannot cost quadratic time.
pub const DEFAULT_CANDIDATES: usize = 8;

/// The number of UTF-16 units that the end of `before` shares with the start of `after`.
///
/// The last `scan` units of `before` are searched for the first `probe` units of `after`, then for its first unit. At
/// most `max_candidates` places are examined each time, from left to right; the first that matches to the end wins.
/// The result is a good overlap, and 0 when the search gives up.
pub fn overlap(before: &str, after: &str, scan: usize, probe: usize, max_candidates: usize) -> usize {
    let before: Vec<u16> = before.encode_utf16().collect();
    let after: Vec<u16> = after.encode_utf16().collect();
    search(&before[before.len() - scan.min(before.len())..], &after, probe, max_candidates)
}

/// [`overlap`] with the default limits. Copies the searched window, not the texts.
pub(crate) fn overlap_texts(before: StrRef<'_>, after: StrRef<'_>) -> usize {
    let units = before.utf16_len();
    let tail = window(before, units - DEFAULT_SCAN.min(units), units);
    let head = window(after, 0, DEFAULT_SCAN);
    search(&tail, &head, DEFAULT_PROBE, DEFAULT_CANDIDATES)
}

/// The units from `from` to `to` of a text, or to its end.
fn window(text: StrRef<'_>, from: usize, to: usize) -> Vec<u16> {
    // A window may begin or end inside a pair: then the pair is read whole and cut as units.
    let (start, cut) = match text.byte_of_utf16(from) {
        Ok(start) => (start, 0),
        Err(_) => (text.byte_of_utf16(from.saturating_sub(1)).unwrap_or(0), 1),
    };
    let end = text.byte_of_utf16(to).or_else(|_| text.byte_of_utf16(to.saturating_add(1))).unwrap_or_else(|_| text.len());
    let mut units: Vec<u16> = text.byte_slice(start, end).encode_utf16().skip(cut).collect();
    units.truncate(to - from);
    units
}

fn search(tail: &[u16], after: &[u16], probe: usize, max_candidates: usize) -> usize {
    if after.is_empty() {
        return 0;
    }
    let long = probe.min(after.len());
    let short = (long > 1).then_some(1);
    std::iter::once(long).chain(short).find_map(|probe| matching(tail, after, probe, max_candidates)).unwrap_or(0)
}

fn matching(tail: &[u16], after: &[u16], probe: usize, max_candidates: usize) -> Option<usize> {
    // `windows` refuses a length of 0; an empty probe matches everywhere.
    let head = &after[..probe];
    (0..tail.len())
        .filter(|&at| tail[at..].starts_with(head))
        .take(max_candidates)
        .find(|&at| after.starts_with(&tail[at..]))
        .map(|at| tail.len() - at)
}
