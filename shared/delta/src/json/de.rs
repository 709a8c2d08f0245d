//! [`Json`] to Rust values, and other formats to [`Json`].

use std::fmt;
use std::sync::Arc;

use serde::de::value::StrDeserializer;
use serde::de::{self, Deserialize, DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer, Unexpected, Visitor};
use serde::forward_to_deserialize_any;

use super::{Json, JsonError, Number, Repr, handoff};
use crate::array::{Array, ArrayIter};
use crate::object::{Object, ObjectIter};
use crate::text::StrRef;
use crate::{DEPTH_MAX, ENVELOPE_DEPTH};

impl Json {
    /// Converts to a Rust type, as `serde_json` maps JSON to types. A [`Json`] inside it is shared, not copied.
    ///
    /// # Errors
    ///
    /// `Data` with what the type reported.
    pub fn to<T: DeserializeOwned>(&self) -> Result<T, JsonError> {
        T::deserialize(FromJson(self))
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_newtype_struct(handoff::NAME, Build { above: 0, limit: DEPTH_MAX })
    }
}

/// A value that may be as deep as an envelope.
pub(crate) fn deserialize_envelope<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Json, D::Error> {
    deserializer.deserialize_newtype_struct(handoff::NAME, Build { above: 0, limit: DEPTH_MAX + ENVELOPE_DEPTH })
}

/// Builds the value that stands inside `above` containers.
#[derive(Clone, Copy)]
struct Build {
    above: u32,
    limit: u32,
}

impl Build {
    fn inside<E: de::Error>(self) -> Result<Build, E> {
        if self.above >= self.limit {
            return Err(E::custom(format_args!("JSON nests more than {} containers; flatten the value or split it", self.limit)));
        }
        Ok(Build { above: self.above + 1, ..self })
    }
}

impl<'de> DeserializeSeed<'de> for Build {
    type Value = Json;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Build {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<Json, D::Error> {
        match handoff::accept() {
            Some(value) => Ok(value),
            None => deserializer.deserialize_any(self),
        }
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::from(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::from(value))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Json, E> {
        Ok(Json::from(value))
    }

    fn visit_u128<E>(self, value: u128) -> Result<Json, E> {
        Ok(Json::from(value))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Json, E> {
        Number::from_f64(value).map(Json::from).ok_or_else(|| E::invalid_value(Unexpected::Float(value), &"a finite number"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::from(value))
    }

    fn visit_none<E>(self) -> Result<Json, E> {
        Ok(Json::null())
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::null())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Json, A::Error> {
        let inside = self.inside()?;
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(inside)? {
            items.push(item);
        }
        Ok(Json(Repr::Array(Array::new(items))))
    }

    fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
        let inside = self.inside()?;
        let mut object = Object::empty();
        while let Some(key) = map.next_key::<String>()? {
            let value = map.next_value_seed(inside)?;
            object.edit().set(Arc::from(key), value);
        }
        Ok(Json(Repr::Object(object)))
    }
}

/// Reads a value as serde's data model.
#[derive(Clone, Copy)]
struct FromJson<'de>(&'de Json);

impl<'de> IntoDeserializer<'de, JsonError> for FromJson<'de> {
    type Deserializer = FromJson<'de>;

    fn into_deserializer(self) -> FromJson<'de> {
        self
    }
}

fn visit_text<'de, V: Visitor<'de>>(text: StrRef<'de>, visitor: V) -> Result<V::Value, JsonError> {
    match text.as_contiguous() {
        Some(text) => visitor.visit_borrowed_str(text),
        None => visitor.visit_string(text.to_string()),
    }
}

fn visit_integer<'de, V: Visitor<'de>>(value: i64, visitor: V) -> Result<V::Value, JsonError> {
    match u64::try_from(value) {
        Ok(value) => visitor.visit_u64(value),
        Err(_) => visitor.visit_i64(value),
    }
}

/// A large integer is kept as a double; a type that asks for an integer still gets one.
fn visit_wide<'de, V: Visitor<'de>>(value: f64, visitor: V) -> Result<V::Value, JsonError> {
    /// 2^63 and 2^64: doubles below them convert without loss.
    const I64_END: f64 = 9_223_372_036_854_775_808.0;
    const U64_END: f64 = 18_446_744_073_709_551_616.0;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "integral and in range")]
    if value.trunc() != value {
        visitor.visit_f64(value)
    } else if (0.0..U64_END).contains(&value) {
        visitor.visit_u64(value as u64)
    } else if (-I64_END..0.0).contains(&value) {
        visitor.visit_i64(value as i64)
    } else if value < 0.0 {
        visitor.visit_i128(value as i128)
    } else {
        visitor.visit_u128(value as u128)
    }
}

