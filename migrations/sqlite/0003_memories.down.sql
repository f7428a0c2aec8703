-- Without long-term memories: they are gone, but for the backup that is made first.
DROP TABLE extractions;
DELETE FROM chunks WHERE memory_id IS NOT NULL;
DROP INDEX idx_chunks_place;
DROP INDEX idx_chunks_memory;
ALTER TABLE chunks DROP COLUMN memory_id;
CREATE INDEX idx_chunks_place ON chunks (id, chunking, session_id, turn, tokens);
DROP TRIGGER index_generations_au;
DROP TRIGGER index_generations_ai;
DROP TABLE embedding_models;
DROP TABLE memory_relationships;
DROP TABLE memory_entities;
DROP TABLE entities;
DROP TABLE memory_log;
DROP TABLE session_memories;
DROP TABLE memories_vocabulary;
DROP TABLE memories_fts;
DROP TABLE memories;
