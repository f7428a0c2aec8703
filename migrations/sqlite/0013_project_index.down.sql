DROP INDEX idx_chunks_project;
CREATE INDEX idx_chunks_project ON chunks (project, chunking) WHERE project IS NOT NULL;