macro_rules! integers {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, JsonError> {
            match &self.0.0 {
                Repr::Number(Number::Float(value)) => visit_wide(*value, visitor),
                _ => self.deserialize_any(visitor),
            }
        }
    )*};
}

impl<'de> Deserializer<'de> for FromJson<'de> {
    type Error = JsonError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, JsonError> {
        match &self.0.0 {
            Repr::Null => visitor.visit_unit(),
            Repr::Bool(value) => visitor.visit_bool(*value),
            Repr::Number(Number::Int(value)) => visit_integer(*value, visitor),
            Repr::Number(Number::Float(value)) => visitor.visit_f64(*value),
            Repr::Text(text) => visit_text(text.as_ref(), visitor),
            Repr::Array(array) => {
                let mut items = Items(array.iter());
                let value = visitor.visit_seq(&mut items)?;
                match items.0.len() {
                    0 => Ok(value),
                    more => Err(de::Error::invalid_length(array.len(), &format!("{} items", array.len() - more).as_str())),
                }
            }
            Repr::Object(object) => visitor.visit_map(Entries { entries: object.iter(), value: None }),
        }
    }

    integers! {
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, JsonError> {
        if self.0.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, JsonError> {
        if name == handoff::NAME {
            return handoff::offer(self.0, || visitor.visit_newtype_struct(self));
        }
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(self, _: &'static str, _: &'static [&'static str], visitor: V) -> Result<V::Value, JsonError> {
        match &self.0.0 {
            Repr::Text(text) => visitor.visit_enum(text.as_ref().to_cow().into_deserializer()),
            Repr::Object(object) if object.len() == 1 => {
                visitor.visit_enum(de::value::MapAccessDeserializer::new(Entries { entries: object.iter(), value: None }))
            }
            _ => Err(de::Error::custom(format_args!("expected a variant: a string or an object of one key, found {}", self.0.kind_name()))),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, JsonError> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool f32 f64 char str string bytes byte_buf unit unit_struct seq tuple tuple_struct map struct identifier
    }
}

struct Items<'de>(ArrayIter<'de>);

impl<'de> de::SeqAccess<'de> for Items<'de> {
    type Error = JsonError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, JsonError> {
        self.0.next().map(|item| seed.deserialize(FromJson(item))).transpose()
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.0.len())
    }
}

struct Entries<'de> {
    entries: ObjectIter<'de>,
    value: Option<&'de Json>,
}

impl<'de> de::MapAccess<'de> for Entries<'de> {
    type Error = JsonError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, JsonError> {
        let Some((key, value)) = self.entries.next() else { return Ok(None) };
        self.value = Some(value);
        seed.deserialize(Key(key)).map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, JsonError> {
        match self.value.take() {
            Some(value) => seed.deserialize(FromJson(value)),
            None => Err(de::Error::custom("a map value was asked for before its key")),
        }
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.entries.size_hint().0)
    }
}

/// A map key. It is text, but a type with integer keys gets its integers back.
struct Key<'de>(&'de str);

macro_rules! parsed_keys {
    ($($method:ident: $integer:ty => $visit:ident),* $(,)?) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, JsonError> {
            match self.0.parse::<$integer>() {
                Ok(value) => visitor.$visit(value),
                Err(_) => visitor.visit_borrowed_str(self.0),
            }
        }
    )*};
}

impl<'de> Deserializer<'de> for Key<'de> {
    type Error = JsonError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, JsonError> {
        visitor.visit_borrowed_str(self.0)
    }

    parsed_keys! {
        deserialize_bool: bool => visit_bool,
        deserialize_i8: i64 => visit_i64, deserialize_i16: i64 => visit_i64, deserialize_i32: i64 => visit_i64,
        deserialize_i64: i64 => visit_i64, deserialize_i128: i128 => visit_i128,
        deserialize_u8: u64 => visit_u64, deserialize_u16: u64 => visit_u64, deserialize_u32: u64 => visit_u64,
        deserialize_u64: u64 => visit_u64, deserialize_u128: u128 => visit_u128,
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, JsonError> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, JsonError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(self, _: &'static str, _: &'static [&'static str], visitor: V) -> Result<V::Value, JsonError> {
        let variant: StrDeserializer<'_, JsonError> = self.0.into_deserializer();
        visitor.visit_enum(variant)
    }

    forward_to_deserialize_any! {
        f32 f64 char str string bytes byte_buf unit unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}
