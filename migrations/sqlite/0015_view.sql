-- For reading in the web view: what was considered for each injection, and the sub-agents of a session.

-- considered_json holds the candidates of a prompt as RecallCandidate declares them: ids and figures, no texts. It is NULL
-- for injections at the start of a session, and for those made before this migration.
ALTER TABLE injections ADD COLUMN considered_json TEXT;

CREATE INDEX idx_injections_at ON injections (at, id);
CREATE INDEX idx_sessions_parent ON sessions (metadata ->> '$.parentId') WHERE metadata ->> '$.parentId' IS NOT NULL;
