//! Rust values to [`Json`], and [`Json`] to other formats.

use std::sync::Arc;

use serde::ser::{self, Serialize, SerializeMap as _, SerializeSeq as _, Serializer};

use super::{Json, JsonError, JsonErrorKind, Number, Repr, handoff};
use crate::array::Array;
use crate::height;
use crate::object::Object;
use crate::{DEPTH_MAX, ENVELOPE_DEPTH};

impl Json {
    /// Converts a Rust value, as `serde_json` maps types to JSON. A [`Json`] inside it is shared, not copied.
    ///
    /// Integers beyond 2^53 - 1 become the nearest double, as the same digits in a JSON text do. Integers and booleans
    /// as map keys become their text.
    ///
    /// # Errors
    ///
    /// `Number` for NaN and infinities, `Depth`, `Key`, or `Data` with what the type reported.
    pub fn from_serde<T: Serialize + ?Sized>(value: &T) -> Result<Json, JsonError> {
        value.serialize(ToJson { above: 0, limit: DEPTH_MAX })
    }

    /// [`Json::from_serde`] for a record that carries values: it may nest [`ENVELOPE_DEPTH`] containers more.
    ///
    /// # Errors
    ///
    /// As [`Json::from_serde`].
    pub fn from_serde_envelope<T: Serialize + ?Sized>(value: &T) -> Result<Json, JsonError> {
        value.serialize(ToJson { above: 0, limit: DEPTH_MAX + ENVELOPE_DEPTH })
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_newtype_struct(handoff::NAME, &Payload(self))
    }
}

struct Payload<'a>(&'a Json);

impl Serialize for Payload<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if handoff::deliver(self.0) {
            return serializer.serialize_unit();
        }
        match &self.0.0 {
            Repr::Null => serializer.serialize_unit(),
            Repr::Bool(value) => serializer.serialize_bool(*value),
            Repr::Number(Number::Int(value)) => serializer.serialize_i64(*value),
            Repr::Number(Number::Float(value)) => serializer.serialize_f64(*value),
            Repr::Text(text) => match text.as_ref().as_contiguous() {
                Some(text) => serializer.serialize_str(text),
                None => serializer.collect_str(&text.as_ref()),
            },
            Repr::Array(array) => {
                let mut seq = serializer.serialize_seq(Some(array.len()))?;
                array.iter().try_for_each(|item| seq.serialize_element(&Payload(item)))?;
                seq.end()
            }
            Repr::Object(object) => {
                let mut map = serializer.serialize_map(Some(object.len()))?;
                object.iter().try_for_each(|(key, value)| map.serialize_entry(key, &Payload(value)))?;
                map.end()
            }
        }
    }
}

/// Builds the value that stands inside `above` containers.
#[derive(Clone, Copy)]
struct ToJson {
    above: u32,
    limit: u32,
}

impl ToJson {
    fn inside(self) -> Result<ToJson, JsonError> {
        if self.above >= self.limit {
            return Err(JsonError::depth(None, self.limit));
        }
        Ok(ToJson { above: self.above + 1, ..self })
    }

    fn items(self, len: Option<usize>, variant: Option<&'static str>) -> Result<Items, JsonError> {
        // The reported length is a claim of the caller's type: it reserves no more than a page.
        let items = Vec::with_capacity(len.unwrap_or(0).min(128));
        Ok(Items { inner: self.open(variant)?, items, variant })
    }

    fn entries(self, variant: Option<&'static str>) -> Result<Entries, JsonError> {
        Ok(Entries { inner: self.open(variant)?, object: Object::empty(), key: None, variant })
    }

    /// The serializer for the children: a variant with fields is a container in an object of one key.
    fn open(self, variant: Option<&'static str>) -> Result<ToJson, JsonError> {
        if variant.is_some() { self.inside()?.inside() } else { self.inside() }
    }
}

fn tagged(variant: Option<&'static str>, value: Json) -> Json {
    match variant {
        Some(variant) => Json::object([(variant, value)]),
        None => value,
    }
}

struct Items {
    inner: ToJson,
    items: Vec<Json>,
    variant: Option<&'static str>,
}

struct Entries {
    inner: ToJson,
    object: Object,
    key: Option<Arc<str>>,
    variant: Option<&'static str>,
}

impl Items {
    fn push<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), JsonError> {
        self.items.push(value.serialize(self.inner)?);
        Ok(())
    }

    fn finish(self) -> Json {
        tagged(self.variant, Json(Repr::Array(Array::new(self.items))))
    }
}

impl Entries {
    fn set<T: Serialize + ?Sized>(&mut self, key: Arc<str>, value: &T) -> Result<(), JsonError> {
        let value = value.serialize(self.inner)?;
        self.object.edit().set(key, value);
        Ok(())
    }

    fn finish(self) -> Json {
        tagged(self.variant, Json(Repr::Object(self.object)))
    }
}

