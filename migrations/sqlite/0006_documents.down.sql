-- Without documents: they are gone, but for the backup that is made first.
DELETE FROM chunks WHERE document_chunk_id IS NOT NULL;
DROP INDEX idx_chunks_document;
ALTER TABLE chunks DROP COLUMN document_chunk_id;
DROP TABLE ingest_items;
DROP TABLE chunk_edges;
DROP TABLE document_chunks;
DROP TABLE document_parts;
DROP TABLE documents;
