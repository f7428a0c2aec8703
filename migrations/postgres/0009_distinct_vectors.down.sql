-- Each chunk has a vector of its own again.
CREATE OR REPLACE FUNCTION vectors_added() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    added bigint;
BEGIN
    INSERT INTO added_vectors (vectors, chunk) VALUES (TG_TABLE_NAME, NEW.rowid) RETURNING position INTO added;
    DELETE FROM added_vectors WHERE position <= added - 100000;
    RETURN NULL;
END $$;

DO $$
DECLARE
    name text;
    dims bigint;
    is_logged boolean;
BEGIN
    FOR name, dims, is_logged IN
        SELECT views.relname, atttypmod, EXISTS (SELECT 1 FROM pg_trigger WHERE tgname = views.relname || '_added'
            AND tgrelid = (views.relname || '_rowids')::regclass)
        FROM pg_class AS views JOIN pg_attribute ON attrelid = views.oid AND attname = 'embedding'
        WHERE relnamespace = current_schema()::regnamespace AND relkind = 'v' AND relname ~ '^chunk_vectors_\d+$'
    LOOP
        EXECUTE format('DROP VIEW %I', name);
        EXECUTE format('CREATE TABLE %I (rowid bigint PRIMARY KEY REFERENCES chunks (id) ON DELETE CASCADE,
            embedding vector(%s) NOT NULL)', name, dims);
        EXECUTE format('INSERT INTO %I SELECT rowid, embedding FROM %I AS rowids JOIN %I AS vectors ON vectors.id = rowids.vector
            ORDER BY rowid', name, name || '_rowids', name || '_distinct');
        EXECUTE format('DROP TABLE %I, %I CASCADE', name || '_rowids', name || '_distinct');
        EXECUTE format('CREATE VIEW %I WITH (security_invoker = true) AS SELECT rowid FROM %I', name || '_rowids', name);
        EXECUTE format('CREATE POLICY team ON %1$I USING (EXISTS (SELECT 1 FROM chunks WHERE id = %1$I.rowid))', name);
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
        IF is_logged THEN
            EXECUTE format('CREATE TRIGGER %I AFTER INSERT OR UPDATE ON %I FOR EACH ROW EXECUTE FUNCTION vectors_added()',
                name || '_added', name);
        END IF;
    END LOOP;
END $$;

DROP FUNCTION create_vectors, release_vectors, vector_id;
