-- What harness plugins send, as they send it: the tables of the original clankers, with what later parts
-- of a session need beside it (its project, summary, chat, metadata), and the jobs of the daemon itself.
--
-- created_guessed is 1 while created_at is only when we first heard of the session (an event came before
-- it, or it came without a time): the first real created_at then replaces it, and later ones do not.

CREATE TABLE projects (
    id            TEXT PRIMARY KEY NOT NULL,
    path          TEXT NOT NULL UNIQUE,
    name          TEXT,
    settings_json TEXT,
    created_at    INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL
) STRICT;

CREATE TABLE sessions (
    id                TEXT PRIMARY KEY NOT NULL,
    title             TEXT,
    project_id        TEXT REFERENCES projects (id) ON DELETE SET NULL,
    project_path      TEXT,
    project_name      TEXT,
    model             TEXT,
    provider          TEXT,
    source            TEXT,
    status            TEXT,
    prompt_tokens     INTEGER,
    completion_tokens INTEGER,
    cost              REAL,
    message_count     INTEGER,
    tool_call_count   INTEGER,
    permission_mode   TEXT,
    created_at        INTEGER NOT NULL,
    created_guessed   INTEGER NOT NULL DEFAULT 0,
    updated_at        INTEGER NOT NULL,
    ended_at          INTEGER,
    summary           TEXT,
    user_prompt       TEXT,
    context_json      TEXT,
    chat_id           TEXT,
    metadata          TEXT
) STRICT;

CREATE INDEX idx_sessions_created ON sessions (created_at, id);
CREATE INDEX idx_sessions_project ON sessions (project_id, created_at);

CREATE TABLE messages (
    id                TEXT PRIMARY KEY NOT NULL,
    session_id        TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    role              TEXT,
    text_content      TEXT,
    model             TEXT,
    source            TEXT,
    prompt_tokens     INTEGER,
    completion_tokens INTEGER,
    duration_ms       INTEGER,
    created_at        INTEGER NOT NULL,
    completed_at      INTEGER,
    metadata          TEXT
) STRICT;

-- In the order a session is read, and wide enough that statistics never touch the texts.
CREATE INDEX idx_messages_session
    ON messages (session_id, created_at, id, model, prompt_tokens, completion_tokens);

CREATE TABLE tools (
    id            TEXT PRIMARY KEY NOT NULL,
    session_id    TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    message_id    TEXT,
    tool_name     TEXT NOT NULL,
    tool_input    TEXT,
    tool_output   TEXT,
    file_path     TEXT,
    success       INTEGER CHECK (success IN (0, 1)),
    error_message TEXT,
    duration_ms   INTEGER,
    created_at    INTEGER NOT NULL
) STRICT;

CREATE INDEX idx_tools_session ON tools (session_id, created_at, id, success);
CREATE INDEX idx_tools_name ON tools (tool_name, created_at, success, duration_ms);
CREATE INDEX idx_tools_file ON tools (file_path) WHERE file_path IS NOT NULL;
CREATE INDEX idx_tools_created ON tools (created_at, id);

CREATE TABLE session_errors (
    id            TEXT PRIMARY KEY NOT NULL,
    session_id    TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    error_type    TEXT,
    error_message TEXT,
    created_at    INTEGER NOT NULL
) STRICT;

CREATE INDEX idx_session_errors_session ON session_errors (session_id, created_at, id);

CREATE TABLE compaction_events (
    id              TEXT PRIMARY KEY NOT NULL,
    session_id      TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    tokens_before   INTEGER,
    tokens_after    INTEGER,
    messages_before INTEGER,
    messages_after  INTEGER,
    created_at      INTEGER NOT NULL
) STRICT;

CREATE INDEX idx_compaction_session ON compaction_events (session_id, created_at, id);

CREATE TABLE jobs (
    id          TEXT PRIMARY KEY NOT NULL,
    kind        TEXT NOT NULL,
    state       TEXT NOT NULL CHECK (state IN ('running', 'done', 'failed', 'cancelled')),
    done        INTEGER NOT NULL DEFAULT 0,
    total       INTEGER,
    note        TEXT,
    result_json TEXT,
    error       TEXT,
    created_at  INTEGER NOT NULL,
    finished_at INTEGER
) STRICT;

CREATE INDEX idx_jobs_created ON jobs (created_at, id);
