-- Everything searchable is a chunk: a piece of text that belongs to exactly one owner and goes with it.
-- chunks_fts mirrors the text in the transaction that stores it; vectors follow from index_queue into a vec0
-- table per generation (chunk_vectors_N, made at run time because its dimensions are the model's).

-- What the file sync has seen.
CREATE TABLE files (
    id         INTEGER PRIMARY KEY,
    source     TEXT NOT NULL,
    path       TEXT NOT NULL,
    project_id TEXT REFERENCES projects (id) ON DELETE SET NULL,
    hash       TEXT NOT NULL,
    mtime      INTEGER NOT NULL,
    size       INTEGER NOT NULL,
    indexed_at INTEGER NOT NULL,
    UNIQUE (source, path)
) STRICT;

CREATE INDEX idx_files_project ON files (project_id);
CREATE INDEX idx_files_hash ON files (hash);

-- Folders and files the owner asked to be watched, beside those of the configuration.
CREATE TABLE watched_paths (
    path       TEXT PRIMARY KEY NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;

-- One way of cutting text and one model: vectors of two generations are never compared.
CREATE TABLE index_generations (
    id           INTEGER PRIMARY KEY,
    state        TEXT NOT NULL CHECK (state IN ('building', 'live', 'dropped')),
    chunking     INTEGER NOT NULL,
    chunk_tokens INTEGER NOT NULL,
    overlap      INTEGER NOT NULL,
    sources      TEXT NOT NULL,
    provider     TEXT NOT NULL,
    model        TEXT NOT NULL,
    provider_key TEXT NOT NULL,
    dims         INTEGER,
    created_at   INTEGER NOT NULL,
    published_at INTEGER
) STRICT;

CREATE UNIQUE INDEX idx_one_live_generation ON index_generations (state) WHERE state = 'live';
CREATE UNIQUE INDEX idx_one_building_generation ON index_generations (state) WHERE state = 'building';

-- id is never used again (AUTOINCREMENT): a vector that outlives its chunk can never be taken for another's.
-- session_id and turn tell a message's neighbours; header (a date, a path) and extra (other forms of the
-- words) are searched but not shown; tokens is how many words the text has.
CREATE TABLE chunks (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    chunk_id     TEXT NOT NULL UNIQUE,
    chunking     INTEGER NOT NULL,
    source       TEXT NOT NULL,
    message_id   TEXT REFERENCES messages (id) ON DELETE CASCADE,
    tool_id      TEXT REFERENCES tools (id) ON DELETE CASCADE,
    file_id      INTEGER REFERENCES files (id) ON DELETE CASCADE,
    session_id   TEXT,
    turn         INTEGER,
    role         TEXT,
    position     INTEGER NOT NULL,
    start_line   INTEGER NOT NULL,
    end_line     INTEGER NOT NULL,
    start_offset INTEGER NOT NULL,
    end_offset   INTEGER NOT NULL,
    tokens       INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    hash         TEXT NOT NULL,
    header       TEXT NOT NULL DEFAULT '',
    extra        TEXT NOT NULL DEFAULT '',
    text         TEXT NOT NULL, -- last: what comes after a long text costs reading all of it
    CHECK ((message_id IS NOT NULL) + (tool_id IS NOT NULL) + (file_id IS NOT NULL) <= 1) -- later owners: later columns
) STRICT;

-- Each has the chunking too, or the planner would rather look at every chunk of the chunking.
CREATE INDEX idx_chunks_message ON chunks (message_id, chunking, position) WHERE message_id IS NOT NULL;
CREATE INDEX idx_chunks_tool ON chunks (tool_id, chunking, position) WHERE tool_id IS NOT NULL;
CREATE INDEX idx_chunks_file ON chunks (file_id, chunking, position) WHERE file_id IS NOT NULL;
-- Wide enough that a session's chunks and a turn's neighbours are found without touching the texts.
CREATE INDEX idx_chunks_turn ON chunks (session_id, turn, chunking, tokens);
-- Where a word stands, likewise: thousands of them are looked up for one question.
CREATE INDEX idx_chunks_place ON chunks (id, chunking, session_id, turn, tokens);
CREATE INDEX idx_chunks_role ON chunks (role, chunking) WHERE role IS NOT NULL;
CREATE INDEX idx_chunks_created ON chunks (created_at, chunking);
CREATE INDEX idx_chunks_chunking ON chunks (chunking, source);

CREATE VIRTUAL TABLE chunks_fts USING fts5 (
    text, header, extra,
    content = 'chunks', content_rowid = 'id',
    tokenize = 'porter unicode61 remove_diacritics 2'
);
-- In how many chunks a word stands, and where it stands in each.
CREATE VIRTUAL TABLE chunks_vocabulary USING fts5vocab (chunks_fts, row);
CREATE VIRTUAL TABLE chunks_instances USING fts5vocab (chunks_fts, instance);

-- The words of new chunks are indexed together at the end of their transaction (index/chunks.py), not by a trigger:
-- each statement between two rows would make FTS5 write out what it has gathered, which costs more than the rest of
-- the event. A chunk whose words are not indexed yet has no row in chunks_fts_docsize; the other triggers look there.
CREATE TRIGGER chunks_ai AFTER INSERT ON chunks BEGIN
    INSERT INTO index_queue (generation, chunk)
        SELECT id, NEW.id FROM index_generations
        WHERE chunking = NEW.chunking AND state IN ('live', 'building') AND provider <> 'none';
END;

CREATE TRIGGER chunks_ad AFTER DELETE ON chunks
WHEN EXISTS (SELECT 1 FROM chunks_fts_docsize WHERE id = OLD.id) BEGIN
    INSERT INTO chunks_fts (chunks_fts, rowid, text, header, extra)
    VALUES ('delete', OLD.id, OLD.text, OLD.header, OLD.extra);
END;

CREATE TRIGGER chunks_au AFTER UPDATE OF text, header, extra ON chunks
WHEN EXISTS (SELECT 1 FROM chunks_fts_docsize WHERE id = OLD.id) BEGIN
    INSERT INTO chunks_fts (chunks_fts, rowid, text, header, extra)
    VALUES ('delete', OLD.id, OLD.text, OLD.header, OLD.extra);
    INSERT INTO chunks_fts (rowid, text, header, extra) VALUES (NEW.id, NEW.text, NEW.header, NEW.extra);
END;

-- Chunks that wait for their vector; error says why one keeps failing.
CREATE TABLE index_queue (
    generation INTEGER NOT NULL REFERENCES index_generations (id) ON DELETE CASCADE,
    chunk      INTEGER NOT NULL REFERENCES chunks (id) ON DELETE CASCADE,
    attempts   INTEGER NOT NULL DEFAULT 0,
    error      TEXT,
    PRIMARY KEY (generation, chunk)
) STRICT, WITHOUT ROWID;

CREATE INDEX idx_index_queue_chunk ON index_queue (chunk);

CREATE TABLE embedding_cache (
    provider     TEXT NOT NULL,
    model        TEXT NOT NULL,
    provider_key TEXT NOT NULL,
    hash         TEXT NOT NULL,
    embedding    BLOB NOT NULL,
    dims         INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL,
    PRIMARY KEY (provider, model, provider_key, hash)
) STRICT, WITHOUT ROWID;

CREATE INDEX idx_embedding_cache_updated_at ON embedding_cache (updated_at);

-- What is stored but not cut into chunks yet: everything from before this migration, and texts too long to be
-- cut while their sender waits.
CREATE TABLE index_backlog (
    position INTEGER PRIMARY KEY,
    kind     TEXT NOT NULL,
    owner    TEXT NOT NULL,
    UNIQUE (kind, owner)
) STRICT;

INSERT INTO index_backlog (kind, owner)
    SELECT 'message', id FROM messages WHERE text_content IS NOT NULL ORDER BY created_at, id;
