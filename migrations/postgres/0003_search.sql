-- Keyword search. The daemon splits texts into words itself, by the tokenizer of SQLite's FTS5, so that both engines find and
-- rank the same. A position of a tsvector tells the column too: 1 to 4096 in the text, 8193 in the header, 12289 in the
-- other forms of words.

CREATE TABLE chunk_words (
    chunk bigint PRIMARY KEY REFERENCES chunks (id) ON DELETE CASCADE,
    words tsvector NOT NULL
);

CREATE INDEX idx_chunk_words ON chunk_words USING gin (words);

CREATE TABLE memory_words (
    memory bigint PRIMARY KEY REFERENCES memories (number) ON DELETE CASCADE,
    words  tsvector NOT NULL
);

CREATE INDEX idx_memory_words ON memory_words USING gin (words);

-- The names that the shared SQL knows: `chunks_fts MATCH :query` becomes `chunks_fts.words @@ :query`.
CREATE VIEW chunks_fts AS SELECT chunk AS rowid, words FROM chunk_words;
CREATE VIEW memories_fts AS SELECT memory AS rowid, words FROM memory_words;

-- Rows whose words are not stored yet. They are at the end of the transaction that stores the rows.
CREATE TABLE unindexed_chunks (
    chunk bigint PRIMARY KEY
);

CREATE TABLE unindexed_memories (
    memory bigint PRIMARY KEY
);

CREATE FUNCTION chunks_words() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO unindexed_chunks (chunk) VALUES (NEW.id) ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER chunks_words AFTER INSERT OR UPDATE OF text, header, extra ON chunks
    FOR EACH ROW EXECUTE FUNCTION chunks_words();

CREATE FUNCTION memories_words() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO unindexed_memories (memory) VALUES (NEW.number) ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER memories_words AFTER INSERT OR UPDATE OF content, summary, concepts_json, tags_json ON memories
    FOR EACH ROW EXECUTE FUNCTION memories_words();

-- Chunks that moved to another project since their vectors were read into memory.
CREATE TABLE moved_chunks (
    position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    chunk    bigint NOT NULL UNIQUE REFERENCES chunks (id) ON DELETE CASCADE
);

CREATE FUNCTION chunks_moved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM moved_chunks WHERE chunk = NEW.id;
    INSERT INTO moved_chunks (chunk) VALUES (NEW.id);
    RETURN NULL;
END $$;
CREATE TRIGGER chunks_moved AFTER UPDATE OF project ON chunks FOR EACH ROW EXECUTE FUNCTION chunks_moved();

-- Chunks that were changed or deleted since their columns were read into memory: the newest 100,000.
CREATE TABLE changed_chunks (
    position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    chunk    bigint NOT NULL
);

CREATE FUNCTION chunks_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO changed_chunks (chunk) VALUES (OLD.id);
    RETURN NULL;
END $$;
CREATE TRIGGER chunks_changed AFTER UPDATE OF project, role, position, created_at OR DELETE ON chunks
    FOR EACH ROW EXECUTE FUNCTION chunks_changed();

CREATE FUNCTION changed_chunks_logged() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM changed_chunks WHERE position <= NEW.position - 100000;
    RETURN NULL;
END $$;
CREATE TRIGGER changed_chunks_logged AFTER INSERT ON changed_chunks
    FOR EACH ROW EXECUTE FUNCTION changed_chunks_logged();

-- The words of what is stored already, after this migration was undone.
INSERT INTO unindexed_chunks (chunk) SELECT id FROM chunks;
INSERT INTO unindexed_memories (memory) SELECT number FROM memories;
