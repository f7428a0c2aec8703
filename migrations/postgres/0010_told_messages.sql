-- Messages that hooks have reported and no transcript yet. Each line of a transcript asks for those of its session. The condition is
-- written like this in the query, too: for `line_id IS NULL`, SQLite reads all of them in the store by the unique index of lines.
CREATE INDEX idx_told_messages_by_hook ON told_messages (session_id, kind) WHERE coalesce(line_id, '') = '';
