DROP INDEX idx_sessions_parent;
DROP INDEX idx_injections_at;
ALTER TABLE injections DROP COLUMN considered_json;
