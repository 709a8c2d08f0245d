//! What the keywords of a schema have looked at, for `unevaluatedProperties` and `unevaluatedItems`.

use std::collections::BTreeSet;

use picofleet_delta::Json;

use super::check::Check;
use super::schema::{TOO_LARGE, list, named, sub, text};

/// Members by name.
#[derive(Default)]
pub(super) struct Members {
    all: bool,
    names: BTreeSet<String>,
}

impl Members {
    pub(super) fn has(&self, name: &str) -> bool {
        self.all || self.names.contains(name)
    }
}

/// Items by place: the first ones, and single ones.
#[derive(Default)]
pub(super) struct Items {
    first: usize,
    single: BTreeSet<usize>,
}

impl Items {
    pub(super) fn has(&self, index: usize) -> bool {
        index < self.first || self.single.contains(&index)
    }
}

impl Check<'_, '_> {
    /// The members that have been looked at; nothing when nobody can tell, and then that is a problem of the value.
    pub(super) fn evaluated_members(&mut self, schema: &Json, value: &Json) -> Option<Members> {
        let before = self.found.len();
        let mut members = Members::default();
        self.visit(schema, value, &mut |check, part| {
            members.all |= part.get("additionalProperties").is_some();
            let patterns = named(part, "patternProperties");
            for (name, _) in value.as_object().into_iter().flatten() {
                let own = part.get("properties").is_some_and(|properties| properties.get(name).is_some());
                if own || patterns.iter().any(|(pattern, _)| check.schema.matches(pattern, name) == Ok(true)) {
                    members.names.insert(name.to_owned());
                }
            }
        });
        (self.found.len() == before).then_some(members)
    }

    /// The items that have been looked at; nothing when nobody can tell, and then that is a problem of the value.
    pub(super) fn evaluated_items(&mut self, schema: &Json, value: &Json) -> Option<Items> {
        let before = self.found.len();
        let mut items = Items::default();
        self.visit(schema, value, &mut |check, part| {
            let places = list(part, "prefixItems").or_else(|| list(part, "items")).map_or(0, |places| places.len());
            let rest = sub(part, "items").is_some() || part.get("additionalItems").is_some();
            items.first = items.first.max(if rest { usize::MAX } else { places });
            if let Some(wanted) = sub(part, "contains") {
                for (index, item) in value.as_array().into_iter().flat_map(picofleet_delta::ArrayRef::iter).enumerate() {
                    if check.decide(wanted, item) == Some(true) {
                        items.single.insert(index);
                    }
                }
            }
        });
        (self.found.len() == before).then_some(items)
    }

    /// Calls with a schema and every schema that speaks of the same value and matches it. The only problems that come of it
    /// are those of places that cannot be checked.
    fn visit(&mut self, schema: &Json, value: &Json, each: &mut dyn FnMut(&mut Self, &Json)) {
        if !self.schema.step(self.depth) {
            return self.say_undecided(TOO_LARGE);
        }
        self.depth += 1;
        each(self, schema);
        let mut parts: Vec<&Json> = Vec::new();
        for keyword in ["allOf", "anyOf", "oneOf"] {
            parts.extend(list(schema, keyword).unwrap_or_default());
        }
        parts.extend(named(schema, "dependentSchemas").into_iter().filter(|(name, _)| value.get(name).is_some()).map(|(_, part)| part));
        parts.extend(text(schema, "$ref").and_then(|reference| self.schema.resolve(&reference)));
        if let Some(condition) = sub(schema, "if")
            && let Some(holds) = self.decide(condition, value)
        {
            parts.extend(holds.then_some(condition));
            parts.extend(sub(schema, if holds { "then" } else { "else" }));
        }
        for part in parts {
            if self.decide(part, value) == Some(true) {
                self.visit(part, value, each);
            }
        }
        self.depth -= 1;
    }
}
