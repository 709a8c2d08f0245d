//! A group: the batches of many sessions in one statement with arrays as parameters (`protocol.md` 2).
//!
//! The first branch inserts the first commit row of each batch whose predecessor is there, and gives the winners. Every other branch writes
//! for winners only. `(.. IN ..) IS TRUE` keeps the planner from turning the restriction into a join: a hashed subplan is what it is,
//! whatever the statistics say.

use std::borrow::Cow;

use picofleet_session::storage::Head;
use picofleet_session::{CommitToken, Id, PartitionCount, SessionId};
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::rows;
use super::staged::{Staged, TaskRow};

/// A batch of a group.
pub(super) struct Part<'b> {
    pub(super) session: SessionId,
    /// The token of the predecessor.
    pub(super) behind: CommitToken,
    pub(super) staged: &'b Staged,
}

macro_rules! arrays {
    ($($name:ident $(<$life:lifetime>)? { $($column:ident: $type:ty),* $(,)? })*) => {
        $(
            #[derive(Debug, Default)]
            struct $name $(<$life>)? { $($column: Vec<$type>),* }

            impl $(<$life>)? $name $(<$life>)? {
                fn columns(&self) -> Vec<&(dyn ToSql + Sync)> {
                    vec![$(&self.$column),*]
                }
            }
        )*
    };
}

/// Texts of the batches, or made of them.
type Text<'b> = Cow<'b, str>;

arrays! {
    Firsts { session: Uuid, behind: Uuid, seq: i64, token: Uuid, epoch: i64, next_id: i64, at: i64 }
    Rest { session: Uuid, seq: i64, token: Uuid, epoch: i64, next_id: i64, at: i64 }
    Conversations<'b> { session: Uuid, id: i64, owner_conversation: Option<i64>, owner_task: Option<i64>, record: Text<'b> }
    Entries<'b> { session: Uuid, id: i64, conversation: i64, seq: i64, head: Option<i64>, record: Text<'b> }
    Tasks<'b> {
        session: Uuid, id: i64, gone: bool, conversation: Option<i64>, owner: Option<i64>, kind: Option<Text<'b>>, status: Option<i64>,
        abort: Option<bool>, background: Option<bool>, record: Option<Text<'b>>, invocation: Option<Text<'b>>,
    }
    Submissions<'b> {
        session: Uuid, id: i64, conversation: i64, request: Option<Text<'b>>, input: bool, status: i64, open: bool, record: Text<'b>,
    }
    Records<'b> {
        session: Uuid, id: i64, kind: Text<'b>, name: Text<'b>, address: Text<'b>, scope: i64, scope_id: i64, policy: i64, created_at: i64,
        retired_at: Option<i64>,
    }
    Contents<'b> { session: Uuid, document: i64, seq: i64, version: i64, base: bool, body: Text<'b> }
    Reclaims { session: Uuid, document: i64, below: i64 }
    Requests<'b> { session: Uuid, name: Text<'b>, key: Text<'b>, digest: Text<'b>, answer: Text<'b>, at: i64 }
    Notices<'b> { session: Uuid, submission: i64, body: Text<'b> }
    Wakes { session: Uuid, partition: i64, at: Option<i64> }
}

/// The arrays of a statement.
#[derive(Debug, Default)]
pub(super) struct Arrays<'b> {
    firsts: Firsts,
    rest: Rest,
    entries: Entries<'b>,
    live: Tasks<'b>,
    done: Tasks<'b>,
    submissions: Submissions<'b>,
    contents: Contents<'b>,
    reclaims: Reclaims,
    conversations: Conversations<'b>,
    records: Records<'b>,
    requests: Requests<'b>,
    notices: Notices<'b>,
    wakes: Wakes,
    wide: bool,
}

impl<'b> Arrays<'b> {
    /// Of some batches. The arrays are in the order of the sessions: two groups that share sessions lock them in the same order.
    pub(super) fn new(mut parts: Vec<Part<'b>>, partitions: PartitionCount) -> Self {
        parts.sort_by_key(|part| part.session);
        let mut arrays = Self::default();
        for part in parts {
            arrays.wide |= !part.staged.narrow();
            arrays.chain(&part);
            arrays.rows(rows::uuid(part.session), part.staged);
            arrays.wide_rows(&part, partitions);
        }
        arrays
    }