macro_rules! integers {
    ($($method:ident: $integer:ty),* $(,)?) => {$(
        fn $method(self, value: $integer) -> Result<Json, JsonError> {
            Ok(Json::from(value))
        }
    )*};
}

impl Serializer for ToJson {
    type Ok = Json;
    type Error = JsonError;
    type SerializeSeq = Items;
    type SerializeTuple = Items;
    type SerializeTupleStruct = Items;
    type SerializeTupleVariant = Items;
    type SerializeMap = Entries;
    type SerializeStruct = Entries;
    type SerializeStructVariant = Entries;

    integers! {
        serialize_bool: bool,
        serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64, serialize_i128: i128,
        serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64, serialize_u128: u128,
    }

    /// A narrow float is written with the digits that it needs itself, not with those of its double.
    fn serialize_f32(self, value: f32) -> Result<Json, JsonError> {
        let text = value.to_string();
        self.serialize_f64(text.parse().unwrap_or_else(|_| f64::from(value)))
    }

    fn serialize_f64(self, value: f64) -> Result<Json, JsonError> {
        Json::try_from(value)
    }

    fn serialize_char(self, value: char) -> Result<Json, JsonError> {
        Ok(Json::from(&*value.encode_utf8(&mut [0; 4])))
    }

    fn serialize_str(self, value: &str) -> Result<Json, JsonError> {
        Ok(Json::from(value))
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<Json, JsonError> {
        self.inside()?;
        Ok(Json::array(value.iter().copied()))
    }

    fn serialize_none(self) -> Result<Json, JsonError> {
        Ok(Json::null())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Json, JsonError> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<Json, JsonError> {
        Ok(Json::null())
    }

    fn serialize_unit_struct(self, _name: &'static str) -> Result<Json, JsonError> {
        Ok(Json::null())
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<Json, JsonError> {
        Ok(Json::from(variant))
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, name: &'static str, value: &T) -> Result<Json, JsonError> {
        if name != handoff::NAME {
            return value.serialize(self);
        }
        let (built, handed) = handoff::receive(|| value.serialize(self));
        match handed {
            Some(value) if height::fits_within(&value, self.above, self.limit) => Ok(value),
            Some(_) => Err(JsonError::depth(None, self.limit)),
            None => built,
        }
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<Json, JsonError> {
        let value = value.serialize(self.inside()?)?;
        Ok(tagged(Some(variant), value))
    }

    fn serialize_seq(self, len: Option<usize>) -> Result<Items, JsonError> {
        self.items(len, None)
    }

    fn serialize_tuple(self, len: usize) -> Result<Items, JsonError> {
        self.items(Some(len), None)
    }

    fn serialize_tuple_struct(self, _: &'static str, len: usize) -> Result<Items, JsonError> {
        self.items(Some(len), None)
    }

    fn serialize_tuple_variant(self, _: &'static str, _: u32, variant: &'static str, len: usize) -> Result<Items, JsonError> {
        self.items(Some(len), Some(variant))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Entries, JsonError> {
        self.entries(None)
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Entries, JsonError> {
        self.entries(None)
    }

    fn serialize_struct_variant(self, _: &'static str, _: u32, variant: &'static str, _: usize) -> Result<Entries, JsonError> {
        self.entries(Some(variant))
    }
}

macro_rules! items_as {
    ($($of:path: $method:ident),* $(,)?) => {$(
        impl $of for Items {
            type Ok = Json;
            type Error = JsonError;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), JsonError> {
                self.push(value)
            }

            fn end(self) -> Result<Json, JsonError> {
                Ok(self.finish())
            }
        }
    )*};
}

items_as! {
    ser::SerializeSeq: serialize_element,
    ser::SerializeTuple: serialize_element,
    ser::SerializeTupleStruct: serialize_field,
    ser::SerializeTupleVariant: serialize_field,
}

macro_rules! fields_as {
    ($($of:path),* $(,)?) => {$(
        impl $of for Entries {
            type Ok = Json;
            type Error = JsonError;

            fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), JsonError> {
                self.set(Arc::from(key), value)
            }

            fn end(self) -> Result<Json, JsonError> {
                Ok(self.finish())
            }
        }
    )*};
}

fields_as!(ser::SerializeStruct, ser::SerializeStructVariant);

impl ser::SerializeMap for Entries {
    type Ok = Json;
    type Error = JsonError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), JsonError> {
        let key = key.serialize(ToJson { above: 0, limit: DEPTH_MAX })?;
        self.key = Some(match &key.0 {
            Repr::Text(text) => text.to_arc(),
            Repr::Bool(_) | Repr::Number(_) => Arc::from(key.to_string()),
            _ => return Err(JsonError::new(JsonErrorKind::Key, format!("map key {key} is no string; use text keys"))),
        });
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), JsonError> {
        match self.key.take() {
            Some(key) => self.set(key, value),
            None => Err(JsonError::new(JsonErrorKind::Key, "a map value came without its key")),
        }
    }

    fn end(self) -> Result<Json, JsonError> {
        Ok(self.finish())
    }
}
