//! Shared ownership of a container body, with a drop that does not recurse.

use std::cell::RefCell;
use std::ops::Deref;
use std::sync::Arc;

use crate::array::ArrayBody;
use crate::height::Height;
use crate::object::ObjectBody;

/// What a [`Handle`] can own.
pub(crate) trait Body: Clone {
    fn height(&self) -> &Height;
    fn into_doomed(self) -> Doomed;
}

/// A container body that nobody owns any more, waiting to be taken apart.
pub(crate) enum Doomed {
    Array(#[expect(dead_code, reason = "held to be dropped")] ArrayBody),
    Object(#[expect(dead_code, reason = "held to be dropped")] ObjectBody),
}

/// A counted pointer to a container body.
///
/// The `Option` is empty only while the handle is being dropped: safe code cannot move out of a field otherwise.
pub(crate) struct Handle<B: Body>(Option<Arc<B>>);

impl<B: Body> Handle<B> {
    pub(crate) fn new(body: B) -> Handle<B> {
        Handle(Some(Arc::new(body)))
    }

    fn arc(&self) -> &Arc<B> {
        match &self.0 {
            Some(arc) => arc,
            None => unreachable!("a handle is emptied only by its own drop"),
        }
    }

    pub(crate) fn ptr_eq(&self, other: &Handle<B>) -> bool {
        Arc::ptr_eq(self.arc(), other.arc())
    }

    /// The body for a change. A body that is shared is copied first; its children stay shared.
    pub(crate) fn make_mut(&mut self) -> &mut B {
        match &mut self.0 {
            Some(arc) => Arc::make_mut(arc),
            None => unreachable!("a handle is emptied only by its own drop"),
        }
    }
}

impl<B: Body> Clone for Handle<B> {
    fn clone(&self) -> Handle<B> {
        Handle(Some(Arc::clone(self.arc())))
    }
}

impl<B: Body> Deref for Handle<B> {
    type Target = B;

    fn deref(&self) -> &B {
        self.arc()
    }
}

impl<B: Body> Drop for Handle<B> {
    fn drop(&mut self) {
        // `into_inner` gives the body to exactly one of several threads that drop the last handles at once.
        let Some(body) = self.0.take().and_then(Arc::into_inner) else { return };
        // A container of scalars cannot nest: it goes at once.
        if body.height().get() > 1 {
            release(body.into_doomed());
        }
    }
}

thread_local! {
    /// Bodies to take apart; `Some` while an outer drop of this thread drains the list.
    static PENDING: RefCell<Option<Vec<Doomed>>> = const { RefCell::new(None) };
}

/// Drops `body`, or queues it when a drop further out is already draining: the stack stays as deep as one container.
fn release(body: Doomed) {
    let mut body = Some(body);
    let outermost = PENDING.try_with(|pending| {
        let mut pending = pending.borrow_mut();
        match pending.as_mut() {
            Some(list) => {
                list.extend(body.take());
                false
            }
            None => {
                *pending = Some(Vec::new());
                true
            }
        }
    });
    // When the thread is ending its list is gone, and the drop nests. The depth limit bounds it.
    drop(body);
    if !matches!(outermost, Ok(true)) {
        return;
    }
    while let Ok(Some(next)) = PENDING.try_with(|pending| pending.borrow_mut().as_mut().and_then(Vec::pop)) {
        drop(next);
    }
    // An error means the list is gone already.
    let _ = PENDING.try_with(|pending| pending.borrow_mut().take());
}
