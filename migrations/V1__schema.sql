-- Picofleet's schema. docs/schema.md explains it. Applied files never change; a new version is a new file.
-- Caller's strings are stored with U+0000 and U+0001 escaped, and compared byte by byte.

-- compatible_from: the oldest version of a program that can use this schema. partitions: fixed at the first migration.
CREATE TABLE meta (key text PRIMARY KEY, value bigint NOT NULL);
INSERT INTO meta (key, value) VALUES ('compatible_from', 1);

-- Who should own the sessions of a partition (protocol 4).
CREATE TABLE partition (id integer PRIMARY KEY, owner uuid, epoch bigint NOT NULL DEFAULT 0);
CREATE TABLE coordinator (boot uuid PRIMARY KEY, beat bigint NOT NULL);

-- state: 0 active, 1 quarantined, 2 deleting.
CREATE TABLE session (
  id uuid PRIMARY KEY, tenant text COLLATE "C" NOT NULL, key text COLLATE "C", metadata text NOT NULL, state smallint NOT NULL,
  created_at bigint NOT NULL
);
CREATE INDEX session_tenant ON session (tenant, id);
CREATE INDEX session_key ON session (md5(key), id) WHERE key IS NOT NULL;
CREATE INDEX session_state ON session (state, id) WHERE state <> 0;
CREATE TABLE tombstone (id uuid PRIMARY KEY, tenant text COLLATE "C" NOT NULL, at bigint NOT NULL);
CREATE INDEX tombstone_at ON tombstone (at, id);

-- The chain. A row stands behind the one with the sequence before it; who inserts it has the line (protocol 1).
CREATE TABLE commit (
  session_id uuid NOT NULL, seq bigint NOT NULL, token uuid NOT NULL, epoch bigint NOT NULL, next_id bigint NOT NULL, opens integer NOT NULL,
  at bigint NOT NULL, PRIMARY KEY (session_id, seq)
);

CREATE TABLE conversation (
  session_id uuid NOT NULL, id bigint NOT NULL, owner_conversation bigint, owner_task bigint, record text NOT NULL,
  PRIMARY KEY (session_id, id)
);
CREATE INDEX conversation_owner ON conversation (session_id, owner_conversation, id) WHERE owner_conversation IS NOT NULL;
CREATE INDEX conversation_task ON conversation (session_id, owner_task, id) WHERE owner_task IS NOT NULL;

CREATE TABLE entry (
  session_id uuid NOT NULL, id bigint NOT NULL, conversation bigint NOT NULL, seq bigint NOT NULL, head bigint, record text NOT NULL,
  PRIMARY KEY (session_id, id)
) PARTITION BY HASH (session_id);
CREATE INDEX entry_place ON entry (session_id, conversation, id);
CREATE INDEX entry_head ON entry (session_id, conversation, id) WHERE head IS NOT NULL;

