//! Strings: short ones in one piece, long ones in a rope, so that an append to a long text costs the append.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use crop::Rope;

/// Longest text in bytes that is kept in one piece. Below it a copy is cheaper than a tree.
const SHORT_MAX: usize = 1024;

/// Shortest text in bytes that stays a rope after a trim; lower than [`SHORT_MAX`] so that a text at the edge does
/// not change its form with every edit.
const LONG_MIN: usize = 512;

#[derive(Clone)]
pub(crate) enum Text {
    Short(Arc<str>),
    /// The `Arc` gives the revision an identity.
    Long(Arc<Rope>),
}

/// A cut that would have split a character outside the basic plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SplitsPair;

impl Text {
    pub(crate) fn new(text: &str) -> Text {
        if text.len() <= SHORT_MAX { Text::Short(Arc::from(text)) } else { Text::Long(Arc::new(Rope::from(text))) }
    }

    pub(crate) fn from_arc(text: Arc<str>) -> Text {
        if text.len() <= SHORT_MAX { Text::Short(text) } else { Text::new(&text) }
    }

    pub(crate) fn as_ref(&self) -> StrRef<'_> {
        StrRef(match self {
            Text::Short(text) => Repr::Short(text),
            Text::Long(rope) => Repr::Long(rope),
        })
    }

    pub(crate) fn to_arc(&self) -> Arc<str> {
        match self {
            Text::Short(text) => Arc::clone(text),
            Text::Long(rope) => Arc::from(rope.to_string()),
        }
    }

    pub(crate) fn same_revision(&self, other: &Text) -> bool {
        match (self, other) {
            (Text::Short(a), Text::Short(b)) => Arc::ptr_eq(a, b),
            (Text::Long(a), Text::Long(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    pub(crate) fn append(&mut self, more: &str) {
        if more.is_empty() {
            return;
        }
        match self {
            Text::Short(text) => {
                let mut whole = String::with_capacity(text.len() + more.len());
                whole.push_str(text);
                whole.push_str(more);
                *self = Text::new(&whole);
            }
            Text::Long(shared) => {
                let rope = Arc::make_mut(shared);
                rope.insert(rope.byte_len(), more);
            }
        }
    }

    /// Drops `count` UTF-16 units from the front; a count past the end leaves nothing.
    pub(crate) fn trim_utf16(&mut self, count: usize) -> Result<(), SplitsPair> {
        let cut = self.as_ref().byte_of_utf16(count)?;
        match self {
            Text::Short(text) if cut > 0 => *self = Text::Short(Arc::from(&text[cut..])),
            Text::Long(rope) if rope.byte_len() - cut < LONG_MIN => {
                *self = Text::Short(Arc::from(rope.byte_slice(cut..).to_string()));
            }
            Text::Long(shared) if cut > 0 => Arc::make_mut(shared).delete(..cut),
            _ => {}
        }
        Ok(())
    }
}

/// A string inside a [`crate::Json`]. Long ones are not contiguous; read them with [`StrRef::chunks`] or pay for
/// [`StrRef::to_cow`].
#[derive(Clone, Copy)]
pub struct StrRef<'a>(Repr<'a>);

#[derive(Clone, Copy)]
enum Repr<'a> {
    Short(&'a Arc<str>),
    Long(&'a Arc<Rope>),
}

impl<'a> StrRef<'a> {
    /// Length in bytes of UTF-8.
    pub fn len(self) -> usize {
        match self.0 {
            Repr::Short(text) => text.len(),
            Repr::Long(rope) => rope.byte_len(),
        }
    }

    /// True for `""`.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Length in UTF-16 units, the unit of [`crate::Op::TrimUtf16`]. O(1) for long texts.
    pub fn utf16_len(self) -> usize {
        match self.0 {
            Repr::Short(text) => text.encode_utf16().count(),
            Repr::Long(rope) => rope.utf16_len(),
        }
    }

    /// The text without a copy when it is contiguous, as texts up to 1 KiB are.
    pub fn as_contiguous(self) -> Option<&'a str> {
        match self.0 {
            Repr::Short(text) => Some(text),
            Repr::Long(_) => None,
        }
    }

    /// The whole text; copies a long one.
    pub fn to_cow(self) -> Cow<'a, str> {
        match self.0 {
            Repr::Short(text) => Cow::Borrowed(text),
            Repr::Long(rope) => Cow::Owned(rope.to_string()),
        }
    }

    /// The whole text, shared when it is contiguous.
    pub fn to_arc(self) -> Arc<str> {
        match self.0 {
            Repr::Short(text) => Arc::clone(text),
            Repr::Long(rope) => Arc::from(rope.to_string()),
        }
    }

    pub(crate) fn to_text(self) -> Text {
        match self.0 {
            Repr::Short(text) => Text::Short(Arc::clone(text)),
            Repr::Long(rope) => Text::Long(Arc::clone(rope)),
        }
    }

    /// The pieces of the text in order; none of them splits a character.
    pub fn chunks(self) -> TextChunks<'a> {
        TextChunks(match self.0 {
            Repr::Short(text) => Chunks::One(Some(text)),
            Repr::Long(rope) => Chunks::Many(rope.chunks()),
        })
    }

    /// The piece of the text between two byte offsets.
    ///
    /// The caller passes offsets on character boundaries, in order and within the text.
    pub(crate) fn byte_slice(self, from: usize, to: usize) -> String {
        match self.0 {
            Repr::Short(text) => text[from..to].to_owned(),
            Repr::Long(rope) => rope.byte_slice(from..to).to_string(),
        }
    }

    /// The byte offset of a UTF-16 offset; the length when `units` is past the end.
    pub(crate) fn byte_of_utf16(self, units: usize) -> Result<usize, SplitsPair> {
        match self.0 {
            Repr::Short(text) => {
                let mut seen = 0;
                for (at, c) in text.char_indices() {
                    if seen >= units {
                        return if seen == units { Ok(at) } else { Err(SplitsPair) };
                    }
                    seen += c.len_utf16();
                }
                if seen > units { Err(SplitsPair) } else { Ok(text.len()) }
            }
            Repr::Long(rope) if units >= rope.utf16_len() => Ok(rope.byte_len()),
            Repr::Long(rope) => rope_byte_of_utf16(rope, units),
        }
    }

    /// True when the text begins with `prefix`.
    pub(crate) fn starts_with(self, prefix: StrRef<'_>) -> bool {
        self.len() >= prefix.len() && chunks_agree(self.chunks(), prefix.chunks())
    }
}

