-- Without keyword search; the words are made again from the texts.
DROP TRIGGER chunks_changed ON chunks;
DROP TRIGGER chunks_moved ON chunks;
DROP TRIGGER memories_words ON memories;
DROP TRIGGER chunks_words ON chunks;
DROP VIEW chunks_fts, memories_fts;
DROP TABLE changed_chunks, moved_chunks, unindexed_memories, unindexed_chunks, memory_words, chunk_words;
DROP FUNCTION changed_chunks_logged, chunks_changed, chunks_moved, memories_words, chunks_words;
