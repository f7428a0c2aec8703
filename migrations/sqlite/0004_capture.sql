-- Capture from harnesses: what hooks and transcripts tell of the same things, how far transcripts are read, and what
-- was kept out.

ALTER TABLE compaction_events ADD COLUMN cause TEXT;
ALTER TABLE compaction_events ADD COLUMN summary TEXT;

-- How far each transcript has been read. size is how long it was when all of it had been read, else -1: while it is,
-- there is nothing new. head, a digest of the beginning, tells whether it is still the same file; state is what the
-- lines before read_to say of those after. wanted_at is when to look at it next, and looks how often more: harnesses
-- write what they have done a moment after they tell of it. A session that is deleted leaves its row here: it must not
-- come back by being read again.
CREATE TABLE transcripts (
    path       TEXT PRIMARY KEY NOT NULL,
    harness    TEXT NOT NULL,
    session_id TEXT,
    read_to    INTEGER NOT NULL DEFAULT 0,
    size       INTEGER NOT NULL DEFAULT -1,
    head       TEXT NOT NULL DEFAULT '',
    lines      INTEGER NOT NULL DEFAULT 0,
    malformed  INTEGER NOT NULL DEFAULT 0,
    state      TEXT NOT NULL DEFAULT '{}',
    read_at    INTEGER,
    wanted_at  INTEGER,
    looks      INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE INDEX idx_transcripts_wanted ON transcripts (wanted_at) WHERE wanted_at IS NOT NULL;
CREATE INDEX idx_transcripts_session ON transcripts (session_id);

-- A hook tells of a message before the transcript does, and knows another id of it. line_id is the transcript's, null
-- until it has told; digest is of the text. So the same message is stored once, whoever is first, and one that a forked
-- session's transcript repeats stays where it was said.
CREATE TABLE told_messages (
    message_id TEXT PRIMARY KEY NOT NULL,
    session_id TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    prompt_id  TEXT NOT NULL,
    kind       TEXT NOT NULL CHECK (kind IN ('prompt', 'answer', 'compaction')),
    digest     TEXT NOT NULL,
    line_id    TEXT UNIQUE
) STRICT;

CREATE INDEX idx_told_messages_session ON told_messages (session_id, prompt_id, kind, digest);

CREATE TABLE capture_counts (
    harness         TEXT PRIMARY KEY NOT NULL,
    events          INTEGER NOT NULL DEFAULT 0,
    ignored         INTEGER NOT NULL DEFAULT 0,
    opted_out       INTEGER NOT NULL DEFAULT 0,
    refused         INTEGER NOT NULL DEFAULT 0,
    last_event      TEXT,
    last_event_at   INTEGER,
    last_session_id TEXT,
    last_refusal    TEXT,
    last_refused_at INTEGER
) STRICT;

-- How often something was taken out of a text before it was stored, by kind. A text that arrives twice counts twice.
CREATE TABLE redactions (
    kind    TEXT PRIMARY KEY NOT NULL,
    count   INTEGER NOT NULL,
    last_at INTEGER NOT NULL
) STRICT;

-- Sessions of projects that do not want to be captured: what follows names the session alone.
CREATE TABLE opted_out (
    session_id TEXT PRIMARY KEY NOT NULL,
    at         INTEGER NOT NULL
) STRICT;