/// Binary search over bytes: the rope's own conversion panics inside a pair, and a pair may well be named by an op.
fn rope_byte_of_utf16(rope: &Rope, units: usize) -> Result<usize, SplitsPair> {
    // A unit is one to three bytes.
    let (mut low, mut high) = (units.min(rope.byte_len()), units.saturating_mul(3).min(rope.byte_len()));
    low = low.min(high);
    while low < high {
        let middle = low + (high - low) / 2;
        let boundary = (0..4).map(|back| middle.saturating_sub(back)).find(|&at| rope.is_char_boundary(at)).unwrap_or(0);
        if rope.utf16_code_unit_of_byte(boundary) < units {
            low = middle + 1;
        } else {
            high = boundary;
        }
    }
    // `low` may have stopped inside the character that begins before it.
    let at = (0..4).map(|on| low + on).find(|&at| rope.is_char_boundary(at)).unwrap_or_else(|| rope.byte_len());
    if rope.utf16_code_unit_of_byte(at) == units { Ok(at) } else { Err(SplitsPair) }
}

/// Compares two texts piece by piece up to the end of the shorter one.
fn chunks_agree(mut a: TextChunks<'_>, mut b: TextChunks<'_>) -> bool {
    let (mut left, mut right): (&[u8], &[u8]) = (&[], &[]);
    loop {
        if left.is_empty() {
            match a.next() {
                Some(chunk) => left = chunk.as_bytes(),
                None => return true,
            }
        }
        if right.is_empty() {
            match b.next() {
                Some(chunk) => right = chunk.as_bytes(),
                None => return true,
            }
        }
        let n = left.len().min(right.len());
        // Revisions share chunks: the same memory need not be compared.
        if !std::ptr::eq(left.as_ptr(), right.as_ptr()) && left[..n] != right[..n] {
            return false;
        }
        (left, right) = (&left[n..], &right[n..]);
    }
}

/// Pieces of a text; see [`StrRef::chunks`].
#[derive(Clone)]
pub struct TextChunks<'a>(Chunks<'a>);

#[derive(Clone)]
#[expect(clippy::large_enum_variant, reason = "it lives on the stack for one loop; a box would cost an allocation")]
enum Chunks<'a> {
    One(Option<&'a str>),
    Many(crop::iter::Chunks<'a>),
}

impl<'a> Iterator for TextChunks<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        match &mut self.0 {
            Chunks::One(text) => text.take(),
            Chunks::Many(chunks) => chunks.next(),
        }
    }
}

impl PartialEq for StrRef<'_> {
    fn eq(&self, other: &StrRef<'_>) -> bool {
        self.len() == other.len() && chunks_agree(self.chunks(), other.chunks())
    }
}

impl Eq for StrRef<'_> {}

impl PartialEq<str> for StrRef<'_> {
    fn eq(&self, other: &str) -> bool {
        self.len() == other.len() && chunks_agree(self.chunks(), TextChunks(Chunks::One(Some(other))))
    }
}

impl PartialEq<&str> for StrRef<'_> {
    fn eq(&self, other: &&str) -> bool {
        *self == **other
    }
}

impl fmt::Display for StrRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.chunks().try_for_each(|chunk| f.write_str(chunk))
    }
}

impl fmt::Debug for StrRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.to_cow(), f)
    }
}
