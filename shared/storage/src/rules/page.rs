//! Pages and cursors (section 10). A cursor is an object with one key: the name of its scan.

use picofleet_delta::Json;
use picofleet_session::storage::{Cursor, PAGE_MAX, Page, StorageError};
use picofleet_session::{Id, Millis, SessionId};

/// The items of a page for a limit of a caller; a page has at least one, so that paging ends.
pub(crate) fn page_size(limit: u32) -> usize {
    limit.clamp(1, PAGE_MAX) as usize
}

/// What the last item of a page leaves in the cursor; the next page begins after it.
pub(crate) trait CursorKey: Sized {
    fn to_json(&self) -> Json;
    fn from_json(json: &Json) -> Option<Self>;
}

impl<K: ?Sized> CursorKey for Id<K> {
    fn to_json(&self) -> Json {
        Json::from(self.get())
    }

    fn from_json(json: &Json) -> Option<Self> {
        Id::new(json.as_i64()?).ok()
    }
}

impl CursorKey for SessionId {
    fn to_json(&self) -> Json {
        Json::from(self.to_string())
    }

    fn from_json(json: &Json) -> Option<Self> {
        json.as_str()?.parse().ok()
    }
}

impl CursorKey for Millis {
    fn to_json(&self) -> Json {
        Json::from(self.0)
    }

    fn from_json(json: &Json) -> Option<Self> {
        json.as_i64().map(Millis)
    }
}

impl<A: CursorKey, B: CursorKey> CursorKey for (A, B) {
    fn to_json(&self) -> Json {
        Json::array([self.0.to_json(), self.1.to_json()])
    }

    fn from_json(json: &Json) -> Option<Self> {
        let items = json.as_array()?;
        let (first, second) = (items.get(0)?, items.get(1)?);
        if items.len() != 2 {
            return None;
        }
        Some((A::from_json(first)?, B::from_json(second)?))
    }
}

/// A page of items in the order of the scan `scan`; `items` has one more than a page where there are more. `key` tells the place of an
/// item.
///
/// # Errors
/// The first error of `items`.
pub(crate) fn page<T, K: CursorKey, E>(
    scan: &'static str,
    limit: u32,
    items: impl IntoIterator<Item = Result<T, E>>,
    key: impl Fn(&T) -> K,
) -> Result<Page<T>, E> {
    let size = page_size(limit);
    let mut items = items.into_iter();
    let mut taken = Vec::new();
    while taken.len() < size {
        match items.next() {
            Some(item) => taken.push(item?),
            None => return Ok(Page { items: taken, next: None }),
        }
    }
    let more = items.next().transpose()?.is_some();
    let next = taken.last().filter(|_| more).map(|last| Cursor(Json::object([(scan, key(last).to_json())])));
    Ok(Page { items: taken, next })
}

/// The place that a cursor of the scan `scan` names.
///
/// # Errors
/// [`StorageError::BadCursor`] for one of another scan.
pub(crate) fn read_cursor<K: CursorKey>(scan: &'static str, cursor: Option<&Cursor>) -> Result<Option<K>, StorageError> {
    let Some(Cursor(json)) = cursor else { return Ok(None) };
    let key = json.get(scan).and_then(K::from_json);
    key.map(Some).ok_or_else(|| StorageError::BadCursor { cursor: json.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use picofleet_session::EntryId;

    #[test]
    fn a_cursor_belongs_to_its_scan() {
        let items = [3i64, 2, 1].map(EntryId::new);
        let first = page("entries", 2, items, |id| *id).unwrap();
        assert_eq!(first.items.iter().map(|id| id.get()).collect::<Vec<_>>(), [3, 2]);
        let cursor = first.next.unwrap();
        assert_eq!(read_cursor::<EntryId>("entries", Some(&cursor)).unwrap(), Some(first.items[1]));
        assert!(matches!(read_cursor::<EntryId>("tasks", Some(&cursor)), Err(StorageError::BadCursor { .. })));
        assert!(matches!(read_cursor::<SessionId>("entries", Some(&cursor)), Err(StorageError::BadCursor { .. })));
        assert_eq!(page("entries", 3, items, |id| *id).unwrap().next, None);
        assert_eq!(page("entries", 0, items, |id| *id).unwrap().items.len(), 1);
    }
}
