-- Each distinct vector is stored and indexed once. Texts that occur often have equal vectors, and a search of an HNSW index does
-- not leave a large group of equal vectors that it has entered (docs/decisions/0032).

-- Its argument is what vector_send() returns: this migration also runs where pgvector is not installed.
CREATE FUNCTION vector_id(sent bytea) RETURNS uuid LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT encode(substring(sha256(sent) FROM 1 FOR 16), 'hex')::uuid
$$;

-- Deletes the vectors that no chunk has any more, in the statement that has deleted or replaced the last one. Writers take turns, so
-- that none of them stores a chunk with a vector that another one deletes; if one did, the foreign key would refuse the deletion.
CREATE FUNCTION release_vectors() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    ids uuid[];
BEGIN
    IF TG_OP = 'DELETE' THEN
        ids := ARRAY(SELECT vector FROM released);
    ELSE
        ids := ARRAY[OLD.vector];
    END IF;
    IF cardinality(ids) > 0 THEN
        EXECUTE format('SELECT %I.%I($1)', TG_TABLE_SCHEMA, replace(TG_TABLE_NAME, '_rowids', '_release')) USING ids;
    END IF;
    RETURN NULL;
END $$;

-- Creates what holds the vectors of a generation: NAME_distinct has each vector once, NAME_rowids the vector of each chunk, and the
-- view NAME shows both.
CREATE FUNCTION create_vectors(name text, dims bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    vectors text := quote_ident(name || '_distinct');
    rowids  text := quote_ident(name || '_rowids');
BEGIN
    EXECUTE format('CREATE TABLE %s (
        id        uuid PRIMARY KEY GENERATED ALWAYS AS (vector_id(vector_send(embedding))) STORED,
        embedding vector(%s) NOT NULL
    )', vectors, dims);
    EXECUTE format('CREATE TABLE %s (
        rowid  bigint PRIMARY KEY REFERENCES chunks (id) ON DELETE CASCADE,
        vector uuid NOT NULL REFERENCES %s
    )', rowids, vectors);
    EXECUTE format('CREATE INDEX %I ON %s (vector)', name || '_vector', rowids);
    EXECUTE format('CREATE VIEW %I WITH (security_invoker = true) AS
        SELECT rowid, embedding FROM %s AS rowids JOIN %s AS vectors ON vectors.id = rowids.vector', name, rowids, vectors);

    -- It runs as the owner, because other members may have chunks with the same vector. It deletes nothing that is in use,
    -- whoever calls it, and its names are bound now: no search path leads it elsewhere.
    EXECUTE format('CREATE FUNCTION %I(ids uuid[]) RETURNS void LANGUAGE sql SECURITY DEFINER
        BEGIN ATOMIC
            DELETE FROM %s AS vectors WHERE id = ANY (ids) AND NOT EXISTS (SELECT 1 FROM %s WHERE vector = vectors.id);
        END', name || '_release', vectors, rowids);
    EXECUTE format('CREATE TRIGGER %I AFTER DELETE ON %s REFERENCING OLD TABLE AS released
        FOR EACH STATEMENT EXECUTE FUNCTION release_vectors()', name || '_deleted', rowids);
    EXECUTE format('CREATE TRIGGER %I AFTER UPDATE OF vector ON %s
        FOR EACH ROW WHEN (OLD.vector <> NEW.vector) EXECUTE FUNCTION release_vectors()', name || '_replaced', rowids);

    -- A member sees the vectors of chunks that it sees, and may add any. With OFFSET 0 each row is looked up by an index; otherwise
    -- a statement would begin by listing all chunks that the member sees, however few vectors it reads.
    EXECUTE format('CREATE POLICY team ON %1$s USING (EXISTS (SELECT 1 FROM chunks WHERE id = %1$s.rowid OFFSET 0))', rowids);
    EXECUTE format('CREATE POLICY team ON %1$s FOR SELECT
        USING (EXISTS (SELECT 1 FROM %2$s WHERE vector = %1$s.id OFFSET 0))', vectors, rowids);
    EXECUTE format('CREATE POLICY team_insert ON %s FOR INSERT WITH CHECK (true)', vectors);
    EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', rowids);
    EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', vectors);
END $$;

CREATE OR REPLACE FUNCTION vectors_added() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    added bigint;
BEGIN
    INSERT INTO added_vectors (vectors, chunk) VALUES (replace(TG_TABLE_NAME, '_rowids', ''), NEW.rowid)
    RETURNING position INTO added;
    DELETE FROM added_vectors WHERE position <= added - 100000;
    RETURN NULL;
END $$;

-- Tables of vectors that are there already. Their HNSW indexes go; the daemon builds new ones.
DO $$
DECLARE
    name text;
    dims bigint;
    is_logged boolean;
BEGIN
    FOR name, dims, is_logged IN
        SELECT relname, atttypmod, EXISTS (SELECT 1 FROM pg_trigger WHERE tgrelid = pg_class.oid AND tgname = relname || '_added')
        FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid AND attname = 'embedding'
        WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r' AND relname ~ '^chunk_vectors_\d+$'
    LOOP
        EXECUTE format('DROP VIEW %I', name || '_rowids');
        EXECUTE format('ALTER TABLE %I RENAME TO %I', name, name || '_old');
        PERFORM create_vectors(name, dims);
        EXECUTE format('INSERT INTO %I (embedding) SELECT embedding FROM %I ORDER BY rowid ON CONFLICT DO NOTHING',
            name || '_distinct', name || '_old');
        EXECUTE format('INSERT INTO %I SELECT rowid, vector_id(vector_send(embedding)) FROM %I ORDER BY rowid',
            name || '_rowids', name || '_old');
        EXECUTE format('DROP TABLE %I', name || '_old');
        IF is_logged THEN
            EXECUTE format('CREATE TRIGGER %I AFTER INSERT OR UPDATE ON %I FOR EACH ROW EXECUTE FUNCTION vectors_added()',
                name || '_added', name || '_rowids');
        END IF;
    END LOOP;
END $$;
