ALTER INDEX idx_chunk_words RESET (gin_pending_list_limit);
ALTER INDEX idx_memory_words RESET (gin_pending_list_limit);
