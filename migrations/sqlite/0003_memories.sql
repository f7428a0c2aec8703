-- Long-term memories: what is known, since when, how strongly, and how it hangs together.

-- number is for memories_fts and for joins; id is what others know. salience is what it was at salience_at: what it
-- is now is computed, never written back. valid_from to valid_until is when it is true; created_at and
-- the log, which keeps what every change replaced, tell what of it we knew when. simhash_0 to simhash_3 are its simhash
-- in quarters, so that near duplicates are found by an index.
CREATE TABLE memories (
    number            INTEGER PRIMARY KEY,
    id                TEXT NOT NULL UNIQUE,
    project_id        TEXT REFERENCES projects (id) ON DELETE SET NULL,
    content           TEXT NOT NULL,
    summary           TEXT,
    content_hash      TEXT NOT NULL,
    sector            TEXT NOT NULL CHECK (sector IN ('episodic', 'semantic', 'procedural', 'emotional', 'reflective')),
    tier              TEXT NOT NULL CHECK (tier IN ('session', 'project', 'global')),
    category          TEXT NOT NULL,
    scope             TEXT NOT NULL,
    importance        REAL NOT NULL CHECK (importance BETWEEN 0 AND 1),
    confidence        REAL NOT NULL CHECK (confidence BETWEEN 0 AND 1),
    simhash           TEXT,
    simhash_0         INTEGER,
    simhash_1         INTEGER,
    simhash_2         INTEGER,
    simhash_3         INTEGER,
    salience          REAL NOT NULL CHECK (salience BETWEEN 0 AND 1),
    salience_at       INTEGER NOT NULL,
    access_count      INTEGER NOT NULL DEFAULT 0,
    last_accessed     INTEGER NOT NULL,
    pinned            INTEGER NOT NULL DEFAULT 0 CHECK (pinned IN (0, 1)),
    created_at        INTEGER NOT NULL,
    updated_at        INTEGER NOT NULL,
    valid_from        INTEGER NOT NULL,
    valid_until       INTEGER,
    expires_at        INTEGER,
    archived_at       INTEGER,
    is_deleted        INTEGER NOT NULL DEFAULT 0 CHECK (is_deleted IN (0, 1)),
    deleted_at        INTEGER,
    source_session_id TEXT,
    source_message_id TEXT,
    tags_json         TEXT NOT NULL DEFAULT '[]',
    concepts_json     TEXT NOT NULL DEFAULT '[]',
    files_json        TEXT NOT NULL DEFAULT '[]',
    metadata          TEXT,
    CHECK (valid_until IS NULL OR valid_until >= valid_from)
) STRICT;

