-- GIN collects new entries in a list, which every search reads from end to end until it is merged into the index. By default the
-- list grows to 4 MB: then the lookup of a rare word takes 5 ms instead of 0.3 ms. Merging it earlier costs no measurable time.
ALTER INDEX idx_chunk_words SET (gin_pending_list_limit = 512);
ALTER INDEX idx_memory_words SET (gin_pending_list_limit = 512);
