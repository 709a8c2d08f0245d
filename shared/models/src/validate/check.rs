//! What of a value does not match a schema, in a fixed order of keywords.
//!
//! Some places cannot be checked: they lie beyond a limit, or a pattern has no answer. Such a place is a problem, too, but
//! one that stays a problem where a schema must *not* match: nothing is accepted because it could not be checked.

use std::collections::HashSet;

use picofleet_delta::{ArrayRef, Json, JsonRef, ObjectRef, StrRef};

use super::schema::{Schema, TOO_LARGE, is_of_type, is_schema, item_schemas, list, named, names, sub, text, type_name, types};
use super::{Problem, format, union};
use crate::js;

/// Most members of an `enum` that a message lists.
const LISTED_MAX: usize = 20;

/// The keys and indices that lead to a value.
pub(super) type Path = Vec<String>;

/// A problem with the length of the text of its path, by which unions tell how far a value got.
pub(super) struct Found {
    pub(super) reach: usize,
    /// Nobody can tell whether the place matches.
    undecided: bool,
    pub(super) problem: Problem,
}

/// A pass over a value: where it stands and what it found.
pub(super) struct Check<'s, 'a> {
    pub(super) schema: &'s Schema<'a>,
    pub(super) path: Path,
    pub(super) found: Vec<Found>,
    pub(super) depth: u32,
}

impl Schema<'_> {
    /// Every problem of a value.
    pub(super) fn check(&self, value: &Json) -> Vec<Problem> {
        let mut check = Check { schema: self, path: Path::new(), found: Vec::new(), depth: 0 };
        check.value(self.root, value);
        let mut undecided = HashSet::new();
        // More than one keyword may have come to a place that cannot be checked.
        check.found.retain(|found| !found.undecided || undecided.insert((found.problem.path.clone(), found.problem.message.clone())));
        check.found.into_iter().map(|found| found.problem).collect()
    }

    /// True when a schema finds no problem with a value.
    pub(super) fn accepts(&self, schema: &Json, value: &Json, depth: u32) -> bool {
        let mut check = Check { schema: self, path: Path::new(), found: Vec::new(), depth };
        check.value(schema, value);
        check.found.is_empty()
    }
}

/// What is known of a value and a schema.
pub(super) enum Verdict {
    Matches,
    /// Every problem is one of a place that cannot be checked.
    Undecided(Vec<Found>),
    Fails(Vec<Found>),
}

impl Check<'_, '_> {
    /// Adds a problem at the place of the value.
    pub(super) fn say(&mut self, message: impl Into<String>) {
        self.add(message.into(), false);
    }

    /// Adds that the place of the value cannot be checked.
    pub(super) fn say_undecided(&mut self, message: impl Into<String>) {
        self.add(message.into(), true);
    }

    fn add(&mut self, message: String, undecided: bool) {
        let path = self.path.join(".");
        let reach = js::utf16_len(&path);
        let path = if self.path.is_empty() { "root".to_owned() } else { path };
        self.found.push(Found { reach, undecided, problem: Problem { path, message } });
    }

    /// Runs with a key or index more in the path.
    pub(super) fn at(&mut self, key: impl Into<String>, run: impl FnOnce(&mut Self)) {
        self.path.push(key.into());
        run(self);
        self.path.pop();
    }

    /// What a schema finds here, without keeping it.
    pub(super) fn try_value(&mut self, schema: &Json, value: &Json) -> Verdict {
        let kept = std::mem::take(&mut self.found);
        self.value(schema, value);
        let found = std::mem::replace(&mut self.found, kept);
        if found.is_empty() {
            Verdict::Matches
        } else if found.iter().all(|found| found.undecided) {
            Verdict::Undecided(found)
        } else {
            Verdict::Fails(found)
        }
    }

    /// True when a schema matches here; nothing when nobody can tell, and then that is a problem of the value.
    pub(super) fn decide(&mut self, schema: &Json, value: &Json) -> Option<bool> {
        match self.try_value(schema, value) {
            Verdict::Matches => Some(true),
            Verdict::Fails(_) => Some(false),
            Verdict::Undecided(found) => {
                self.found.extend(found);
                None
            }
        }
    }

    /// Checks a value against a schema.
    pub(super) fn value(&mut self, schema: &Json, value: &Json) {
        if !self.schema.step(self.depth) {
            return self.say_undecided(TOO_LARGE);
        }
        match schema.as_ref() {
            JsonRef::Bool(false) => self.say("no value is allowed here"),
            JsonRef::Object(_) => {
                self.depth += 1;
                self.keywords(schema, value);
                self.depth -= 1;
            }
            _ => {}
        }
    }

