DROP TRIGGER sessions_title_ai;
DROP TRIGGER sessions_title_au;
DELETE FROM index_backlog WHERE kind = 'session title';
DELETE FROM chunks WHERE session_title_id IS NOT NULL;
DROP INDEX idx_chunks_session_title;
ALTER TABLE chunks DROP COLUMN session_title_id;