CREATE INDEX idx_memories_project ON memories (project_id) WHERE is_deleted = 0;
CREATE INDEX idx_memories_scope ON memories (scope, created_at);
CREATE INDEX idx_memories_sector ON memories (sector);
CREATE INDEX idx_memories_tier ON memories (tier);
CREATE INDEX idx_memories_category ON memories (category);
CREATE INDEX idx_memories_salience ON memories (salience DESC);
CREATE INDEX idx_memories_created ON memories (created_at DESC, id);
CREATE INDEX idx_memories_updated ON memories (updated_at DESC, id);
CREATE INDEX idx_memories_valid ON memories (valid_from, valid_until);
CREATE INDEX idx_memories_expires ON memories (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX idx_memories_hash ON memories (content_hash, scope);
CREATE INDEX idx_memories_simhash ON memories (simhash);
CREATE INDEX idx_memories_simhash_0 ON memories (simhash_0, scope);
CREATE INDEX idx_memories_simhash_1 ON memories (simhash_1, scope);
CREATE INDEX idx_memories_simhash_2 ON memories (simhash_2, scope);
CREATE INDEX idx_memories_simhash_3 ON memories (simhash_3, scope);

CREATE VIRTUAL TABLE memories_fts USING fts5 (
    content, summary, concepts_json, tags_json,
    content = 'memories', content_rowid = 'number',
    tokenize = 'porter unicode61 remove_diacritics 2'
);
CREATE VIRTUAL TABLE memories_vocabulary USING fts5vocab (memories_fts, row);

CREATE TRIGGER memories_ai AFTER INSERT ON memories BEGIN
    INSERT INTO memories_fts (rowid, content, summary, concepts_json, tags_json)
    VALUES (NEW.number, NEW.content, NEW.summary, NEW.concepts_json, NEW.tags_json);
END;

CREATE TRIGGER memories_ad AFTER DELETE ON memories BEGIN
    INSERT INTO memories_fts (memories_fts, rowid, content, summary, concepts_json, tags_json)
    VALUES ('delete', OLD.number, OLD.content, OLD.summary, OLD.concepts_json, OLD.tags_json);
END;

CREATE TRIGGER memories_au AFTER UPDATE OF content, summary, concepts_json, tags_json ON memories BEGIN
    INSERT INTO memories_fts (memories_fts, rowid, content, summary, concepts_json, tags_json)
    VALUES ('delete', OLD.number, OLD.content, OLD.summary, OLD.concepts_json, OLD.tags_json);
    INSERT INTO memories_fts (rowid, content, summary, concepts_json, tags_json)
    VALUES (NEW.number, NEW.content, NEW.summary, NEW.concepts_json, NEW.tags_json);
END;

-- Which session did what with a memory. A session that goes leaves its memories, not its use of them.
CREATE TABLE session_memories (
    session_id TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    memory_id  TEXT NOT NULL REFERENCES memories (id) ON DELETE CASCADE,
    created_at INTEGER NOT NULL,
    usage_type TEXT NOT NULL CHECK (usage_type IN ('created', 'recalled', 'updated', 'reinforced')),
    PRIMARY KEY (session_id, memory_id, usage_type, created_at)
) STRICT, WITHOUT ROWID;

CREATE INDEX idx_session_memories_session ON session_memories (session_id);
CREATE INDEX idx_session_memories_memory ON session_memories (memory_id, usage_type);

-- What happened to a memory and why; before_json holds what a change replaced.
CREATE TABLE memory_log (
    id          INTEGER PRIMARY KEY,
    memory_id   TEXT NOT NULL REFERENCES memories (id) ON DELETE CASCADE,
    at          INTEGER NOT NULL,
    action      TEXT NOT NULL,
    by          TEXT NOT NULL,
    reason      TEXT,
    before_json TEXT
) STRICT;

CREATE INDEX idx_memory_log_memory ON memory_log (memory_id, at, id);

CREATE TABLE entities (
    id          TEXT PRIMARY KEY NOT NULL,
    name        TEXT NOT NULL,
    name_key    TEXT NOT NULL, -- the name as names are compared: without case, accents and double spaces
    entity_type TEXT NOT NULL CHECK (entity_type IN ('person', 'project', 'technology', 'concept', 'file', 'error')),
    summary     TEXT,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    UNIQUE (name_key, entity_type)
) STRICT;

CREATE INDEX idx_entities_type ON entities (entity_type);
CREATE INDEX idx_entities_name ON entities (name);

-- noticed is 1 where a name in the text made the link: such links go when the text changes.
CREATE TABLE memory_entities (
    memory_id  TEXT NOT NULL REFERENCES memories (id) ON DELETE CASCADE,
    entity_id  TEXT NOT NULL REFERENCES entities (id) ON DELETE CASCADE,
    role       TEXT NOT NULL CHECK (role IN ('subject', 'object', 'context')),
    created_at INTEGER NOT NULL,
    noticed    INTEGER NOT NULL DEFAULT 0 CHECK (noticed IN (0, 1)),
    PRIMARY KEY (memory_id, entity_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX idx_memory_entities_memory ON memory_entities (memory_id);
CREATE INDEX idx_memory_entities_entity ON memory_entities (entity_id);

CREATE TABLE memory_relationships (
    id                TEXT PRIMARY KEY NOT NULL,
    source_memory_id  TEXT NOT NULL REFERENCES memories (id) ON DELETE CASCADE,
    target_memory_id  TEXT NOT NULL REFERENCES memories (id) ON DELETE CASCADE,
    relationship_type TEXT NOT NULL CHECK (relationship_type IN
        ('SUPERSEDES', 'CONTRADICTS', 'RELATED_TO', 'BUILDS_ON', 'CONFIRMS', 'APPLIES_TO', 'DEPENDS_ON',
         'ALTERNATIVE_TO')),
    created_at        INTEGER NOT NULL,
    valid_from        INTEGER NOT NULL,
    valid_until       INTEGER,
    confidence        REAL NOT NULL DEFAULT 1 CHECK (confidence BETWEEN 0 AND 1),
    extracted_by      TEXT NOT NULL CHECK (extracted_by IN ('user', 'llm', 'system')),
    CHECK (source_memory_id <> target_memory_id),
    CHECK (valid_until IS NULL OR valid_until >= valid_from)
) STRICT;

CREATE INDEX idx_relationships_source ON memory_relationships (source_memory_id, relationship_type);
CREATE INDEX idx_relationships_target ON memory_relationships (target_memory_id, relationship_type);
CREATE INDEX idx_relationships_type ON memory_relationships (relationship_type);
CREATE UNIQUE INDEX idx_relationships_open
    ON memory_relationships (source_memory_id, target_memory_id, relationship_type) WHERE valid_until IS NULL;

-- The models whose vectors are or were here; kept from the generations of the index.
CREATE TABLE embedding_models (
    id         TEXT PRIMARY KEY NOT NULL,
    name       TEXT NOT NULL,
    provider   TEXT NOT NULL,
    dimensions INTEGER NOT NULL,
    is_active  INTEGER NOT NULL DEFAULT 0 CHECK (is_active IN (0, 1)),
    created_at INTEGER NOT NULL
) STRICT;

CREATE TRIGGER index_generations_ai AFTER INSERT ON index_generations WHEN NEW.dims IS NOT NULL BEGIN
    INSERT INTO embedding_models (id, name, provider, dimensions, is_active, created_at)
    VALUES (NEW.provider || ':' || NEW.model, NEW.model, NEW.provider, NEW.dims, NEW.state = 'live', NEW.created_at)
    ON CONFLICT (id) DO UPDATE SET dimensions = excluded.dimensions, is_active = max(is_active, excluded.is_active);
END;

CREATE TRIGGER index_generations_au AFTER UPDATE OF state, dims ON index_generations WHEN NEW.dims IS NOT NULL BEGIN
    INSERT INTO embedding_models (id, name, provider, dimensions, is_active, created_at)
    VALUES (NEW.provider || ':' || NEW.model, NEW.model, NEW.provider, NEW.dims, NEW.state = 'live', NEW.created_at)
    ON CONFLICT (id) DO UPDATE SET dimensions = excluded.dimensions, is_active = excluded.is_active;
END;

INSERT INTO embedding_models (id, name, provider, dimensions, is_active, created_at)
    SELECT provider || ':' || model, model, provider, dims, max(state = 'live'), min(created_at)
    FROM index_generations WHERE dims IS NOT NULL GROUP BY provider, model;

-- Memories own chunks too; these carry their scope, so that a search need not ask for each.
ALTER TABLE chunks ADD COLUMN memory_id TEXT REFERENCES memories (id) ON DELETE CASCADE;
ALTER TABLE chunks ADD COLUMN scope TEXT;

CREATE INDEX idx_chunks_memory ON chunks (memory_id, chunking, position) WHERE memory_id IS NOT NULL;
DROP INDEX idx_chunks_place;
CREATE INDEX idx_chunks_place ON chunks (id, chunking, session_id, turn, tokens, source, memory_id, scope);

-- When memories were last looked after.
CREATE TABLE memory_upkeep (
    what TEXT PRIMARY KEY NOT NULL,
    at   INTEGER NOT NULL
) STRICT;

-- Up to which message each session was read for memories.
CREATE TABLE extractions (
    session_id   TEXT PRIMARY KEY NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    read_until   INTEGER NOT NULL,
    last_message TEXT NOT NULL DEFAULT '',
    updated_at   INTEGER NOT NULL
) STRICT;
