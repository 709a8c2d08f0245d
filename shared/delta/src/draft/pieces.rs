//! Which items an edited array holds, as runs of where they came from.

use std::ops::Range;

/// Identifies an item for the life of a change: its index in the base array, or a fresh number past the base's length.
pub(super) type Origin = u64;

/// Items with consecutive origins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    origin: Origin,
    len: u64,
}

/// The items of an array in order.
///
/// Invariant: no origin occurs twice, no piece is empty, and neighbours that continue each other are one piece.
#[derive(Debug)]
pub(super) struct Pieces {
    list: Vec<Piece>,
    base_len: u64,
    next: Origin,
}

/// A run in the current order: where it stands, and where its items came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) index: usize,
    pub(super) origins: Range<Origin>,
}

/// The edits that lead from the base array to the current one, in the order in which they apply.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Structure {
    /// Removed runs as (index, length), from the highest to the lowest.
    pub(super) removed: Vec<(usize, usize)>,
    /// How the survivors moved, if they did: `new[i] = old[order[i]]`.
    pub(super) order: Option<Vec<usize>>,
    /// Inserted runs as (index, length), from the lowest to the highest.
    pub(super) inserted: Vec<(usize, usize)>,
}

/// Converts between counts of items that exist in memory and origins.
#[expect(clippy::cast_possible_truncation, reason = "a count of items in memory")]
fn count(n: u64) -> usize {
    n as usize
}

impl Pieces {
    pub(super) fn new(len: usize) -> Pieces {
        let base_len = len as u64;
        let mut list = Vec::new();
        push(&mut list, 0..base_len);
        // The origin between is left out, so that a fresh run never continues a base run.
        Pieces { list, base_len, next: base_len + 1 }
    }

    pub(super) fn base_len(&self) -> Origin {
        self.base_len
    }

    pub(super) fn runs(&self) -> impl Iterator<Item = Run> {
        self.list.iter().scan(0, |index, piece| {
            let run = Run { index: count(*index), origins: piece.origin..piece.origin + piece.len };
            *index += piece.len;
            Some(run)
        })
    }

    pub(super) fn origin_at(&self, index: usize) -> Option<Origin> {
        let index = index as u64;
        self.runs().find_map(|run| {
            let at = run.origins.start + index.checked_sub(run.index as u64)?;
            run.origins.contains(&at).then_some(at)
        })
    }

    pub(super) fn index_of(&self, origin: Origin) -> Option<usize> {
        self.runs().find(|run| run.origins.contains(&origin)).map(|run| run.index + count(origin - run.origins.start))
    }

    /// Replaces a range, which the caller keeps inside the array, by fresh items. Returns what went.
    pub(super) fn splice(&mut self, index: usize, remove: usize, insert: usize) -> Vec<Range<Origin>> {
        let (from, to) = (index as u64, (index + remove) as u64);
        let mut list = Vec::with_capacity(self.list.len() + 2);
        let mut removed = Vec::new();
        let fresh = self.next..self.next + insert as u64;
        let mut placed = false;
        self.next = fresh.end;
        for Run { index, origins } in self.runs() {
            let start = index as u64;
            let end = start + (origins.end - origins.start);
            let at = |position: u64| origins.start + position.clamp(start, end) - start;
            push(&mut list, origins.start..at(from));
            if !placed && end >= from {
                push(&mut list, fresh.clone());
                placed = true;
            }
            if at(from) < at(to) {
                removed.push(at(from)..at(to));
            }
            push(&mut list, at(to)..origins.end);
        }
        if !placed {
            push(&mut list, fresh);
        }
        self.list = list;
        removed
    }

    /// `new[i] = old[order[i]]`. The caller passes a permutation.
    pub(super) fn permute(&mut self, order: &[usize]) {
        let old: Vec<Origin> = self.runs().flat_map(|run| run.origins).collect();
        let mut list = Vec::new();
        for &from in order {
            push(&mut list, old[from]..old[from] + 1);
        }
        self.list = list;
    }

    /// Keeps the items whose flag is set; there is one for each item. Returns what went.
    pub(super) fn retain(&mut self, keep: &[bool]) -> Vec<Range<Origin>> {
        let mut list = Vec::new();
        let mut removed: Vec<Piece> = Vec::new();
        for (origin, &keep) in self.runs().flat_map(|run| run.origins).zip(keep) {
            push(if keep { &mut list } else { &mut removed }, origin..origin + 1);
        }
        self.list = list;
        removed.into_iter().map(|piece| piece.origin..piece.origin + piece.len).collect()
    }

    pub(super) fn structure(&self) -> Structure {
        let mut inserted: Vec<(usize, usize)> = Vec::new();
        let mut kept: Vec<Range<Origin>> = Vec::new();
        for Run { index, origins } in self.runs() {
            if origins.start < self.base_len {
                kept.push(origins);
                continue;
            }
            let len = count(origins.end - origins.start);
            match inserted.last_mut() {
                Some((start, before)) if *start + *before == index => *before += len,
                _ => inserted.push((index, len)),
            }
        }
        Structure { removed: self.gaps(&kept), order: order_of(&kept), inserted }
    }

    fn gaps(&self, kept: &[Range<Origin>]) -> Vec<(usize, usize)> {
        let mut sorted = kept.to_vec();
        sorted.sort_unstable_by_key(|run| run.start);
        let ends = std::iter::once(0).chain(sorted.iter().map(|run| run.end));
        let starts = sorted.iter().map(|run| run.start).chain([self.base_len]);
        let mut gaps: Vec<_> =
            ends.zip(starts).filter(|(end, start)| end < start).map(|(end, start)| (count(end), count(start - end))).collect();
        gaps.reverse();
        gaps
    }
}

/// Appends a run, joined to the last one where it continues it.
fn push(list: &mut Vec<Piece>, origins: Range<Origin>) {
    if origins.is_empty() {
        return;
    }
    let len = origins.end - origins.start;
    match list.last_mut() {
        Some(last) if last.origin + last.len == origins.start => last.len += len,
        _ => list.push(Piece { origin: origins.start, len }),
    }
}

fn order_of(kept: &[Range<Origin>]) -> Option<Vec<usize>> {
    if kept.is_sorted_by_key(|run| run.start) {
        return None;
    }
    let mut sorted = kept.to_vec();
    sorted.sort_unstable_by_key(|run| run.start);
    let mut rank = 0;
    let ranks: std::collections::BTreeMap<Origin, usize> = sorted
        .iter()
        .map(|run| {
            let own = rank;
            rank += count(run.end - run.start);
            (run.start, own)
        })
        .collect();
    Some(kept.iter().flat_map(|run| ranks[&run.start]..ranks[&run.start] + count(run.end - run.start)).collect())
}
