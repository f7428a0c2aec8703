-- Without the index; everything in it is made again from what it indexes.
DROP TABLE index_backlog;
DROP TABLE embedding_cache;
DROP TABLE index_queue;
DROP TABLE chunks_instances;
DROP TABLE chunks_vocabulary;
DROP TABLE chunks_fts;
DROP TABLE chunks;
DROP TABLE index_generations;
DROP TABLE watched_paths;
DROP TABLE files;
