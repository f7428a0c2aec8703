-- Documents that somebody handed over to be found again, the chunks they were cut into, and how those chunks hang
-- together. A document is known by its source: handed over again it is changed in place, and chunks whose text stays
-- keep their ids, their vectors and their edges.

-- checksum is that of what was handed over and of how it was to be cut; it is NULL while a long document is being
-- stored in several transactions, so that the next time goes on from there.
CREATE TABLE documents (
    id          TEXT PRIMARY KEY NOT NULL,
    source      TEXT NOT NULL UNIQUE,
    project_id  TEXT REFERENCES projects (id) ON DELETE SET NULL,
    title       TEXT NOT NULL,
    kind        TEXT NOT NULL,
    strategy    TEXT NOT NULL,
    checksum    TEXT,
    bytes       INTEGER NOT NULL,
    characters  INTEGER NOT NULL DEFAULT 0,
    chunk_count INTEGER NOT NULL DEFAULT 0,
    revision    INTEGER NOT NULL DEFAULT 0, -- how often it was stored; chunks of an earlier one are gone at the end
    metadata    TEXT,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL
) STRICT;

CREATE INDEX idx_documents_created ON documents (created_at, id);
CREATE INDEX idx_documents_project ON documents (project_id, created_at);

-- The text of a document, in parts that follow each other: no row is so long that reading it holds up others.
CREATE TABLE document_parts (
    document_id  TEXT NOT NULL REFERENCES documents (id) ON DELETE CASCADE,
    start_offset INTEGER NOT NULL,
    text         TEXT NOT NULL,
    PRIMARY KEY (document_id, start_offset)
) STRICT, WITHOUT ROWID;

-- searchable is 0 for a parent: its children are searched, and it is what a search answers with. Offsets count the
-- characters of the document's text; they are NULL where the sender's chunks came without.
CREATE TABLE document_chunks (
    id           TEXT PRIMARY KEY NOT NULL,
    document_id  TEXT NOT NULL REFERENCES documents (id) ON DELETE CASCADE,
    parent_id    TEXT REFERENCES document_chunks (id) ON DELETE CASCADE,
    chunk_index  INTEGER NOT NULL,
    revision     INTEGER NOT NULL,
    searchable   INTEGER NOT NULL CHECK (searchable IN (0, 1)),
    start_offset INTEGER,
    end_offset   INTEGER,
    start_line   INTEGER,
    end_line     INTEGER,
    metadata     TEXT,
    hash         TEXT NOT NULL,
    content      TEXT NOT NULL
) STRICT;

CREATE INDEX idx_document_chunks_document ON document_chunks (document_id, chunk_index, id);
CREATE INDEX idx_document_chunks_parent ON document_chunks (parent_id, chunk_index) WHERE parent_id IS NOT NULL;

-- One edge per pair and relation. made_at_ingest edges are made again whenever the document is.
CREATE TABLE chunk_edges (
    source_id      TEXT NOT NULL REFERENCES document_chunks (id) ON DELETE CASCADE,
    target_id      TEXT NOT NULL REFERENCES document_chunks (id) ON DELETE CASCADE,
    relation       TEXT NOT NULL CHECK (relation IN ('references', 'elaborates', 'depends_on', 'contradicts',
                                                     'part_of', 'similar_to', 'sequence', 'caused_by')),
    weight         REAL NOT NULL CHECK (weight > 0 AND weight <= 1),
    description    TEXT,
    made_at_ingest INTEGER NOT NULL DEFAULT 0 CHECK (made_at_ingest IN (0, 1)),
    created_at     INTEGER NOT NULL,
    PRIMARY KEY (source_id, target_id, relation),
    CHECK (source_id <> target_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX idx_chunk_edges_target ON chunk_edges (target_id, relation, source_id);

-- What was handed over to be ingested and is not yet: kept until it is, whatever happens to the daemon meanwhile.
CREATE TABLE ingest_items (
    batch    TEXT NOT NULL,
    position INTEGER NOT NULL,
    request  TEXT NOT NULL,
    outcome  TEXT CHECK (outcome IN ('stored', 'updated', 'unchanged', 'failed')),
    error    TEXT,
    PRIMARY KEY (batch, position)
) STRICT;

-- Chunks of documents are searched like everything else.
ALTER TABLE chunks ADD COLUMN document_chunk_id TEXT REFERENCES document_chunks (id) ON DELETE CASCADE;

CREATE INDEX idx_chunks_document ON chunks (document_chunk_id, chunking, position) WHERE document_chunk_id IS NOT NULL;
