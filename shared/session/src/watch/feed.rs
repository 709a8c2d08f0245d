//! Watches whose document is elsewhere: what a transport brings is kept and folded as the frames of a commit here.

use std::marker::PhantomData;
use std::sync::Arc;

use picofleet_delta::{Json, Op};

use super::{Channel, RawFrame, Watch, WatchEnd};
use crate::{DocValue, DocumentId, Seq};

/// Brings the frames of a watch (section 9.2).
pub struct WatchFeed {
    channel: Arc<Channel>,
}

impl WatchFeed {
    /// A later revision, with the operations from the one before.
    pub fn push(&self, value: Json, ops: Arc<[Op]>, seq: Seq) {
        let mut state = self.channel.lock();
        if state.end.is_some() {
            return;
        }
        state.newest = Some(value.clone());
        self.channel.push(&mut state, RawFrame { value: Some(value), ops, seq });
        drop(state);
        self.channel.changed.notify_one();
    }

    /// The document is retired: the watch ends behind what was fed.
    pub fn retire(&self, seq: Seq) {
        let mut state = self.channel.lock();
        if state.end.is_some() {
            return;
        }
        state.newest = None;
        state.retired = true;
        self.channel.push(&mut state, RawFrame { value: None, ops: Arc::from([Op::Replace(Json::null())]), seq });
        drop(state);
        self.channel.changed.notify_one();
    }

    /// Ends the watch; what was fed and not taken is not delivered any more.
    pub fn end(&self, end: WatchEnd) {
        self.channel.end(end);
    }

    /// Waits until everything that was fed was taken; `false` once the watch has ended.
    pub async fn wanted(&self) -> bool {
        loop {
            {
                let state = self.channel.lock();
                if state.end.is_some() {
                    return false;
                }
                if state.pending.is_empty() && !state.retired {
                    return true;
                }
            }
            self.channel.taken.notified().await;
        }
    }

    /// Waits until the watch has ended.
    pub async fn ended(&self) {
        while self.channel.lock().end.is_none() {
            self.channel.taken.notified().await;
        }
    }
}

impl<T: DocValue> Watch<T> {
    /// A watch that is fed from elsewhere, beginning with `value`.
    #[must_use]
    pub fn fed(kind: &'static str, document: DocumentId, value: Json) -> (Self, WatchFeed) {
        let channel = Channel::new(document, true, Some(value.clone()), 0);
        let feed = WatchFeed { channel: Arc::clone(&channel) };
        let (observers, value) = (Arc::default(), Some(value));
        (Self { channel, observers, cancel: Vec::new(), value, kind, ty: PhantomData }, feed)
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;

    use super::super::WATCH_FRAMES_MAX;
    use super::*;

    #[derive(serde::Serialize, serde::Deserialize)]
    struct Count {
        n: i64,
    }

    fn value(n: i64) -> Json {
        Json::object([("n", n)])
    }

    fn fed() -> (Watch<Count>, WatchFeed) {
        Watch::fed("app.count", DocumentId::new(7).unwrap(), value(0))
    }

    fn push(feed: &WatchFeed, n: i64) {
        feed.push(value(n), Arc::from([Op::Replace(value(n))]), Seq(n));
    }

    #[tokio::test]
    async fn what_is_fed_is_wanted_once_it_was_taken() {
        let (mut watch, feed) = fed();
        assert!(feed.wanted().await);
        push(&feed, 1);
        push(&feed, 2);
        {
            let wanted = feed.wanted();
            tokio::pin!(wanted);
            assert!(futures::poll!(&mut wanted).is_pending());
            assert_eq!(watch.next().await.unwrap().read().unwrap().unwrap().n, 1);
            assert!(futures::poll!(&mut wanted).is_pending());
            assert_eq!(watch.next().await.unwrap().seq, Seq(2));
            assert!(wanted.await);
        }
        feed.retire(Seq(3));
        assert!(watch.next().await.unwrap().value.is_none());
        assert!(watch.next().await.is_none());
        assert!(!feed.wanted().await);
        assert_eq!(watch.end().unwrap().reason(), "retired");
    }

    #[tokio::test]
    async fn too_much_becomes_one_frame() {
        let (mut watch, feed) = fed();
        let last = i64::try_from(WATCH_FRAMES_MAX).unwrap() + 1;
        (1..=last).for_each(|n| push(&feed, n));
        assert_eq!(watch.next().await.unwrap().read().unwrap().unwrap().n, last);
    }

    #[tokio::test]
    async fn a_stop_counts_at_once_and_a_drop_ends_the_feed() {
        let (watch, feed) = fed();
        let stop = CancellationToken::new();
        let mut watch = watch.until_ends(stop.clone(), WatchEnd::Stopped);
        push(&feed, 1);
        stop.cancel();
        assert!(watch.next().await.is_none());
        assert_eq!(watch.end().unwrap().reason(), "stopped");
        feed.end(WatchEnd::Takeover);
        assert_eq!(watch.end().unwrap().reason(), "stopped", "the first reason holds");
        let (watch, feed) = fed();
        drop(watch);
        feed.ended().await;
        assert!(!feed.wanted().await);
    }
}
