-- Storing a message writes to the table of chunks and eight of its indexes, which takes a third of the statements' time.
-- Two of them no longer serve: the place of a chunk is read from its row, which is short since messages keep their text
-- to themselves (0018), and an index of roles helps only with those that few chunks have.
DROP INDEX idx_chunks_place;
DROP INDEX idx_chunks_role;
CREATE INDEX idx_chunks_role ON chunks (role, chunking) WHERE role NOT IN ('user', 'assistant', 'tool');