    fn keywords(&mut self, schema: &Json, value: &Json) {
        if let Some(types) = types(schema)
            && !types.iter().any(|name| is_of_type(value, name))
        {
            return self.say(format!("expected {}, got {}", types.join(" or "), type_name(value)));
        }
        if let Some(members) = list(schema, "enum")
            && !members.contains(&value)
        {
            self.say(expected_one_of(&members));
        }
        if let Some(constant) = schema.get("const")
            && constant != value
        {
            self.say(format!("expected {}", js::stringify(constant)));
        }
        match value.as_ref() {
            JsonRef::String(text) => self.text(schema, text),
            JsonRef::Int(_) | JsonRef::Float(_) => self.number(schema, value),
            JsonRef::Object(members) => self.object(schema, value, members),
            JsonRef::Array(items) => self.array(schema, value, items),
            JsonRef::Null | JsonRef::Bool(_) => {}
        }
        self.combinations(schema, value);
    }

    fn combinations(&mut self, schema: &Json, value: &Json) {
        for part in list(schema, "allOf").unwrap_or_default() {
            self.value(part, value);
        }
        for union in ["anyOf", "oneOf"] {
            if let Some(branches) = list(schema, union) {
                union::check(self, &branches, value, union == "oneOf");
            }
        }
        if let Some(not) = sub(schema, "not")
            && self.decide(not, value) == Some(true)
        {
            self.say("must not match the schema in not");
        }
        if let Some(condition) = sub(schema, "if")
            && let Some(holds) = self.decide(condition, value)
            && let Some(branch) = sub(schema, if holds { "then" } else { "else" })
        {
            self.value(branch, value);
        }
        if let Some(reference) = text(schema, "$ref") {
            match self.schema.resolve(&reference) {
                Some(target) => self.value(target, value),
                None => self.say(format!("unresolved reference {reference}")),
            }
        }
    }

    fn text(&mut self, schema: &Json, value: StrRef<'_>) {
        let length = || value.chunks().map(|chunk| chunk.chars().count()).sum();
        self.size(schema, ["minLength", "maxLength"], "characters", length);
        if let Some(pattern) = text(schema, "pattern") {
            match self.schema.matches(&pattern, &value.to_cow()) {
                Ok(true) => {}
                Ok(false) => self.say(format!("expected to match {pattern}")),
                Err(why) => self.say_undecided(why),
            }
        }
        if let Some(name) = text(schema, "format")
            && !format::matches(&name, &value.to_cow())
        {
            self.say(format!("expected format {name}"));
        }
    }

    /// Checks a size that a schema may bound from below and above.
    fn size(&mut self, schema: &Json, [least, most]: [&str; 2], unit: &str, size: impl FnOnce() -> usize) {
        let bound = |keyword| schema.get(keyword).filter(|bound: &&Json| bound.as_f64().is_some());
        let (least, most) = (bound(least), bound(most));
        if least.is_none() && most.is_none() {
            return;
        }
        #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
        let size = size() as f64;
        if let Some(least) = least.filter(|least| least.as_f64().is_some_and(|least| size < least)) {
            self.say(format!("expected at least {least} {unit}"));
        }
        if let Some(most) = most.filter(|most| most.as_f64().is_some_and(|most| size > most)) {
            self.say(format!("expected at most {most} {unit}"));
        }
    }

    fn number(&mut self, schema: &Json, value: &Json) {
        let Some(value) = value.as_f64() else { return };
        let mut bound = |keyword, words, holds: fn(f64, f64) -> bool| {
            if let Some(bound) = schema.get(keyword)
                && bound.as_f64().is_some_and(|bound| !holds(value, bound))
            {
                self.say(format!("expected {words} {bound}"));
            }
        };
        bound("minimum", ">=", |value, bound| value >= bound);
        bound("maximum", "<=", |value, bound| value <= bound);
        bound("exclusiveMinimum", ">", |value, bound| value > bound);
        bound("exclusiveMaximum", "<", |value, bound| value < bound);
        bound("multipleOf", "a multiple of", is_multiple);
    }

    fn object(&mut self, schema: &Json, value: &Json, members: ObjectRef<'_>) {
        for name in schema.get("required").map(names).unwrap_or_default() {
            if !members.contains_key(&name) {
                self.at(name, |check| check.say("missing"));
            }
        }
        let properties = named(schema, "properties");
        for (name, own) in &properties {
            if let Some(member) = members.get(name) {
                self.at(*name, |check| check.value(own, member));
            }
        }
        let patterns = named(schema, "patternProperties");
        for (name, member) in js::entries(members) {
            let declared = properties.iter().any(|(own, _)| *own == name);
            self.at(name, |check| check.member(schema, &patterns, declared, name, member));
        }
        self.size(schema, ["minProperties", "maxProperties"], "properties", || members.len());
        self.dependencies(schema, value, members);
        if let Some(rest) = sub(schema, "unevaluatedProperties")
            && let Some(evaluated) = self.evaluated_members(schema, value)
        {
            for (name, member) in js::entries(members).into_iter().filter(|(name, _)| !evaluated.has(name)) {
                self.at(name, |check| check.rest(rest, member, "unknown field"));
            }
        }
    }

