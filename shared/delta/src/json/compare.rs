//! Deep equality without recursion.

use super::{Json, Repr};
use crate::array::ArrayIter;
use crate::object::{Object, ObjectIter};

enum Frame<'a> {
    Arrays(ArrayIter<'a>, ArrayIter<'a>),
    Objects(ObjectIter<'a>, &'a Object),
}

/// Key order is no part of equality. Parts that both sides share are equal without a look inside.
impl PartialEq for Json {
    fn eq(&self, other: &Json) -> bool {
        let mut stack = Vec::new();
        let mut next = Some((self, other));
        loop {
            if let Some((a, b)) = next.take()
                && !step(a, b, &mut stack)
            {
                return false;
            }
            match stack.last_mut() {
                None => return true,
                Some(Frame::Arrays(a, b)) => next = a.next().zip(b.next()),
                Some(Frame::Objects(entries, other)) => {
                    if let Some((key, value)) = entries.next() {
                        let Some(counterpart) = other.get(key) else { return false };
                        next = Some((value, counterpart));
                    }
                }
            }
            if next.is_none() {
                stack.pop();
            }
        }
    }
}

/// No number is NaN, so equality is reflexive.
impl Eq for Json {}

/// Compares what can be compared at once and queues the children of two containers.
fn step<'a>(a: &'a Json, b: &'a Json, stack: &mut Vec<Frame<'a>>) -> bool {
    if a.same_revision(b) {
        return true;
    }
    match (&a.0, &b.0) {
        (Repr::Text(a), Repr::Text(b)) => a.as_ref() == b.as_ref(),
        (Repr::Array(a), Repr::Array(b)) if a.len() == b.len() => {
            stack.push(Frame::Arrays(a.iter(), b.iter()));
            true
        }
        (Repr::Object(a), Repr::Object(b)) if a.len() == b.len() => {
            stack.push(Frame::Objects(a.iter(), b));
            true
        }
        _ => false,
    }
}

impl PartialEq<str> for Json {
    fn eq(&self, other: &str) -> bool {
        self.as_text().is_some_and(|text| text == *other)
    }
}

impl PartialEq<&str> for Json {
    fn eq(&self, other: &&str) -> bool {
        *self == **other
    }
}

impl PartialEq<i64> for Json {
    fn eq(&self, other: &i64) -> bool {
        self.as_i64() == Some(*other)
    }
}

impl PartialEq<bool> for Json {
    fn eq(&self, other: &bool) -> bool {
        self.as_bool() == Some(*other)
    }
}
