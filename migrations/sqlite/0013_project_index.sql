-- A project's chunks are listed by every search in it: with these columns, the list needs no row of the table.
DROP INDEX idx_chunks_project;
CREATE INDEX idx_chunks_project ON chunks (project, chunking, source, memory_id) WHERE project IS NOT NULL;
