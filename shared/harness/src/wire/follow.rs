//! The messages of somebody who follows a conversation (sections 9.3 and 9.4). Frames are pulled: an answer waits on the line until there
//! is one. The line keeps nothing of a reader but that it was there, so that a message can be repeated, and another owner can answer it.

use std::sync::Arc;

use picofleet_session::ConversationId;
use serde::{Deserialize, Serialize};

use super::{Point, WatchId};
use crate::frame::Frame;
use crate::view::Mount;

/// What is asked about a followed conversation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Follow {
    /// The reader's name.
    pub reader: WatchId,
    /// The conversation.
    pub conversation: ConversationId,
    /// What is asked.
    pub call: FollowCall,
}

/// What a reader asks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FollowCall {
    /// What comes behind a commit.
    #[serde(rename_all = "camelCase")]
    Next {
        /// The newest commit that the reader is complete to; without one it gets a snapshot at once.
        after: Option<Point>,
        /// How long to wait for a frame, in milliseconds.
        timeout_ms: u64,
    },
    /// The reader goes away.
    Stop,
}

/// What a reader gets.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Following {
    /// The whole: it has nothing yet, or what it has is not known here or too far behind.
    Snapshot(Box<Mount>),
    /// Frames in the order of their commits; none where the time is over.
    #[serde(rename_all = "camelCase")]
    Frames {
        /// The frames.
        frames: Vec<Arc<Frame>>,
        /// The newest commit that the reader is complete to with them. It need not be one of the conversation.
        complete_to: Point,
    },
    /// The session is closing.
    Closed,
}
