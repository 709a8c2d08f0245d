//! The statements of reads and of single sessions, so that a test can look at the plan of each. Those of groups stand in `group` and
//! `settle`.

macro_rules! statements {
    ($($name:ident = $text:expr;)*) => {
        $(pub(super) const $name: &str = $text;)*

        /// All of them with their names.
        #[cfg(test)]
        pub(super) const ALL: &[(&str, &str)] = &[$((stringify!($name), $name)),*];
    };
}

/// The filters of a scan of tasks.
macro_rules! filters {
    () => {
        " AND ($4::bigint IS NULL OR conversation = $4) AND ($5::bigint IS NULL OR owner = $5) AND ($6::text IS NULL OR kind = $6)
          AND ($7::bigint IS NULL OR status = $7) AND ($8::boolean IS NULL OR abort = $8) AND ($9::boolean IS NULL OR background = $9)"
    };
}

/// Live and terminal tasks; the path is a condition that names the index with the fewest rows to pass over.
macro_rules! tasks {
    ($path:literal) => {
        concat!(
            "SELECT record FROM ((SELECT id, record FROM task_live WHERE session_id = $1 AND id > $2 AND NOT gone AND $10",
            filters!(),
            " ORDER BY id LIMIT $3) UNION ALL (SELECT id, record FROM task_done WHERE session_id = $1 AND id > $2 AND NOT gone AND $11",
            $path,
            filters!(),
            " ORDER BY id LIMIT $3)) t ORDER BY id LIMIT $3"
        )
    };
}

/// The rows of a deleted session up to the key of the last of a step.
macro_rules! sweep {
    ($table:literal, $key:literal) => {
        concat!(
            "DELETE FROM ",
            $table,
            " WHERE session_id = $1 AND ",
            $key,
            " <= coalesce((SELECT ",
            $key,
            " FROM ",
            $table,
            " WHERE session_id = $1 ORDER BY ",
            $key,
            " OFFSET $2::bigint - 1 LIMIT 1), 9223372036854775807)"
        )
    };
}

macro_rules! document {
    () => {
        "d.id, d.kind, d.name, d.scope, d.scope_id, d.policy, d.created_at, d.retired_at"
    };
}