    fn chain(&mut self, part: &Part<'_>) {
        let session = rows::uuid(part.session);
        for (index, head) in part.staged.commits.iter().enumerate() {
            let Head { seq, token, epoch, next_id, at, .. } = *head;
            let token = rows::token(token);
            if index == 0 {
                let firsts = &mut self.firsts;
                firsts.session.push(session);
                firsts.behind.push(rows::token(part.behind));
                firsts.seq.push(seq.0);
                firsts.token.push(token);
                firsts.epoch.push(epoch.0);
                firsts.next_id.push(next_id);
                firsts.at.push(at.0);
            } else {
                let rest = &mut self.rest;
                rest.session.push(session);
                rest.seq.push(seq.0);
                rest.token.push(token);
                rest.epoch.push(epoch.0);
                rest.next_id.push(next_id);
                rest.at.push(at.0);
            }
        }
    }

    fn rows(&mut self, session: Uuid, staged: &'b Staged) {
        for row in &staged.entries {
            let entries = &mut self.entries;
            entries.session.push(session);
            entries.id.push(row.id);
            entries.conversation.push(row.conversation);
            entries.seq.push(row.seq);
            entries.head.push(row.head);
            entries.record.push(Cow::Borrowed(&row.record));
        }
        for (id, row) in &staged.tasks {
            let (to, from) = if row.known.terminal { (&mut self.done, &mut self.live) } else { (&mut self.live, &mut self.done) };
            to.push(session, id.get(), row);
            if row.moves() {
                from.mark(session, id.get());
            }
        }
        for (id, row) in &staged.submissions {
            let submissions = &mut self.submissions;
            submissions.session.push(session);
            submissions.id.push(id.get());
            submissions.conversation.push(row.identity.conversation_id.get());
            submissions.request.push(row.identity.request_id.as_deref().map(|request| rows::indexable(request).into()));
            submissions.input.push(row.identity.input);
            submissions.status.push(row.status);
            submissions.open.push(row.open);
            submissions.record.push(Cow::Borrowed(&row.record));
        }
        for row in &staged.contents {
            let contents = &mut self.contents;
            contents.session.push(session);
            contents.document.push(row.document.get());
            contents.seq.push(row.seq);
            contents.version.push(i64::from(row.content.version()));
            contents.base.push(matches!(row.content, picofleet_session::DocumentContent::Base { .. }));
            contents.body.push(Cow::Borrowed(&row.body));
        }
        for (id, below) in &staged.reclaim {
            self.reclaims.session.push(session);
            self.reclaims.document.push(id.get());
            self.reclaims.below.push(*below);
        }
    }

    fn wide_rows(&mut self, part: &Part<'b>, partitions: PartitionCount) {
        let (session, staged) = (rows::uuid(part.session), part.staged);
        for row in &staged.conversations {
            let conversations = &mut self.conversations;
            conversations.session.push(session);
            conversations.id.push(row.id);
            conversations.owner_conversation.push(row.owner.map(|owner| owner.0));
            conversations.owner_task.push(row.owner.map(|owner| owner.1));
            conversations.record.push(Cow::Borrowed(&row.record));
        }
        for (id, state) in &staged.documents {
            let (kind, name, scope, scope_id, policy, created_at, retired_at) = rows::document_columns(&state.record);
            let records = &mut self.records;
            records.session.push(session);
            records.id.push(id.get());
            records.address.push(rows::address(kind, &name).into());
            records.kind.push(rows::escape(kind));
            records.name.push(rows::escape(&name).into_owned().into());
            records.scope.push(scope);
            records.scope_id.push(scope_id);
            records.policy.push(policy);
            records.created_at.push(created_at);
            records.retired_at.push(retired_at);
        }
        for (key, row) in &staged.requests {
            let requests = &mut self.requests;
            requests.session.push(session);
            requests.name.push(rows::indexable(key).into());
            requests.key.push(rows::escape(key));
            requests.digest.push(rows::escape(&row.digest));
            requests.answer.push(Cow::Borrowed(&row.answer));
            requests.at.push(row.at.0);
        }
        for (submission, body) in &staged.outbox {
            self.notices.session.push(session);
            self.notices.submission.push(submission.get());
            self.notices.body.push(Cow::Borrowed(body));
        }
        if let Some(at) = staged.wake {
            self.wakes.session.push(session);
            self.wakes.partition.push(i64::from(part.session.partition(partitions)));
            self.wakes.at.push(at.map(|at| at.0));
        }
    }

