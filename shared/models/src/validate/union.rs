//! `anyOf` and `oneOf`: which of the branches a failed value was meant for.

use picofleet_delta::{Json, ObjectRef};

use super::check::{Check, Found, Verdict, expected_one_of};
use super::schema::{Schema, named, text};

/// References that are followed to find a branch.
const REFERENCES_MAX: usize = 16;

/// Checks a union. When no branch matches, the problems of the likeliest one are the problems of the value.
pub(super) fn check(check: &mut Check<'_, '_>, branches: &[&Json], value: &Json, exactly_one: bool) {
    let (mut matching, mut undecided, mut tried) = (0_usize, None, Vec::new());
    for branch in branches {
        match check.try_value(branch, value) {
            Verdict::Matches => matching += 1,
            Verdict::Undecided(found) => {
                undecided.get_or_insert(found);
            }
            Verdict::Fails(found) => tried.push(found),
        }
    }
    // A branch that cannot be checked may be the one that matches, or one too many.
    match (matching, undecided) {
        (2.., _) if exactly_one => return check.say("matches more than one alternative"),
        (0, Some(found)) => return check.found.extend(found),
        (_, Some(found)) if exactly_one => return check.found.extend(found),
        (1.., _) => return,
        (0, None) => {}
    }
    let resolved: Vec<&Json> = branches.iter().map(|branch| resolve(check.schema, branch)).collect();
    let chosen = match value.as_object() {
        Some(members) => match tag(&resolved) {
            Some((name, tags)) => match tags.iter().position(|tag| members.get(name) == Some(*tag)) {
                Some(index) => Some(index),
                None => return check.at(name, |check| check.say(expected_one_of(&tags))),
            },
            None => likeliest(&tried, |index| declared(resolved[index], members)),
        },
        None => likeliest(&tried, |_| 0),
    };
    match chosen.and_then(|index| tried.into_iter().nth(index)) {
        Some(found) => check.found.extend(found),
        None => check.say("matches no alternative"),
    }
}

fn resolve<'a>(schema: &Schema<'a>, branch: &'a Json) -> &'a Json {
    let mut at = branch;
    for _ in 0..REFERENCES_MAX {
        match text(at, "$ref").and_then(|reference| schema.resolve(&reference)) {
            Some(target) => at = target,
            None => break,
        }
    }
    at
}

/// The property whose constant tells the branches apart, with the constants.
fn tag<'a>(branches: &[&'a Json]) -> Option<(&'a str, Vec<&'a Json>)> {
    let first = branches.first()?;
    let constant = |branch: &'a Json, name: &str| branch.get("properties")?.get(name)?.get("const");
    named(first, "properties").into_iter().find_map(|(name, _)| {
        let tags: Option<Vec<&Json>> = branches.iter().map(|branch| constant(branch, name)).collect();
        let tags = tags?;
        let distinct = tags.iter().enumerate().all(|(index, tag)| !tags[..index].contains(tag));
        distinct.then_some((name, tags))
    })
}

/// How many keys of a value a branch speaks of.
fn declared(branch: &Json, members: ObjectRef<'_>) -> usize {
    members.keys().filter(|name| branch.get("properties").is_some_and(|properties| properties.get(name).is_some())).count()
}

/// The first branch of those with the highest rank whose first problem has the longest path.
fn likeliest(tried: &[Vec<Found>], rank: impl Fn(usize) -> usize) -> Option<usize> {
    let mut best: Option<(usize, (usize, usize))> = None;
    for (index, found) in tried.iter().enumerate() {
        let score = (rank(index), found.first().map_or(0, |found| found.reach));
        if best.is_none_or(|(_, own)| score > own) {
            best = Some((index, score));
        }
    }
    best.map(|(index, _)| index)
}
