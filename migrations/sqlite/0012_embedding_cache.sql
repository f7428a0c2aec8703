-- The cache of vectors as a rowid table with a short key: as a WITHOUT ROWID table, each row of which takes pages of its
-- own, it needed 4.6 KB for a vector of 1 KB. It starts empty, since the static model is no longer cached: making
-- its vectors again costs less than looking them up.
DROP TABLE embedding_cache;

-- key is a hash of model and text; entries with the lowest id are the oldest.
CREATE TABLE embedding_cache (
    id        INTEGER PRIMARY KEY,
    key       BLOB NOT NULL UNIQUE,
    embedding BLOB NOT NULL
) STRICT;
