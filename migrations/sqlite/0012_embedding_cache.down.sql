-- The cache as it was, empty.
DROP TABLE embedding_cache;

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
