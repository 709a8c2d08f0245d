//! The shortest way to say that a string changed.

use std::sync::Arc;

use crate::op::{Op, Path};
use crate::overlap::overlap_texts;
use crate::text::StrRef;

/// Appends the operations that turn `old`, which stands at the non-empty `path`, into `new`: nothing, an append, a
/// trim with an append, or the whole string.
pub(crate) fn diff(path: &Path, old: StrRef<'_>, new: StrRef<'_>, out: &mut Vec<Op>) {
    if new.starts_with(old) {
        if new.len() > old.len() {
            out.push(Op::Append(path.clone(), Arc::from(new.byte_slice(old.len(), new.len()))));
        }
        return;
    }
    let shared = overlap_texts(old, new);
    // Both texts are well formed, so an overlap never ends inside a pair.
    match new.byte_of_utf16(shared) {
        Ok(kept) if shared > 0 => {
            out.push(Op::TrimUtf16(path.clone(), old.utf16_len() - shared));
            if new.len() > kept {
                out.push(Op::Append(path.clone(), Arc::from(new.byte_slice(kept, new.len()))));
            }
        }
        _ => out.push(Op::Set(path.clone(), new.into())),
    }
}
