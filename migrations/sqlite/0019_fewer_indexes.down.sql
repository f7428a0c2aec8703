DROP INDEX idx_chunks_role;
CREATE INDEX idx_chunks_role ON chunks (role, chunking) WHERE role IS NOT NULL;
CREATE INDEX idx_chunks_place ON chunks (id, chunking, project, session_id, turn, tokens, source, memory_id, scope);