    /// Which of the two statements writes these.
    pub(super) fn sql(&self) -> &'static str {
        if self.wide { WIDE } else { NARROW }
    }

    /// Its parameters.
    pub(super) fn parameters(&self) -> Vec<&(dyn ToSql + Sync)> {
        let mut parameters = self.firsts.columns();
        parameters.extend(self.rest.columns());
        parameters.extend(self.entries.columns());
        parameters.extend(self.live.columns());
        parameters.extend(self.done.columns());
        parameters.extend(self.submissions.columns());
        parameters.extend(self.contents.columns());
        parameters.extend(self.reclaims.columns());
        if self.wide {
            parameters.extend(self.conversations.columns());
            parameters.extend(self.records.columns());
            parameters.extend(self.requests.columns());
            parameters.extend(self.notices.columns());
            parameters.extend(self.wakes.columns());
        }
        parameters
    }
}

impl<'b> Tasks<'b> {
    fn push(&mut self, session: Uuid, id: i64, row: &'b TaskRow) {
        let (identity, columns) = (&row.known.identity, row.columns.as_ref());
        self.session.push(session);
        self.id.push(id);
        self.gone.push(false);
        self.conversation.push(Some(identity.conversation_id.get()));
        self.owner.push(identity.owner.map(Id::get));
        self.kind.push(Some(rows::escape(&identity.kind)));
        self.status.push(columns.map(|columns| columns.status));
        self.abort.push(columns.map(|columns| columns.abort));
        self.background.push(columns.map(|columns| columns.background));
        self.record.push(columns.map(|columns| Cow::Borrowed(&*columns.record)));
        self.invocation.push(row.invocation.as_deref().map(Cow::Borrowed));
    }

    /// The task's row is in the other table now.
    fn mark(&mut self, session: Uuid, id: i64) {
        self.session.push(session);
        self.id.push(id);
        self.gone.push(true);
        self.conversation.push(None);
        self.owner.push(None);
        self.kind.push(None);
        self.status.push(None);
        self.abort.push(None);
        self.background.push(None);
        self.record.push(None);
        self.invocation.push(None);
    }
}

// The branch that decides who has the line of a session.
macro_rules! won {
    () => {
        "WITH won AS (
  INSERT INTO commit (session_id, seq, token, epoch, next_id, opens, at)
  SELECT b.session, b.seq, b.token, b.epoch, b.next_id, 0, b.at
  FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::uuid[], $5::bigint[], $6::bigint[], $7::bigint[])
    AS b (session, behind, seq, token, epoch, next_id, at)
  WHERE (SELECT c.token FROM commit c WHERE c.session_id = b.session AND c.seq = b.seq - 1) = b.behind
  ON CONFLICT DO NOTHING RETURNING session_id
)"
    };
}

macro_rules! winners {
    () => {
        "WHERE (x.session IN (SELECT session_id FROM won)) IS TRUE"
    };
}

macro_rules! task_upsert {
    ($table:literal) => {
        concat!(
            " ON CONFLICT (session_id, id) DO UPDATE SET gone = excluded.gone, status = coalesce(excluded.status, ",
            $table,
            ".status), abort = coalesce(excluded.abort, ",
            $table,
            ".abort), background = coalesce(excluded.background, ",
            $table,
            ".background), conversation = coalesce(excluded.conversation, ",
            $table,
            ".conversation), owner = coalesce(excluded.owner, ",
            $table,
            ".owner), kind = coalesce(excluded.kind, ",
            $table,
            ".kind), record = CASE WHEN excluded.gone THEN NULL ELSE coalesce(excluded.record, ",
            $table,
            ".record) END, invocation = coalesce(excluded.invocation, ",
            $table,
            ".invocation)"
        )
    };
}

