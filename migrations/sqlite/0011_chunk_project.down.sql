-- Chunks without their project; a search finds it through their owners again.
DROP TRIGGER documents_project_au;
DROP TRIGGER memories_project_au;
DROP TRIGGER files_project_au;
DROP TRIGGER sessions_project_au;
DROP INDEX idx_chunks_place;
DROP INDEX idx_chunks_project;
ALTER TABLE chunks DROP COLUMN project;
CREATE INDEX idx_chunks_place ON chunks (id, chunking, session_id, turn, tokens, source, memory_id, scope);
DROP INDEX idx_sessions_project_path;
DROP TRIGGER projects_ai;
DROP INDEX idx_projects_number;
ALTER TABLE projects DROP COLUMN number;
