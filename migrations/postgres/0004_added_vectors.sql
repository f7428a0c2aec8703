-- Vectors that were stored since a daemon read all of them into memory: daemons that share a schema find those of the others
-- by this log. Tables of vectors fill it if the schema is shared. It holds the newest 100,000.
CREATE TABLE added_vectors (
    position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    vectors  text NOT NULL,
    chunk    bigint NOT NULL
);

CREATE FUNCTION vectors_added() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    added bigint;
BEGIN
    INSERT INTO added_vectors (vectors, chunk) VALUES (TG_TABLE_NAME, NEW.rowid) RETURNING position INTO added;
    DELETE FROM added_vectors WHERE position <= added - 100000;
    RETURN NULL;
END $$;
