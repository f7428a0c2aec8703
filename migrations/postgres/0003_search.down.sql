-- Without keyword search; the words are made again from the texts.
DROP TRIGGER chunks_moved ON chunks;
DROP TRIGGER memories_words ON memories;
DROP TRIGGER chunks_words ON chunks;
DROP FUNCTION chunks_moved, memories_words, chunks_words;
DROP VIEW chunks_fts, memories_fts;
DROP TABLE moved_chunks, unindexed_memories, unindexed_chunks, memory_words, chunk_words;
