//! Brings a draft to a whole new value by what differs.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use picofleet_delta::{Draft, DraftError, Json, JsonRef};

/// How many elements of an array may come and go for the elements that stay to be looked for in any place. Bounds the time at this
/// number times the array's length, and the memory at its square.
const EDITS_MAX: usize = 256;

/// Writes the differences between the draft's value and `new`: keys one by one, texts as appended or trimmed where they are, and arrays
/// so that kept elements are not written again. Keys that stay keep their places, new ones follow in the order of `new`.
pub(super) fn assign(root: Draft<'_>, new: Json) -> Result<(), DraftError> {
    // A stack and no recursion: values nest 512 deep.
    let mut open = vec![(root, root.get(), new)];
    while let Some((place, old, new)) = open.pop() {
        let Some(old) = old else {
            place.set(new)?;
            continue;
        };
        if old.same_revision(&new) {
            continue;
        }
        let bottom = open.len();
        if let (Some(before), Some(after)) = (old.as_object(), new.as_object()) {
            for (key, _) in before.iter().filter(|(key, _)| after.get(key).is_none()) {
                place.key(key).remove()?;
            }
            open.extend(after.iter().map(|(key, value)| (place.key(key), before.get(key).cloned(), value.clone())));
        } else if old.as_array().is_some() && new.as_array().is_some() {
            open.extend(assign_array(place, &old, &new)?);
        } else if old != new {
            place.set(new)?;
        }
        // The first one is on top: a new key goes behind those that are there.
        open[bottom..].reverse();
    }
    Ok(())
}

type Place<'t> = (Draft<'t>, Option<Json>, Json);

/// Writes which elements of an array go and come; those that change where they are are left to the caller.
fn assign_array<'t>(place: Draft<'t>, old: &Json, new: &Json) -> Result<Vec<Place<'t>>, DraftError> {
    let items = |json: &Json| -> Vec<Json> { json.as_array().into_iter().flat_map(|array| array.iter().cloned()).collect() };
    let (old, new) = (items(old), items(new));
    let prefix = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let suffix = old[prefix..].iter().rev().zip(new[prefix..].iter().rev()).take_while(|(a, b)| a == b).count();
    let (before, after) = (&old[prefix..old.len() - suffix], &new[prefix..new.len() - suffix]);
    let Alignment { changed, removed, added } = align(before, after);
    if removed.contains(&true) {
        place.retain(|index, _| index < prefix || !removed.get(index - prefix).copied().unwrap_or(false))?;
    }
    // From the front, so that every run finds what is before it in place.
    for (start, end) in added {
        place.splice(prefix + start, 0, after[start..end].to_vec())?;
    }
    Ok(changed.into_iter().map(|(a, b)| (place.index(prefix + b), Some(before[a].clone()), after[b].clone())).collect())
}

/// What becomes of the elements of an array.
struct Alignment {
    /// Places before and after of those that change where they are.
    changed: Vec<(usize, usize)>,
    /// For each place before, whether the element goes.
    removed: Vec<bool>,
    /// The runs of places after that are new.
    added: Vec<(usize, usize)>,
}

fn align(before: &[Json], after: &[Json]) -> Alignment {
    let classes = classes(before.iter().chain(after));
    let (old, new) = classes.split_at(before.len());
    let kept = common(old, new).or_else(|| subsequence(old, new)).unwrap_or_default();
    let mut alignment = Alignment { changed: Vec::new(), removed: vec![false; before.len()], added: Vec::new() };
    let (mut a, mut b) = (0, 0);
    for (next_a, next_b) in kept.into_iter().chain([(before.len(), after.len())]) {
        if next_a - a == next_b - b {
            alignment.changed.extend((a..next_a).zip(b..next_b));
        } else {
            alignment.removed[a..next_a].fill(true);
            alignment.added.extend((b < next_b).then_some((b, next_b)));
        }
        (a, b) = (next_a + 1, next_b + 1);
    }
    alignment
}