statements! {
    SESSION = "SELECT id, tenant, key, metadata, state, created_at FROM session WHERE id = $1";
    SESSION_THERE = "SELECT 1 FROM session WHERE id = $1 AND state < 2";
    SESSION_HEAD = "SELECT s.id, s.tenant, s.key, s.metadata, s.state, s.created_at, c.seq, c.token, c.epoch, c.next_id, c.opens, c.at
        FROM session s LEFT JOIN LATERAL (SELECT * FROM commit WHERE session_id = $1 ORDER BY seq DESC LIMIT 1) c ON true WHERE s.id = $1";
    SESSION_INSERT = "INSERT INTO session (id, tenant, key, metadata, state, created_at) VALUES ($1, $2, $3, $4, 0, $5) ON CONFLICT DO NOTHING";
    SESSION_SET_STATE = "UPDATE session SET state = $2 WHERE id = $1 AND state < 2";
    SESSION_REMOVE = "DELETE FROM session WHERE id = $1 AND state = 2";
    // Sessions with the newest and the oldest row of their chains.
    SESSION_WALK = "SELECT s.id, h.seq, o.seq, o.at FROM (SELECT id FROM session WHERE id > $1 ORDER BY id LIMIT $2) s
        LEFT JOIN LATERAL (SELECT seq FROM commit WHERE session_id = s.id ORDER BY seq DESC LIMIT 1) h ON true
        LEFT JOIN LATERAL (SELECT seq, at FROM commit WHERE session_id = s.id ORDER BY seq LIMIT 1) o ON true ORDER BY s.id";
    SESSION_SWEEP = "SELECT id FROM session WHERE state = 2 AND state <> 0 ORDER BY id LIMIT $1";
    SESSIONS = "SELECT id, tenant, key, metadata, state, created_at FROM session
        WHERE id > $1 AND (($2::bigint IS NULL AND state < 2) OR state = $2) ORDER BY id LIMIT $3";
    SESSIONS_OF_TENANT = "SELECT id, tenant, key, metadata, state, created_at FROM session
        WHERE tenant = $4 AND id > $1 AND (($2::bigint IS NULL AND state < 2) OR state = $2) ORDER BY id LIMIT $3";
    SESSIONS_WITH_KEY = "SELECT id, tenant, key, metadata, state, created_at FROM session
        WHERE md5(key) = md5($5) AND key = $5 AND id > $1 AND ($4::text IS NULL OR tenant = $4)
        AND (($2::bigint IS NULL AND state < 2) OR state = $2) ORDER BY id LIMIT $3";
    SESSIONS_IN_STATE = "SELECT id, tenant, key, metadata, state, created_at FROM session
        WHERE state <> 0 AND state = $2::smallint AND id > $1 AND ($4::text IS NULL OR tenant = $4) ORDER BY id LIMIT $3";

    TOMBSTONE = "SELECT 1 FROM tombstone WHERE id = $1";
    TOMBSTONES_OLD = "SELECT t.id FROM tombstone t WHERE t.at < $1 AND (SELECT s.id FROM session s WHERE s.id = t.id) IS NULL
        ORDER BY t.at, t.id LIMIT $2";
    TOMBSTONE_REMOVE = "DELETE FROM tombstone WHERE id = $1";

    HEAD = "SELECT seq, token, epoch, next_id, opens, at FROM commit WHERE session_id = $1 ORDER BY seq DESC LIMIT 1";
    COMMIT_INSERT = "INSERT INTO commit (session_id, seq, token, epoch, next_id, opens, at) VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING";
    COMMIT_CLEAR_OPENS = "UPDATE commit SET opens = 0 WHERE session_id = $1 AND seq = $2";
    COMMITS_OLD = "SELECT seq, at FROM commit WHERE session_id = $1 AND seq < $2 ORDER BY seq LIMIT $3";
    COMMITS_REMOVE = "DELETE FROM commit WHERE session_id = $1 AND seq >= $2 AND seq <= $3";
    // Sessions in the order of the array, so that two takeovers lock them in the same order. The head is read by key and not joined.
    TAKE_OVER = "INSERT INTO commit (session_id, seq, token, epoch, next_id, opens, at)
        SELECT x.session, h.seq + 1, x.token, $3, h.next_id, h.opens, $4 FROM unnest($1::uuid[], $2::uuid[]) AS x (session, token)
        CROSS JOIN LATERAL (SELECT seq, epoch, next_id, opens FROM commit WHERE session_id = x.session ORDER BY seq DESC LIMIT 1) h
        WHERE h.epoch <= $3 AND (SELECT s.state FROM session s WHERE s.id = x.session) < 2
        ON CONFLICT DO NOTHING RETURNING session_id, seq, token, epoch, next_id, opens, at";
    TAKEABLE = "SELECT x.session FROM unnest($1::uuid[]) AS x (session)
        CROSS JOIN LATERAL (SELECT epoch FROM commit WHERE session_id = x.session ORDER BY seq DESC LIMIT 1) h
        WHERE h.epoch <= $2 AND (SELECT s.state FROM session s WHERE s.id = x.session) < 2";

    OWNER = "SELECT CASE
        WHEN EXISTS (SELECT FROM conversation WHERE session_id = $1 AND id = $2) THEN 'conversation'
        WHEN EXISTS (SELECT FROM entry WHERE session_id = $1 AND id = $2) THEN 'entry'
        WHEN EXISTS (SELECT FROM task_live WHERE session_id = $1 AND id = $2) THEN 'task'
        WHEN EXISTS (SELECT FROM task_done WHERE session_id = $1 AND id = $2) THEN 'task'
        WHEN EXISTS (SELECT FROM submission WHERE session_id = $1 AND id = $2) THEN 'submission'
        WHEN EXISTS (SELECT FROM document_record WHERE session_id = $1 AND id = $2) THEN 'document' END";

    CONVERSATION = "SELECT record FROM conversation WHERE session_id = $1 AND id = $2";
    CONVERSATIONS = "SELECT record FROM conversation WHERE session_id = $1 AND id > $2 ORDER BY id LIMIT $3";
    CONVERSATIONS_OF_CONVERSATION = "SELECT record FROM conversation
        WHERE session_id = $1 AND owner_conversation = $4 AND id > $2 ORDER BY id LIMIT $3";
    CONVERSATIONS_OF_TASK = "SELECT record FROM conversation
        WHERE session_id = $1 AND owner_task = $5 AND ($4::bigint IS NULL OR owner_conversation = $4) AND id > $2 ORDER BY id LIMIT $3";
    // A conversation and what it was forked from. It ends also where one is its own ancestor.
    ANCESTRY = "WITH RECURSIVE up AS (
          SELECT id, record, (record::json -> 'parent' ->> 'conversationId')::bigint AS parent FROM conversation WHERE session_id = $1 AND id = $2
          UNION SELECT c.id, c.record, (c.record::json -> 'parent' ->> 'conversationId')::bigint
          FROM up, LATERAL (SELECT id, record FROM conversation WHERE session_id = $1 AND id = up.parent) c
        ) SELECT record FROM up";

    ENTRY = "SELECT record, seq FROM entry WHERE session_id = $1 AND id = $2";
    ENTRIES_DOWN = "SELECT record FROM entry WHERE session_id = $1 AND conversation = $2 AND id <= $3 AND id >= $4 ORDER BY id DESC LIMIT $5";
    ENTRY_MARKER = "SELECT record FROM entry WHERE session_id = $1 AND conversation = $2 AND id <= $3 AND head IS NOT NULL ORDER BY id DESC LIMIT 1";
    ENTRIES_UP = "SELECT record, seq FROM entry WHERE session_id = $1 AND id > $2 AND id < $3 ORDER BY id LIMIT $4";

    TASK = "SELECT record FROM task_live WHERE session_id = $1 AND id = $2 AND NOT gone
        UNION ALL SELECT record FROM task_done WHERE session_id = $1 AND id = $2 AND NOT gone";
    TASK_INVOCATION = "SELECT invocation FROM task_live WHERE session_id = $1 AND id = $2 AND NOT gone
        UNION ALL SELECT invocation FROM task_done WHERE session_id = $1 AND id = $2 AND NOT gone";
    TASK_IDENTITY = "SELECT conversation, owner, kind, false, invocation IS NOT NULL FROM task_live WHERE session_id = $1 AND id = $2 AND NOT gone
        UNION ALL SELECT conversation, owner, kind, true, invocation IS NOT NULL FROM task_done WHERE session_id = $1 AND id = $2 AND NOT gone";
    TASKS = tasks!("");
    TASKS_OF_CONVERSATION = tasks!(" AND conversation = $4");
    TASKS_OF_OWNER = tasks!(" AND owner = $5");
    TASKS_OF_KIND = tasks!(" AND md5(kind) = md5($6)");

    SUBMISSION = "SELECT record FROM submission WHERE session_id = $1 AND id = $2";
    SUBMISSION_BY_REQUEST = "SELECT record, id FROM submission WHERE session_id = $1 AND conversation = $2 AND request = $3";
    SUBMISSIONS = "SELECT record FROM submission WHERE session_id = $1 AND id > $2
        AND ($4::bigint IS NULL OR conversation = $4) AND ($5::bigint IS NULL OR status = $5) ORDER BY id LIMIT $3";
    SUBMISSIONS_OPEN = "SELECT record FROM submission WHERE session_id = $1 AND id > $2 AND open
        AND ($4::bigint IS NULL OR conversation = $4) AND ($5::bigint IS NULL OR status = $5) ORDER BY id LIMIT $3";
    SUBMISSIONS_OF_CONVERSATION = "SELECT record FROM submission
        WHERE session_id = $1 AND conversation = $4 AND id > $2 AND ($5::bigint IS NULL OR status = $5) ORDER BY id LIMIT $3";

    DOCUMENT_STATE = concat!("SELECT ", document!(), ",
        (SELECT version FROM document_content WHERE session_id = $1 AND document = $2 ORDER BY seq DESC LIMIT 1)
        FROM document_record d WHERE d.session_id = $1 AND d.id = $2");
    // Lifetimes at one address do not overlap, so the newest one that began by then is the only one that can be alive.
    DOCUMENT_AT = concat!("SELECT ", document!(), " FROM document_record d
        WHERE session_id = $1 AND scope = $2::bigint AND scope_id = $3 AND address = $4 AND created_at <= $5
        AND (retired_at IS NULL OR retired_at > created_at) ORDER BY created_at DESC LIMIT 1");
    DOCUMENTS = concat!("SELECT ", document!(), " FROM document_record d
        WHERE session_id = $1 AND scope = $2::bigint AND scope_id = $3 AND id > $4 AND retired_at IS NULL AND created_at <= $5
        AND ($6::text IS NULL OR kind = $6) ORDER BY id LIMIT $7");
    DOCUMENTS_AT = concat!("SELECT * FROM ((SELECT ", document!(), " FROM document_record d
          WHERE session_id = $1 AND scope = $2::bigint AND scope_id = $3 AND id > $4 AND retired_at IS NULL AND created_at <= $5
          AND ($6::text IS NULL OR kind = $6) ORDER BY id LIMIT $7)
        UNION ALL (SELECT ", document!(), " FROM document_record d
          WHERE session_id = $1 AND scope = $2::bigint AND scope_id = $3 AND id > $4 AND retired_at IS NOT NULL AND created_at <= $5
          AND retired_at > $5 AND ($6::text IS NULL OR kind = $6) ORDER BY id LIMIT $7)) d ORDER BY id LIMIT $7");
    DOCUMENTS_UP = concat!("SELECT ", document!(), " FROM document_record d WHERE session_id = $1 ORDER BY id");

    // One statement and so one state of the database: the record, the newest base at or before $3, and what came after it.
    DOCUMENT = concat!("SELECT ", document!(), ", c.seq, c.version, c.base, c.body FROM document_record d
        LEFT JOIN LATERAL (SELECT seq, version, base, body FROM document_content WHERE session_id = $1 AND document = $2 AND seq <= $3
          AND seq >= (SELECT seq FROM document_content WHERE session_id = $1 AND document = $2 AND seq <= $3 AND base ORDER BY seq DESC LIMIT 1)
          ORDER BY seq DESC) c ON true
        WHERE d.session_id = $1 AND d.id = $2 ORDER BY c.seq DESC");
    CONTENT_DOWN = "SELECT version, base, body FROM document_content WHERE session_id = $1 AND document = $2 AND seq <= $3
        AND seq >= (SELECT seq FROM document_content WHERE session_id = $1 AND document = $2 AND seq <= $3 AND base ORDER BY seq DESC LIMIT 1)
        ORDER BY seq DESC";
    CONTENT_UP = "SELECT seq, version, base, body FROM document_content WHERE session_id = $1 AND document = $2 AND seq > $3 AND seq <= $4
        ORDER BY seq LIMIT $5";
    CONTENT_OLDEST = "SELECT seq FROM document_content WHERE session_id = $1 AND document = $2 AND seq < $3 ORDER BY seq LIMIT $4";
    CONTENT_REMOVE = "DELETE FROM document_content WHERE session_id = $1 AND document = $2 AND seq >= $3 AND seq <= $4";

    RECLAIM_NEXT = "SELECT session_id, document, below FROM reclaim WHERE (session_id, document) > ($1, $2) ORDER BY session_id, document LIMIT $3";
    RECLAIM_REMOVE = "DELETE FROM reclaim WHERE session_id = $1 AND document = $2 AND below = $3";

    LIVE_WALK = "SELECT session_id, id, gone FROM task_live WHERE (session_id, id) > ($1, $2) ORDER BY session_id, id LIMIT $3";
    LIVE_REMOVE = "DELETE FROM task_live WHERE session_id = $1 AND id = $2 AND gone";

    REQUEST = "SELECT key, digest, answer, at FROM request WHERE session_id = $1 AND name = $2";
    REQUESTS_OLD = "SELECT session_id, name FROM request WHERE at < $1 ORDER BY at, session_id, name LIMIT $2";
    REQUEST_REMOVE = "DELETE FROM request WHERE session_id = $1 AND name = $2 AND at < $3";

    OUTBOX = "SELECT session_id, submission, body FROM outbox WHERE (session_id, submission) > ($1, $2) ORDER BY session_id, submission LIMIT $3";
    OUTBOX_REMOVE = "DELETE FROM outbox WHERE session_id = $1 AND submission = $2";

    WAKE = "SELECT at FROM wake WHERE session_id = $1 AND at IS NOT NULL";
    WAKE_DROP = "DELETE FROM wake WHERE session_id = $1";
    // The index is by partition first: the earliest of each partition, of which the earliest are taken.
    WAKE_DUE = "SELECT w.session_id, w.at FROM unnest($1::integer[]) AS p (partition)
        CROSS JOIN LATERAL (SELECT session_id, at FROM wake WHERE partition = p.partition AND at IS NOT NULL AND (at, session_id) > ($2, $3)
          AND at <= $4 ORDER BY at, session_id LIMIT $5) w ORDER BY w.at, w.session_id LIMIT $5";
}

/// The rows of a deleted session in bounded steps, in the order of their keys: the chain first, from its beginning, so that a row of an
/// earlier owner finds no predecessor.
pub(super) const SWEEPS: [&str; 11] = [
    sweep!("commit", "seq"),
    sweep!("conversation", "id"),
    sweep!("entry", "id"),
    sweep!("task_live", "id"),
    sweep!("task_done", "id"),
    sweep!("submission", "id"),
    sweep!("document_record", "id"),
    "DELETE FROM document_content WHERE session_id = $1 AND (document, seq) <= (coalesce(
        (SELECT document FROM document_content WHERE session_id = $1 ORDER BY document, seq OFFSET $2::bigint - 1 LIMIT 1), 9223372036854775807), coalesce(
        (SELECT seq FROM document_content WHERE session_id = $1 ORDER BY document, seq OFFSET $2::bigint - 1 LIMIT 1), 9223372036854775807))",
    sweep!("reclaim", "document"),
    "DELETE FROM request WHERE session_id = $1 AND name IN (SELECT name FROM request WHERE session_id = $1 ORDER BY name LIMIT $2::bigint)",
    "DELETE FROM outbox WHERE session_id = $1 AND submission <= coalesce(
        (SELECT submission FROM outbox WHERE session_id = $1 ORDER BY submission OFFSET $2::bigint - 1 LIMIT 1), 9223372036854775807)",
];
