-- A new chunk is queued for its vector by the statement after it (SqliteEngine.queue_chunk). A statement with a trigger keeps what it
-- takes to undo it, a copy of every page that it changes. Where that was much, it went to a file, and so did that of all
-- later statements of the commit, which took a fifth of the time of an import.
DROP TRIGGER chunks_ai;

-- Messages that hooks have reported and no transcript yet. Each line of a transcript asks for those of its session. The condition is
-- written like this in the query, too: for `line_id IS NULL`, SQLite reads all of them in the store by the unique index of lines.
CREATE INDEX idx_told_messages_by_hook ON told_messages (session_id, kind) WHERE coalesce(line_id, '') = '';
