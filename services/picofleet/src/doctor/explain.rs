//! What a broken rule means, and what to do.

/// Whether it is damage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Level {
    /// Something is wrong.
    Finding,
    /// It is as it may be.
    Note,
}

const RESTORE: &str =
    "restore the store from a backup, or import the session from an export; keep the damaged file to find out what damaged it";
const REPORT: &str =
    "keep the store as it is and report it with `picofleet export` of the session; work on an export taken before, where there is one";

/// The meaning and the advice of each rule.
pub(super) fn explain(rule: &str) -> (Level, &'static str, &'static str) {
    use Level::{Finding, Note};
    match rule {
        "integrity" => {
            (Finding, "SQLite finds its own file damaged: a disk, a copy made while it was open, or another program did that", RESTORE)
        }
        "files" => (
            Finding,
            "the files of this session contradict each other or lack something that was confirmed; it can't be opened, the others can",
            RESTORE,
        ),
        "record" => {
            (Finding, "a stored record can't be read; whatever needs it fails, and the rest of its session was not looked at", RESTORE)
        }
        "index" => (
            Finding,
            "a column that queries look at is not what its record says, so that queries miss the record or find it wrongly",
            RESTORE,
        ),
        "chain" => (Finding, "the rows of commits don't follow each other, so that an owner who should be refused might not be", RESTORE),
        "session" => (Finding, "the row of a session contradicts itself", RESTORE),
        "content" => (Finding, "a document has no value to begin with; reading it fails", RESTORE),
        "orphan" => (
            Finding,
            "rows are there that nothing reads and nothing removes",
            "export the sessions into a new store; the rows do no harm but take space",
        ),
        "reference" => (Finding, "a record names another one that is not there or is somewhere else", REPORT),
        "C1" => (Finding, "an id or a sequence is used that no commit made; new records may collide with it", RESTORE),
        "C2" => (Finding, "entries are out of order, so that a context is derived in another order than it was said", REPORT),
        "T3" => (Finding, "the owner of a task is not there or in another conversation; aborts and ends don't reach the task", REPORT),
        "T4" => (Finding, "a task runs for nobody; it is taken again when its session is opened", REPORT),
        "T5" => (Finding, "a task waits for what is not there, or for itself", REPORT),
        "T6" => (Finding, "a task is over while work below it is live; nobody waits for that work", REPORT),
        "T7" => (Finding, "a task was restarted more often than it may be without progress", REPORT),
        "task" => (Finding, "the record of a task that is over has what only a live one has, or lacks its end", REPORT),
        "submission" => (Finding, "a submission names an entry that is not there", REPORT),
        "D1" => (Finding, "the inbox and the queued submissions differ: some input is lost, or waits for ever", REPORT),
        "D2" => (Finding, "what is shown as running is not what runs; inputs may never be settled", REPORT),
        "D3" => (Finding, "the counted usage is not what the entries add up to; costs are reported wrongly", REPORT),
        "D4" => (Finding, "a change of a document does not apply to the value before it; reading it fails", RESTORE),
        "document" => (
            Finding,
            "a document of the harness has a value that this program can't read",
            "run the program that wrote it; if that is this one, report it",
        ),
        "tail" => (
            Note,
            "the end of a file is a commit that is being written just now, or that a kill cut off before it was confirmed",
            "nothing: the next process that opens the store cuts it off; nobody was told that it was stored",
        ),
        "import" => {
            (Note, "rows of an import that runs or was cut off; nobody sees them", "nothing: maintenance removes them once no import runs")
        }
        "quarantine" => (
            Note,
            "opening the session failed three times in a row, so that nothing opens it",
            "find out why (the log of the process that tried), then let it be opened again with `picofleet retry --session ID`",
        ),
        _ => (Finding, "a rule of the store is broken", REPORT),
    }
}