-- Live tasks. The table is small and only upserted, its primary key is its only index. gone: the task is over, its row is in task_done
-- and this one can be removed. Columns are nullable, since an upsert may name only what changes.
-- status: 0 pending, 1 running, 2 waiting, 3 sleeping, 4 completing, 5 terminal.
CREATE TABLE task_live (
  session_id uuid NOT NULL, id bigint NOT NULL, gone boolean NOT NULL, conversation bigint, owner bigint, kind text COLLATE "C",
  status smallint, abort boolean, background boolean, record text, invocation text, PRIMARY KEY (session_id, id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- Terminal tasks. gone: the task lives again and its row is in task_live.
CREATE TABLE task_done (
  session_id uuid NOT NULL, id bigint NOT NULL, gone boolean NOT NULL, conversation bigint, owner bigint, kind text COLLATE "C",
  status smallint, abort boolean, background boolean, record text, invocation text, PRIMARY KEY (session_id, id)
) PARTITION BY HASH (session_id);
CREATE INDEX task_done_conversation ON task_done (session_id, conversation, id);
CREATE INDEX task_done_owner ON task_done (session_id, owner, id) WHERE owner IS NOT NULL;
CREATE INDEX task_done_kind ON task_done (session_id, md5(kind), id);

-- status: 0 queued, 1 placed, 2 done, 3 unanswered; open: one of the first two. request: the request id as an index can hold it.
CREATE TABLE submission (
  session_id uuid NOT NULL, id bigint NOT NULL, conversation bigint NOT NULL, request text COLLATE "C", input boolean NOT NULL,
  status smallint NOT NULL, open boolean NOT NULL, record text NOT NULL, PRIMARY KEY (session_id, id)
) PARTITION BY HASH (session_id);
CREATE INDEX submission_open ON submission (session_id, id) WHERE open;
CREATE INDEX submission_conversation ON submission (session_id, conversation, id);
CREATE UNIQUE INDEX submission_request ON submission (session_id, conversation, request) WHERE request IS NOT NULL;

-- Incarnations of documents. scope: 0 session, 1 conversation, 2 task. name: '' for a singleton, '=' and the key for a member.
-- address: kind and name as an index can hold them. policy: 0 none, else 10 * (1 latest, 2 rewindable) + (0 asOf, 1 current, 2 initial).
CREATE TABLE document_record (
  session_id uuid NOT NULL, id bigint NOT NULL, kind text COLLATE "C" NOT NULL, name text COLLATE "C" NOT NULL,
  address text COLLATE "C" NOT NULL, scope smallint NOT NULL, scope_id bigint NOT NULL, policy smallint NOT NULL, created_at bigint NOT NULL,
  retired_at bigint, PRIMARY KEY (session_id, id)
) PARTITION BY HASH (session_id);
CREATE INDEX document_address ON document_record (session_id, scope, scope_id, address, created_at)
  WHERE retired_at IS NULL OR retired_at > created_at;
CREATE INDEX document_alive ON document_record (session_id, scope, scope_id, id) WHERE retired_at IS NULL;
CREATE INDEX document_past ON document_record (session_id, scope, scope_id, id) WHERE retired_at IS NOT NULL;

-- Their content: bases and the deltas after them.
CREATE TABLE document_content (
  session_id uuid NOT NULL, document bigint NOT NULL, seq bigint NOT NULL, version bigint NOT NULL, base boolean NOT NULL,
  body text NOT NULL, PRIMARY KEY (session_id, document, seq)
) PARTITION BY HASH (session_id);

-- Content of the document below this sequence is not needed any more.
CREATE TABLE reclaim (session_id uuid NOT NULL, document bigint NOT NULL, below bigint NOT NULL, PRIMARY KEY (session_id, document));

-- Answers to request keys; name: the key as an index can hold it.
CREATE TABLE request (
  session_id uuid NOT NULL, name text COLLATE "C" NOT NULL, key text COLLATE "C" NOT NULL, digest text NOT NULL, answer text NOT NULL,
  at bigint NOT NULL, PRIMARY KEY (session_id, name)
);
CREATE INDEX request_at ON request (at, session_id, name);

-- Settlement notices that have not been acknowledged.
CREATE TABLE outbox (session_id uuid NOT NULL, submission bigint NOT NULL, body text NOT NULL, PRIMARY KEY (session_id, submission));

-- When an owner has to look at a session again; at is NULL for never.
CREATE TABLE wake (session_id uuid PRIMARY KEY, partition integer NOT NULL, at bigint);
CREATE INDEX wake_due ON wake (partition, at, session_id) WHERE at IS NOT NULL;

-- The parts of the hash-partitioned tables, and lz4 for long values where the server was built with it.
DO $$
DECLARE
  name text;
  part text;
  lz4 boolean := EXISTS (SELECT FROM pg_settings WHERE pg_settings.name = 'default_toast_compression' AND 'lz4' = ANY (enumvals));
BEGIN
  FOREACH name IN ARRAY ARRAY['entry', 'task_done', 'submission', 'document_record', 'document_content'] LOOP
    FOR n IN 0..7 LOOP
      part := format('%s_%s', name, n);
      EXECUTE format('CREATE TABLE %I PARTITION OF %I FOR VALUES WITH (MODULUS 8, REMAINDER %s)', part, name, n);
      IF lz4 AND name = 'document_content' THEN
        EXECUTE format('ALTER TABLE %I ALTER COLUMN body SET COMPRESSION lz4', part);
      ELSIF lz4 AND name <> 'document_record' THEN
        EXECUTE format('ALTER TABLE %I ALTER COLUMN record SET COMPRESSION lz4', part);
      END IF;
    END LOOP;
  END LOOP;
  IF lz4 THEN
    ALTER TABLE session ALTER COLUMN metadata SET COMPRESSION lz4;
    ALTER TABLE task_live ALTER COLUMN record SET COMPRESSION lz4;
    ALTER TABLE request ALTER COLUMN answer SET COMPRESSION lz4;
    ALTER TABLE outbox ALTER COLUMN body SET COMPRESSION lz4;
  END IF;
END
$$;