macro_rules! narrow_branches {
    () => {
        concat!(
            ", rest AS (INSERT INTO commit (session_id, seq, token, epoch, next_id, opens, at)
  SELECT x.session, x.seq, x.token, x.epoch, x.next_id, 0, x.at
  FROM unnest($8::uuid[], $9::bigint[], $10::uuid[], $11::bigint[], $12::bigint[], $13::bigint[])
    AS x (session, seq, token, epoch, next_id, at) ",
            winners!(),
            "), entries AS (INSERT INTO entry (session_id, id, conversation, seq, head, record)
  SELECT x.* FROM unnest($14::uuid[], $15::bigint[], $16::bigint[], $17::bigint[], $18::bigint[], $19::text[])
    AS x (session, id, conversation, seq, head, record) ",
            winners!(),
            "), live AS (INSERT INTO task_live (session_id, id, gone, conversation, owner, kind, status, abort, background, record, invocation)
  SELECT x.* FROM unnest($20::uuid[], $21::bigint[], $22::boolean[], $23::bigint[], $24::bigint[], $25::text[], $26::bigint[],
    $27::boolean[], $28::boolean[], $29::text[], $30::text[])
    AS x (session, id, gone, conversation, owner, kind, status, abort, background, record, invocation) ",
            winners!(),
            task_upsert!("task_live"),
            "), done AS (INSERT INTO task_done (session_id, id, gone, conversation, owner, kind, status, abort, background, record, invocation)
  SELECT x.* FROM unnest($31::uuid[], $32::bigint[], $33::boolean[], $34::bigint[], $35::bigint[], $36::text[], $37::bigint[],
    $38::boolean[], $39::boolean[], $40::text[], $41::text[])
    AS x (session, id, gone, conversation, owner, kind, status, abort, background, record, invocation) ",
            winners!(),
            task_upsert!("task_done"),
            "), submissions AS (INSERT INTO submission (session_id, id, conversation, request, input, status, open, record)
  SELECT x.* FROM unnest($42::uuid[], $43::bigint[], $44::bigint[], $45::text[], $46::boolean[], $47::bigint[], $48::boolean[],
    $49::text[]) AS x (session, id, conversation, request, input, status, open, record) ",
            winners!(),
            " ON CONFLICT (session_id, id) DO UPDATE SET status = excluded.status, open = excluded.open, record = excluded.record
), contents AS (INSERT INTO document_content (session_id, document, seq, version, base, body)
  SELECT x.* FROM unnest($50::uuid[], $51::bigint[], $52::bigint[], $53::bigint[], $54::boolean[], $55::text[])
    AS x (session, document, seq, version, base, body) ",
            winners!(),
            "), reclaims AS (INSERT INTO reclaim (session_id, document, below)
  SELECT x.* FROM unnest($56::uuid[], $57::bigint[], $58::bigint[]) AS x (session, document, below) ",
            winners!(),
            " ON CONFLICT (session_id, document) DO UPDATE SET below = greatest(reclaim.below, excluded.below))"
        )
    };
}

/// For batches that write nothing but what every turn writes.
pub(super) const NARROW: &str = concat!(won!(), narrow_branches!(), " SELECT session_id FROM won");

/// For all batches.
pub(super) const WIDE: &str = concat!(
    won!(),
    narrow_branches!(),
    ", conversations AS (INSERT INTO conversation (session_id, id, owner_conversation, owner_task, record)
  SELECT x.* FROM unnest($59::uuid[], $60::bigint[], $61::bigint[], $62::bigint[], $63::text[])
    AS x (session, id, owner_conversation, owner_task, record) ",
    winners!(),
    "), records AS (INSERT INTO document_record
    (session_id, id, kind, name, address, scope, scope_id, policy, created_at, retired_at)
  SELECT x.* FROM unnest($64::uuid[], $65::bigint[], $66::text[], $67::text[], $68::text[], $69::bigint[], $70::bigint[], $71::bigint[],
    $72::bigint[], $73::bigint[]) AS x (session, id, kind, name, address, scope, scope_id, policy, created_at, retired_at) ",
    winners!(),
    " ON CONFLICT (session_id, id) DO UPDATE SET retired_at = excluded.retired_at
), requests AS (INSERT INTO request (session_id, name, key, digest, answer, at)
  SELECT x.* FROM unnest($74::uuid[], $75::text[], $76::text[], $77::text[], $78::text[], $79::bigint[])
    AS x (session, name, key, digest, answer, at) ",
    winners!(),
    " ON CONFLICT (session_id, name) DO UPDATE SET digest = excluded.digest, answer = excluded.answer, at = excluded.at
), notices AS (INSERT INTO outbox (session_id, submission, body)
  SELECT x.* FROM unnest($80::uuid[], $81::bigint[], $82::text[]) AS x (session, submission, body) ",
    winners!(),
    " ON CONFLICT (session_id, submission) DO UPDATE SET body = excluded.body
), wakes AS (INSERT INTO wake (session_id, partition, at)
  SELECT x.* FROM unnest($83::uuid[], $84::bigint[], $85::bigint[]) AS x (session, partition, at) ",
    winners!(),
    " ON CONFLICT (session_id) DO UPDATE SET at = excluded.at) SELECT session_id FROM won"
);