    /// Checks a member against all that does not name it.
    fn member(&mut self, schema: &Json, patterns: &[(&str, &Json)], declared: bool, name: &str, member: &Json) {
        let mut known = declared;
        for (pattern, own) in patterns {
            match self.schema.matches(pattern, name) {
                Ok(true) => self.value(own, member),
                Ok(false) => continue,
                Err(why) => self.say_undecided(why),
            }
            known = true;
        }
        if !known && let Some(rest) = sub(schema, "additionalProperties") {
            self.rest(rest, member, "unknown field");
        }
        if let Some(named) = sub(schema, "propertyNames")
            && self.decide(named, &Json::from(name)) == Some(false)
        {
            self.say("invalid property name");
        }
    }

    /// Checks a member or item that nothing else speaks of.
    fn rest(&mut self, schema: &Json, value: &Json, forbidden: &str) {
        if schema.as_bool() == Some(false) { self.say(forbidden) } else { self.value(schema, value) }
    }

    fn dependencies(&mut self, schema: &Json, value: &Json, members: ObjectRef<'_>) {
        for keyword in ["dependentRequired", "dependencies", "dependentSchemas"] {
            for (name, needed) in named(schema, keyword) {
                if !members.contains_key(name) {
                    continue;
                }
                if is_schema(needed) {
                    self.value(needed, value);
                    continue;
                }
                for other in names(needed) {
                    if !members.contains_key(&other) {
                        self.at(other, |check| check.say(format!("required when {name} is present")));
                    }
                }
            }
        }
    }

    fn array(&mut self, schema: &Json, value: &Json, items: ArrayRef<'_>) {
        let (first, rest) = item_schemas(schema);
        for (index, item) in items.iter().enumerate() {
            if let Some(own) = first.get(index).copied().or(rest) {
                self.at(index.to_string(), |check| check.value(own, item));
            }
        }
        self.size(schema, ["minItems", "maxItems"], "items", || items.len());
        if schema.get("uniqueItems").and_then(Json::as_bool) == Some(true) {
            match self.unique(items) {
                Some(true) => {}
                Some(false) => self.say("expected unique items"),
                None => self.say_undecided(TOO_LARGE),
            }
        }
        if let Some(wanted) = sub(schema, "contains") {
            self.contains(schema, wanted, items);
        }
        if let Some(rest) = sub(schema, "unevaluatedItems")
            && let Some(evaluated) = self.evaluated_items(schema, value)
        {
            for (index, item) in items.iter().enumerate().filter(|(index, _)| !evaluated.has(*index)) {
                self.at(index.to_string(), |check| check.rest(rest, item, "unexpected item"));
            }
        }
    }

    fn contains(&mut self, schema: &Json, wanted: &Json, items: ArrayRef<'_>) {
        let bound = |keyword| schema.get(keyword).and_then(Json::as_f64);
        let (least, most) = (bound("minContains").unwrap_or(1.0), bound("maxContains"));
        let (mut matching, mut undecided) = (0_u32, Vec::new());
        for item in items.iter() {
            match self.try_value(wanted, item) {
                Verdict::Matches => matching = matching.saturating_add(1),
                Verdict::Undecided(found) => undecided.push(found),
                Verdict::Fails(_) => {}
            }
        }
        let fewest = f64::from(matching);
        let highest = fewest + f64::from(u32::try_from(undecided.len()).unwrap_or(u32::MAX));
        if fewest >= least && most.is_none_or(|most| highest <= most) {
            return;
        }
        if highest >= least && most.is_none_or(|most| fewest <= most) {
            return self.found.extend(undecided.into_iter().flatten());
        }
        match most {
            Some(most) => self.say(format!("expected between {least} and {most} matching items")),
            None if least == 1.0 => self.say("expected at least 1 matching item"),
            None => self.say(format!("expected at least {least} matching items")),
        }
    }

    /// True when no item equals another; nothing when there are no steps left. Scalars are told apart by their text,
    /// containers pair by pair, which costs steps.
    fn unique(&self, items: ArrayRef<'_>) -> Option<bool> {
        let mut scalars = HashSet::new();
        let mut containers: Vec<&Json> = Vec::new();
        for item in items.iter() {
            if !item.is_container() {
                if !scalars.insert(item.to_string()) {
                    return Some(false);
                }
                continue;
            }
            for other in &containers {
                if !self.schema.step(0) {
                    return None;
                }
                if *other == item {
                    return Some(false);
                }
            }
            containers.push(item);
        }
        Some(true)
    }
}

/// `expected one of [...]`, with the first members.
pub(super) fn expected_one_of(members: &[&Json]) -> String {
    let listed: Vec<String> = members.iter().take(LISTED_MAX).map(|member| js::stringify(member)).collect();
    let more = members.len().saturating_sub(LISTED_MAX);
    let tail = if more > 0 { format!(", ... and {more} more") } else { String::new() };
    format!("expected one of [{}{tail}]", listed.join(","))
}

/// True when the quotient is whole, as far as doubles can tell.
fn is_multiple(value: f64, of: f64) -> bool {
    /// How far a quotient may be from a whole number, as a share of it.
    const TOLERANCE: f64 = 1e-9;
    let quotient = value / of;
    (quotient - quotient.round()).abs() <= TOLERANCE * quotient.abs().max(1.0)
}
