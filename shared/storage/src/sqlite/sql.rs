//! Every statement of the backend, so that a test can look at the plan of each.
//!
//! A statement names the index that it is for: the planner has no choice that statistics of an empty or skewed table could turn.

macro_rules! statements {
    ($($name:ident = $text:expr;)*) => {
        $(pub(super) const $name: &str = $text;)*

        /// All of them with their names.
        #[cfg(test)]
        pub(super) const ALL: &[(&str, &str)] = &[$((stringify!($name), $name)),*];
    };
}

statements! {
    META = "SELECT value FROM meta WHERE key = ?1";
    META_INSERT = "INSERT INTO meta (key, value) VALUES (?1, ?2)";
    SETTLE = "UPDATE meta SET value = value + 1 WHERE key = 'settled'";
    MARK = "UPDATE meta SET value = ?1 WHERE key = 'settled'";
    MARK_IS = "SELECT 1 FROM meta WHERE key = 'settled' AND value = ?1";

    SESSION = "SELECT n, id, tenant, key, metadata, state, created_at FROM session INDEXED BY session_id WHERE id = ?1";
    SESSION_IS = "SELECT state FROM session WHERE n = ?1";
    SESSION_INSERT = "INSERT INTO session (id, tenant, key, metadata, state, created_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    SESSION_SET_STATE = "UPDATE session SET state = ?2 WHERE n = ?1";
    SESSION_PUBLISH = "UPDATE session SET id = ?2, metadata = ?3, created_at = ?4, state = ?5 WHERE n = ?1";
    SESSION_REMOVE = "DELETE FROM session WHERE n = ?1";
    SESSION_WALK = "SELECT n, id FROM session INDEXED BY session_id WHERE id > ?1 ORDER BY id LIMIT ?2";
    SESSION_SWEEP = "SELECT n FROM session INDEXED BY session_state WHERE state <> 0 AND state = ?1 LIMIT ?2";
    SESSIONS = "SELECT n, id, tenant, key, metadata, state, created_at FROM session INDEXED BY session_id
        WHERE id > ?1 AND ((?2 IS NULL AND state < 2) OR state = ?2) ORDER BY id LIMIT ?3";
    SESSIONS_OF_TENANT = "SELECT n, id, tenant, key, metadata, state, created_at FROM session INDEXED BY session_tenant
        WHERE tenant = ?4 AND id > ?1 AND ((?2 IS NULL AND state < 2) OR state = ?2) ORDER BY id LIMIT ?3";
    SESSIONS_WITH_KEY = "SELECT n, id, tenant, key, metadata, state, created_at FROM session INDEXED BY session_key
        WHERE key = ?5 AND id > ?1 AND (?4 IS NULL OR tenant = ?4) AND ((?2 IS NULL AND state < 2) OR state = ?2)
        ORDER BY id LIMIT ?3";
    SESSIONS_IN_STATE = "SELECT n, id, tenant, key, metadata, state, created_at FROM session INDEXED BY session_state
        WHERE state <> 0 AND state = ?2 AND id > ?1 AND (?4 IS NULL OR tenant = ?4) ORDER BY id LIMIT ?3";

    TOMBSTONE = "SELECT 1 FROM tombstone WHERE id = ?1";
    TOMBSTONE_PUT = "INSERT INTO tombstone (id, tenant, at) VALUES (?1, ?2, ?3) ON CONFLICT (id) DO UPDATE SET tenant = excluded.tenant, at = excluded.at";
    TOMBSTONES_OLD = "SELECT id FROM tombstone INDEXED BY tombstone_at WHERE at < ?1 ORDER BY at LIMIT ?2";
    TOMBSTONE_REMOVE = "DELETE FROM tombstone WHERE id = ?1";

    HEAD = "SELECT seq, token, epoch, next_id, opens, at FROM commits WHERE session = ?1 ORDER BY seq DESC LIMIT 1";
    COMMIT_INSERT = "INSERT INTO commits (session, seq, token, epoch, next_id, opens, at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    COMMIT_IS = "SELECT 1 FROM commits WHERE session = ?1 AND seq = ?2 AND token = ?3";
    COMMIT_CLEAR_OPENS = "UPDATE commits SET opens = 0 WHERE session = ?1 AND seq = ?2";
    COMMITS_OLDEST = "SELECT seq, at FROM commits WHERE session = ?1 AND seq < ?2 ORDER BY seq LIMIT ?3";
    COMMITS_REMOVE = "DELETE FROM commits WHERE session = ?1 AND seq >= ?2 AND seq <= ?3";

    CONVERSATION = "SELECT record FROM conversation WHERE session = ?1 AND id = ?2";
    CONVERSATION_INSERT = "INSERT INTO conversation (session, id, owner_conversation, owner_task, record) VALUES (?1, ?2, ?3, ?4, ?5)";
    CONVERSATIONS = "SELECT record FROM conversation NOT INDEXED WHERE session = ?1 AND id > ?2 ORDER BY id LIMIT ?3";
    CONVERSATIONS_OF_CONVERSATION = "SELECT record FROM conversation INDEXED BY conversation_owner
        WHERE session = ?1 AND owner_conversation = ?4 AND id > ?2 ORDER BY id LIMIT ?3";
    CONVERSATIONS_OF_TASK = "SELECT record FROM conversation INDEXED BY conversation_task
        WHERE session = ?1 AND owner_task = ?5 AND (?4 IS NULL OR owner_conversation = ?4) AND id > ?2 ORDER BY id LIMIT ?3";

    ENTRY = "SELECT record, seq, conversation FROM entry INDEXED BY entry_id WHERE session = ?1 AND id = ?2";
    ENTRY_IS = "SELECT 1 FROM entry INDEXED BY entry_id WHERE session = ?1 AND id = ?2";
    ENTRY_INSERT = "INSERT INTO entry (session, id, conversation, seq, head, record) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    ENTRIES_DOWN = "SELECT record FROM entry INDEXED BY entry_place
        WHERE session = ?1 AND conversation = ?2 AND id <= ?3 AND id >= ?4 ORDER BY id DESC LIMIT ?5";
    ENTRY_MARKER = "SELECT record FROM entry INDEXED BY entry_head
        WHERE session = ?1 AND conversation = ?2 AND id <= ?3 AND head IS NOT NULL ORDER BY id DESC LIMIT 1";
    ENTRIES_UP = "SELECT record, seq FROM entry INDEXED BY entry_id WHERE session = ?1 AND id > ?2 ORDER BY id LIMIT ?3";

    TASK = "SELECT record FROM task INDEXED BY task_id WHERE session = ?1 AND id = ?2";
    TASK_IDENTITY = "SELECT conversation, owner, kind FROM task INDEXED BY task_id WHERE session = ?1 AND id = ?2";
    TASK_INVOCATION = "SELECT invocation FROM task INDEXED BY task_id WHERE session = ?1 AND id = ?2";
    TASK_INSERT = "INSERT INTO task (session, id, conversation, owner, kind, status, live, abort, background, record)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
    // Where `live` stays as it is no index is touched; only the statement after this one changes it.
    TASK_REPLACE = "UPDATE task INDEXED BY task_id SET status = ?3, abort = ?5, background = ?6, record = ?7 WHERE session = ?1 AND id = ?2 AND live = ?4";
    TASK_TURN = "UPDATE task INDEXED BY task_id SET status = ?3, live = ?4, abort = ?5, background = ?6, record = ?7 WHERE session = ?1 AND id = ?2";
    TASK_SET_INVOCATION = "UPDATE task INDEXED BY task_id SET invocation = ?3 WHERE session = ?1 AND id = ?2";
    TASKS = "SELECT record FROM task INDEXED BY task_id WHERE session = ?1 AND id > ?2 AND (?4 IS NULL OR conversation = ?4)
        AND (?5 IS NULL OR owner = ?5) AND (?6 IS NULL OR kind = ?6) AND (?7 IS NULL OR status = ?7)
        AND (?8 IS NULL OR abort = ?8) AND (?9 IS NULL OR background = ?9) AND (?10 IS NULL OR live = ?10) ORDER BY id LIMIT ?3";
    TASKS_LIVE = "SELECT record FROM task INDEXED BY task_live WHERE session = ?1 AND id > ?2 AND (?4 IS NULL OR conversation = ?4)
        AND (?5 IS NULL OR owner = ?5) AND (?6 IS NULL OR kind = ?6) AND (?7 IS NULL OR status = ?7)
        AND (?8 IS NULL OR abort = ?8) AND (?9 IS NULL OR background = ?9) AND live = 1 ORDER BY id LIMIT ?3";
    TASKS_OF_CONVERSATION = "SELECT record FROM task INDEXED BY task_conversation WHERE session = ?1 AND id > ?2 AND conversation = ?4
        AND (?5 IS NULL OR owner = ?5) AND (?6 IS NULL OR kind = ?6) AND (?7 IS NULL OR status = ?7)
        AND (?8 IS NULL OR abort = ?8) AND (?9 IS NULL OR background = ?9) AND (?10 IS NULL OR live = ?10) ORDER BY id LIMIT ?3";
    TASKS_OF_OWNER = "SELECT record FROM task INDEXED BY task_owner WHERE session = ?1 AND id > ?2 AND (?4 IS NULL OR conversation = ?4)
        AND owner = ?5 AND (?6 IS NULL OR kind = ?6) AND (?7 IS NULL OR status = ?7)
        AND (?8 IS NULL OR abort = ?8) AND (?9 IS NULL OR background = ?9) AND (?10 IS NULL OR live = ?10) ORDER BY id LIMIT ?3";
    TASKS_OF_KIND = "SELECT record FROM task INDEXED BY task_kind WHERE session = ?1 AND id > ?2 AND (?4 IS NULL OR conversation = ?4)
        AND (?5 IS NULL OR owner = ?5) AND kind = ?6 AND (?7 IS NULL OR status = ?7)
        AND (?8 IS NULL OR abort = ?8) AND (?9 IS NULL OR background = ?9) AND (?10 IS NULL OR live = ?10) ORDER BY id LIMIT ?3";
    TASKS_UP = "SELECT record, invocation FROM task INDEXED BY task_id WHERE session = ?1 AND id > ?2 ORDER BY id LIMIT ?3";

    SUBMISSION = "SELECT record FROM submission INDEXED BY submission_id WHERE session = ?1 AND id = ?2";
    SUBMISSION_IDENTITY = "SELECT conversation, request_id, input FROM submission INDEXED BY submission_id WHERE session = ?1 AND id = ?2";
    SUBMISSION_BY_REQUEST = "SELECT record, id FROM submission INDEXED BY submission_request
        WHERE session = ?1 AND conversation = ?2 AND request_id = ?3";
    SUBMISSION_INSERT = "INSERT INTO submission (session, id, conversation, request_id, input, status, open, record)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
    SUBMISSION_REPLACE = "UPDATE submission INDEXED BY submission_id SET status = ?3, record = ?5 WHERE session = ?1 AND id = ?2 AND open = ?4";
    SUBMISSION_TURN = "UPDATE submission INDEXED BY submission_id SET status = ?3, open = ?4, record = ?5 WHERE session = ?1 AND id = ?2";
    SUBMISSIONS = "SELECT record FROM submission INDEXED BY submission_id WHERE session = ?1 AND id > ?2
        AND (?4 IS NULL OR conversation = ?4) AND (?5 IS NULL OR status = ?5) ORDER BY id LIMIT ?3";
    SUBMISSIONS_OPEN = "SELECT record FROM submission INDEXED BY submission_open WHERE session = ?1 AND id > ?2 AND open = 1
        AND (?4 IS NULL OR conversation = ?4) AND (?5 IS NULL OR status = ?5) ORDER BY id LIMIT ?3";
    SUBMISSIONS_OF_CONVERSATION = "SELECT record FROM submission INDEXED BY submission_conversation
        WHERE session = ?1 AND conversation = ?4 AND id > ?2 AND (?5 IS NULL OR status = ?5) ORDER BY id LIMIT ?3";

    DOCUMENT = "SELECT id, kind, name, scope, scope_id, policy, created_at, retired_at FROM document WHERE session = ?1 AND id = ?2";
    DOCUMENT_STATE = "SELECT id, kind, name, scope, scope_id, policy, created_at, retired_at,
        (SELECT version FROM content WHERE session = ?1 AND document = ?2 ORDER BY seq DESC LIMIT 1)
        FROM document WHERE session = ?1 AND id = ?2";
    DOCUMENT_INSERT = "INSERT INTO document (session, id, kind, name, scope, scope_id, policy, created_at, retired_at)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
    DOCUMENT_RETIRE = "UPDATE document SET retired_at = ?3 WHERE session = ?1 AND id = ?2";
    // Lifetimes at one address do not overlap, so the newest one that began by then is the only one that can be alive.
    DOCUMENT_AT = "SELECT id, kind, name, scope, scope_id, policy, created_at, retired_at FROM document INDEXED BY document_address
        WHERE session = ?1 AND scope = ?2 AND scope_id = ?3 AND kind = ?4 AND name = ?5 AND created_at <= ?6
        AND (retired_at IS NULL OR retired_at > created_at) ORDER BY created_at DESC LIMIT 1";
    DOCUMENTS = "SELECT id, kind, name, scope, scope_id, policy, created_at, retired_at FROM document INDEXED BY document_alive
        WHERE session = ?1 AND scope = ?2 AND scope_id = ?3 AND id > ?4 AND retired_at IS NULL AND created_at <= ?5
        AND (?6 IS NULL OR kind = ?6) ORDER BY id LIMIT ?7";
    DOCUMENTS_PAST = "SELECT id, kind, name, scope, scope_id, policy, created_at, retired_at FROM document INDEXED BY document_past
        WHERE session = ?1 AND scope = ?2 AND scope_id = ?3 AND id > ?4 AND retired_at IS NOT NULL AND created_at <= ?5
        AND retired_at > ?5 AND (?6 IS NULL OR kind = ?6) ORDER BY id LIMIT ?7";
    DOCUMENTS_UP = "SELECT id, kind, name, scope, scope_id, policy, created_at, retired_at FROM document NOT INDEXED
        WHERE session = ?1 AND id > ?2 ORDER BY id LIMIT ?3";

    CONTENT_INSERT = "INSERT INTO content (session, document, seq, version, base, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    CONTENT_DOWN = "SELECT version, base, body FROM content WHERE session = ?1 AND document = ?2 AND seq <= ?3 ORDER BY seq DESC";
    CONTENT_BASE = "SELECT seq FROM content WHERE session = ?1 AND document = ?2 AND base = 1 ORDER BY seq DESC LIMIT 1";
    CONTENT_UP = "SELECT seq, version, base, body FROM content WHERE session = ?1 AND document = ?2 AND seq > ?3 ORDER BY seq LIMIT ?4";
    CONTENT_OLDEST = "SELECT seq FROM content WHERE session = ?1 AND document = ?2 AND seq < ?3 ORDER BY seq LIMIT ?4";
    CONTENT_REMOVE = "DELETE FROM content WHERE session = ?1 AND document = ?2 AND seq >= ?3 AND seq <= ?4";

    RECLAIM_PUT = "INSERT INTO reclaim (session, document, below) VALUES (?1, ?2, ?3)
        ON CONFLICT (session, document) DO UPDATE SET below = max(below, excluded.below)";
    RECLAIM_NEXT = "SELECT session, document, below FROM reclaim WHERE (session, document) > (?1, ?2) ORDER BY session, document LIMIT 1";
    RECLAIM_REMOVE = "DELETE FROM reclaim WHERE session = ?1 AND document = ?2";

    REQUEST = "SELECT key, digest, answer, at FROM request WHERE session = ?1 AND key = ?2";
    REQUEST_PUT = "INSERT INTO request (session, key, digest, answer, at) VALUES (?1, ?2, ?3, ?4, ?5)
        ON CONFLICT (session, key) DO UPDATE SET digest = excluded.digest, answer = excluded.answer, at = excluded.at";
    REQUESTS_UP = "SELECT key, digest, answer, at FROM request NOT INDEXED WHERE session = ?1 AND key > ?2 ORDER BY key LIMIT ?3";
    REQUESTS_FIRST = "SELECT key, digest, answer, at FROM request NOT INDEXED WHERE session = ?1 ORDER BY key LIMIT ?2";
    REQUESTS_OLD = "SELECT session, key FROM request INDEXED BY request_at WHERE at < ?1 ORDER BY at LIMIT ?2";
    REQUEST_REMOVE = "DELETE FROM request WHERE session = ?1 AND key = ?2";

    OUTBOX_PUT = "INSERT INTO outbox (id, submission, body) VALUES (?1, ?2, ?3) ON CONFLICT (id, submission) DO UPDATE SET body = excluded.body";
    OUTBOX = "SELECT id, submission, body FROM outbox WHERE (id, submission) > (?1, ?2) ORDER BY id, submission LIMIT ?3";
    OUTBOX_REMOVE = "DELETE FROM outbox WHERE id = ?1 AND submission = ?2";
    OUTBOX_DROP = "DELETE FROM outbox WHERE id = ?1";

    WAKE = "SELECT at FROM wake WHERE id = ?1";
    WAKE_PUT = "INSERT INTO wake (id, partition, at) VALUES (?1, ?2, ?3) ON CONFLICT (id) DO UPDATE SET at = excluded.at";
    WAKE_DROP = "DELETE FROM wake WHERE id = ?1";
    WAKE_DUE = "SELECT id, at FROM wake INDEXED BY wake_due
        WHERE partition = ?1 AND (at, id) > (?2, ?3) AND at <= ?4 ORDER BY at, id LIMIT ?5";

    // One bounded step through the rows of a deleted session; up to a key or by a list of keys, since a DELETE has no LIMIT.
    SWEEP_COMMITS = "DELETE FROM commits WHERE session = ?1 AND seq IN (SELECT seq FROM commits WHERE session = ?1 LIMIT ?2)";
    SWEEP_CONVERSATION = "DELETE FROM conversation WHERE session = ?1 AND id IN
        (SELECT id FROM conversation NOT INDEXED WHERE session = ?1 LIMIT ?2)";
    SWEEP_ENTRY = "DELETE FROM entry INDEXED BY entry_id WHERE session = ?1 AND id <= ifnull(
        (SELECT id FROM entry INDEXED BY entry_id WHERE session = ?1 ORDER BY id LIMIT 1 OFFSET ?2 - 1), 9223372036854775807)";
    SWEEP_TASK = "DELETE FROM task INDEXED BY task_id WHERE session = ?1 AND id <= ifnull(
        (SELECT id FROM task INDEXED BY task_id WHERE session = ?1 ORDER BY id LIMIT 1 OFFSET ?2 - 1), 9223372036854775807)";
    SWEEP_SUBMISSION = "DELETE FROM submission INDEXED BY submission_id WHERE session = ?1 AND id <= ifnull(
        (SELECT id FROM submission INDEXED BY submission_id WHERE session = ?1 ORDER BY id LIMIT 1 OFFSET ?2 - 1), 9223372036854775807)";
    SWEEP_DOCUMENT = "DELETE FROM document WHERE session = ?1 AND id IN
        (SELECT id FROM document NOT INDEXED WHERE session = ?1 LIMIT ?2)";
    SWEEP_CONTENT = "DELETE FROM content WHERE session = ?1 AND (document, seq) IN
        (SELECT document, seq FROM content WHERE session = ?1 LIMIT ?2)";
    SWEEP_RECLAIM = "DELETE FROM reclaim WHERE session = ?1 AND document IN (SELECT document FROM reclaim WHERE session = ?1 LIMIT ?2)";
    SWEEP_REQUEST = "DELETE FROM request WHERE session = ?1 AND key IN (SELECT key FROM request NOT INDEXED WHERE session = ?1 LIMIT ?2)";
}

/// The tables of [`SWEEP_COMMITS`] and so on. The commits go last: as long as they are there a late commit of the old owner is fenced.
pub(super) const SWEEPS: [&str; 9] = [
    SWEEP_CONTENT,
    SWEEP_RECLAIM,
    SWEEP_DOCUMENT,
    SWEEP_ENTRY,
    SWEEP_TASK,
    SWEEP_SUBMISSION,
    SWEEP_REQUEST,
    SWEEP_CONVERSATION,
    SWEEP_COMMITS,
];