/// The places before and after of the elements that stay, as many as can be; `None` where more than [`EDITS_MAX`] come and go (Myers,
/// "An O(ND) difference algorithm and its variations").
fn common(before: &[usize], after: &[usize]) -> Option<Vec<(usize, usize)>> {
    let most = EDITS_MAX.min(before.len() + after.len());
    let mut front = Front { origin: most + 1, furthest: vec![0; 2 * most + 3] };
    let mut rounds = Vec::new();
    for edits in 0..=most {
        rounds.push(front.clone());
        for diagonal in (front.origin - edits..=front.origin + edits).step_by(2) {
            let (mut x, mut y, _) = front.after_edit(edits, diagonal);
            while before.get(x).is_some_and(|item| after.get(y) == Some(item)) {
                (x, y) = (x + 1, y + 1);
            }
            front.furthest[diagonal] = x;
            if x >= before.len() && y >= after.len() {
                return Some(walk_back(&rounds, before.len(), after.len()));
            }
        }
    }
    None
}

/// How far one gets with a number of edits: the furthest place before on each diagonal. The diagonal of the places `x` before and `y`
/// after is `origin + x - y`.
#[derive(Clone)]
struct Front {
    origin: usize,
    furthest: Vec<usize>,
}

impl Front {
    /// The places on a diagonal after one more edit, and whether that adds an element and does not remove one.
    fn after_edit(&self, edits: usize, diagonal: usize) -> (usize, usize, bool) {
        let (below, above) = (self.furthest[diagonal - 1], self.furthest[diagonal + 1]);
        let adds = diagonal == self.origin - edits || (diagonal != self.origin + edits && below < above);
        let x = if adds { above } else { below + 1 };
        (x, x + self.origin - diagonal, adds)
    }
}

/// The elements that stay on the way that led to the end.
fn walk_back(rounds: &[Front], mut x: usize, mut y: usize) -> Vec<(usize, usize)> {
    let mut kept = Vec::new();
    for (edits, front) in rounds.iter().enumerate().rev() {
        let (start, start_after, adds) = front.after_edit(edits, front.origin + x - y);
        kept.extend((start..x).zip(start_after..y).rev());
        (x, y) = match (edits, adds) {
            (0, _) => break,
            (_, true) => (start, start_after - 1),
            (_, false) => (start - 1, start_after),
        };
    }
    kept.reverse();
    kept
}

/// [`common`] where elements only go or only come, whatever their number.
fn subsequence(before: &[usize], after: &[usize]) -> Option<Vec<(usize, usize)>> {
    let (short, long) = if before.len() < after.len() { (before, after) } else { (after, before) };
    let mut wanted = short.iter().enumerate().peekable();
    let found = |(i, item): (usize, &usize)| wanted.next_if(|(_, next)| *next == item).map(|(j, _)| (i, j));
    let pairs: Vec<_> = long.iter().enumerate().filter_map(found).collect();
    let swapped = before.len() < after.len();
    (pairs.len() == short.len()).then(|| pairs.into_iter().map(|(i, j)| if swapped { (j, i) } else { (i, j) }).collect())
}

/// A number for each element that equal ones share. Costs the size of the elements, however many are alike.
fn classes<'a>(items: impl Iterator<Item = &'a Json>) -> Vec<usize> {
    let mut known: HashMap<u64, (usize, &Json)> = HashMap::new();
    let number = |(index, item)| {
        let (class, same) = *known.entry(digest(item)).or_insert((index, item));
        // Different ones with one digest are only not found to be equal to anything.
        if same == item { class } else { index }
    };
    items.enumerate().map(number).collect()
}

/// A digest of a value that does not depend on the order of its keys: the sum over the places of what stands there.
fn digest(value: &Json) -> u64 {
    let mut sum = 0_u64;
    let mut open = vec![(0_u64, value)];
    while let Some((place, value)) = open.pop() {
        let mut hasher = DefaultHasher::new();
        place.hash(&mut hasher);
        match value.as_ref() {
            JsonRef::Null => 0_u8.hash(&mut hasher),
            JsonRef::Bool(value) => (1_u8, value).hash(&mut hasher),
            JsonRef::Int(value) => (2_u8, value).hash(&mut hasher),
            JsonRef::Float(value) => (3_u8, value.to_bits()).hash(&mut hasher),
            JsonRef::String(text) => (4_u8, text.to_cow()).hash(&mut hasher),
            JsonRef::Array(items) => {
                (5_u8, items.len()).hash(&mut hasher);
                open.extend(items.iter().enumerate().map(|(index, item)| (below(place, &index), item)));
            }
            JsonRef::Object(entries) => {
                (6_u8, entries.len()).hash(&mut hasher);
                open.extend(entries.iter().map(|(key, item)| (below(place, &key), item)));
            }
        }
        sum = sum.wrapping_add(hasher.finish());
    }
    sum
}

fn below(place: u64, step: &impl std::hash::Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    (place, step).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests;
