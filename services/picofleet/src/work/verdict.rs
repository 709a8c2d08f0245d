//! What is said of a submission that was not answered.

use std::borrow::Cow;

use anyhow::bail;
use picofleet_session::{InputState, SubmissionRecord, SubmissionState};

/// Why a submission was not answered, as others wrote it; `None` for every other one.
pub(crate) fn unanswered(record: &SubmissionRecord) -> Option<String> {
    let SubmissionState::Input(InputState::Unanswered { reason, detail, .. }) = &record.state else { return None };
    let detail = detail.as_ref().map(|detail| detail.as_str().map_or_else(|| detail.to_string(), Cow::into_owned));
    Some(detail.map_or_else(|| reason.to_string(), |detail| format!("{reason}: {detail}")))
}

/// The end of a run that waited for a submission; `failure` is why the last answer failed, for one that waited for none.
pub(crate) fn verdict(settled: Option<&SubmissionRecord>, failure: Option<&str>) -> anyhow::Result<()> {
    // Each on one line, so that it can be told from the causes that stand below.
    match settled {
        Some(record) => match unanswered(record) {
            Some(why) => bail!("unanswered, {}", crate::terminal::line(&why)),
            None => Ok(()),
        },
        None => match failure {
            Some(why) => bail!("unanswered: {}", crate::terminal::line(why)),
            None => Ok(()),
        },
    }
}
