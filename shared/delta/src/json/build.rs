//! Values from Rust values.

use std::borrow::Cow;
use std::sync::Arc;

use super::{Json, JsonError, Number, Repr};
use crate::array::Array;
use crate::object::Object;
use crate::text::{StrRef, Text};

impl Json {
    /// An object with the entries in order. A repeated key keeps its first place and its last value.
    pub fn object<K: Into<Arc<str>>, V: Into<Json>>(entries: impl IntoIterator<Item = (K, V)>) -> Json {
        entries.into_iter().map(|(key, value)| (key.into(), value.into())).collect()
    }

    /// An array with the items in order.
    pub fn array<V: Into<Json>>(items: impl IntoIterator<Item = V>) -> Json {
        items.into_iter().map(Into::into).collect()
    }

    /// Starts an object whose values have different types.
    pub fn build_object() -> ObjectBuilder {
        ObjectBuilder(Vec::new())
    }
}

/// Collects entries of an object; see [`Json::build_object`].
#[derive(Default)]
pub struct ObjectBuilder(Vec<(Arc<str>, Json)>);

impl ObjectBuilder {
    /// Adds an entry. A repeated key keeps its first place and its last value.
    #[must_use]
    pub fn with(mut self, key: impl Into<Arc<str>>, value: impl Into<Json>) -> ObjectBuilder {
        self.0.push((key.into(), value.into()));
        self
    }

    /// Adds an entry if there is a value.
    #[must_use]
    pub fn with_some(self, key: impl Into<Arc<str>>, value: Option<impl Into<Json>>) -> ObjectBuilder {
        match value {
            Some(value) => self.with(key, value),
            None => self,
        }
    }

    /// The object.
    pub fn build(self) -> Json {
        self.0.into_iter().collect()
    }
}

impl From<ObjectBuilder> for Json {
    fn from(builder: ObjectBuilder) -> Json {
        builder.build()
    }
}

impl FromIterator<(Arc<str>, Json)> for Json {
    fn from_iter<I: IntoIterator<Item = (Arc<str>, Json)>>(entries: I) -> Json {
        Json(Repr::Object(entries.into_iter().collect::<Object>()))
    }
}

impl FromIterator<Json> for Json {
    fn from_iter<I: IntoIterator<Item = Json>>(items: I) -> Json {
        Json(Repr::Array(Array::new(items.into_iter().collect())))
    }
}

impl From<()> for Json {
    fn from((): ()) -> Json {
        Json::null()
    }
}

impl From<bool> for Json {
    fn from(value: bool) -> Json {
        Json(Repr::Bool(value))
    }
}

impl From<Number> for Json {
    fn from(value: Number) -> Json {
        Json(Repr::Number(value))
    }
}

/// Integers beyond 2^53 - 1 become the nearest double, as the same digits in a JSON text do.
macro_rules! from_integers {
    ($($integer:ty => $via:ident as $wide:ty),* $(,)?) => {$(
        /// Beyond 2^53 - 1 it becomes the nearest double, as the same digits in a JSON text do.
        impl From<$integer> for Json {
            fn from(value: $integer) -> Json {
                #[allow(clippy::cast_lossless, reason = "`usize` has no `From` into the wide type")]
                Number::$via(value as $wide).into()
            }
        }
    )*};
}

from_integers! {
    i8 => from_i64 as i64, i16 => from_i64 as i64, i32 => from_i64 as i64, i64 => from_i64 as i64, isize => from_i64 as i64,
    u8 => from_i64 as i64, u16 => from_i64 as i64, u32 => from_i64 as i64, u64 => from_u64 as u64, usize => from_u64 as u64,
    i128 => from_i128 as i128, u128 => from_u128 as u128,
}

/// Fails with kind `Number` for NaN and the infinities: JSON has no text for them.
impl TryFrom<f64> for Json {
    type Error = JsonError;

    fn try_from(value: f64) -> Result<Json, JsonError> {
        Number::from_f64(value).map(Json::from).ok_or_else(|| JsonError::number(None, &value.to_string()))
    }
}

impl From<&str> for Json {
    fn from(text: &str) -> Json {
        Json(Repr::Text(Text::new(text)))
    }
}

impl From<String> for Json {
    fn from(text: String) -> Json {
        Json::from(text.as_str())
    }
}

impl From<&String> for Json {
    fn from(text: &String) -> Json {
        Json::from(text.as_str())
    }
}

impl From<Cow<'_, str>> for Json {
    fn from(text: Cow<'_, str>) -> Json {
        Json::from(&*text)
    }
}

impl From<Arc<str>> for Json {
    fn from(text: Arc<str>) -> Json {
        Json(Repr::Text(Text::from_arc(text)))
    }
}

/// Shares the text.
impl From<StrRef<'_>> for Json {
    fn from(text: StrRef<'_>) -> Json {
        Json(Repr::Text(text.to_text()))
    }
}

impl From<&Json> for Json {
    fn from(value: &Json) -> Json {
        value.clone()
    }
}

impl<V: Into<Json>> From<Vec<V>> for Json {
    fn from(items: Vec<V>) -> Json {
        Json::array(items)
    }
}

impl<V: Into<Json>, const N: usize> From<[V; N]> for Json {
    fn from(items: [V; N]) -> Json {
        Json::array(items)
    }
}

/// `None` is `null`.
impl<V: Into<Json>> From<Option<V>> for Json {
    fn from(value: Option<V>) -> Json {
        value.map_or_else(Json::null, Into::into)
    }
}
