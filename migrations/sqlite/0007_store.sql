-- What agents keep beside their conversations: skills, scheduled actions and their runs, and settings of their own.

-- A skill as it is now; version counts its changes. The name is unique without regard to case, since it becomes a
-- folder's name. extra_json is what else stood in the front matter, files_json the other files of its folder.
CREATE TABLE skills (
    id              TEXT PRIMARY KEY NOT NULL,
    name            TEXT NOT NULL COLLATE NOCASE UNIQUE,
    description     TEXT NOT NULL,
    instructions    TEXT NOT NULL,
    tools_json      TEXT NOT NULL DEFAULT '[]',
    model           TEXT,
    tags_json       TEXT NOT NULL DEFAULT '[]',
    references_json TEXT NOT NULL DEFAULT '[]',
    extra_json      TEXT NOT NULL DEFAULT '{}',
    files_json      TEXT NOT NULL DEFAULT '[]',
    created_by      TEXT,
    version         INTEGER NOT NULL DEFAULT 1,
    created_at      INTEGER NOT NULL,
    updated_at      INTEGER NOT NULL
) STRICT;

-- Each version a skill ever had, the current one among them.
CREATE TABLE skill_versions (
    skill_id   TEXT NOT NULL REFERENCES skills (id) ON DELETE CASCADE,
    version    INTEGER NOT NULL,
    skill_json TEXT NOT NULL,
    created_by TEXT,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (skill_id, version)
) STRICT, WITHOUT ROWID;

-- next_run is null when there will be none: the action is disabled, or its only run is over.
CREATE TABLE scheduled_actions (
    id               TEXT PRIMARY KEY NOT NULL,
    description      TEXT NOT NULL,
    schedule         TEXT NOT NULL,
    timezone         TEXT NOT NULL,
    missed           TEXT NOT NULL DEFAULT 'once' CHECK (missed IN ('once', 'skip')),
    builtin          TEXT,
    tool_calls_json  TEXT,
    synthesis_prompt TEXT,
    skill_id         TEXT REFERENCES skills (id) ON DELETE SET NULL,
    enabled          INTEGER NOT NULL DEFAULT 1 CHECK (enabled IN (0, 1)),
    next_run         INTEGER,
    created_at       INTEGER NOT NULL,
    updated_at       INTEGER NOT NULL
) STRICT;

CREATE INDEX idx_scheduled_actions_due ON scheduled_actions (next_run) WHERE enabled = 1 AND next_run IS NOT NULL;
CREATE INDEX idx_scheduled_actions_skill ON scheduled_actions (skill_id) WHERE skill_id IS NOT NULL;

-- A run is made in the transaction that moves its action's next_run on. It waits for somebody to take it, is taken
-- until lease_until (then it may be taken again), and ends done, failed or skipped.
CREATE TABLE schedule_runs (
    id            TEXT PRIMARY KEY NOT NULL,
    action_id     TEXT NOT NULL REFERENCES scheduled_actions (id) ON DELETE CASCADE,
    scheduled_for INTEGER NOT NULL,
    state         TEXT NOT NULL CHECK (state IN ('waiting', 'taken', 'done', 'failed', 'skipped')),
    attempts      INTEGER NOT NULL DEFAULT 0,
    lease_until   INTEGER,
    result_json   TEXT,
    error         TEXT,
    created_at    INTEGER NOT NULL,
    finished_at   INTEGER
) STRICT;

CREATE UNIQUE INDEX idx_schedule_runs_open ON schedule_runs (action_id) WHERE state IN ('waiting', 'taken');
CREATE INDEX idx_schedule_runs_action ON schedule_runs (action_id, created_at, id);
CREATE INDEX idx_schedule_runs_created ON schedule_runs (created_at, id);

-- Settings of clients; the daemon's own are in its configuration file.
CREATE TABLE config (
    namespace  TEXT NOT NULL,
    key        TEXT NOT NULL,
    value_json TEXT NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (namespace, key)
) STRICT, WITHOUT ROWID;

-- Skills own chunks too.
ALTER TABLE chunks ADD COLUMN skill_id TEXT REFERENCES skills (id) ON DELETE CASCADE;

CREATE INDEX idx_chunks_skill ON chunks (skill_id, chunking, position) WHERE skill_id IS NOT NULL;

-- The threads of a chat, as they are listed; sessions without a chat cost nothing.
CREATE INDEX idx_sessions_chat ON sessions (chat_id, updated_at, id) WHERE chat_id IS NOT NULL;
