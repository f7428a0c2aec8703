-- Every chunk with its own text again, and the full-text index that reads it.
DROP TRIGGER chunks_ad;
DROP TRIGGER chunks_au;
DROP TABLE chunks_vocabulary;
DROP TABLE chunks_instances;
DROP TABLE chunks_fts;

UPDATE chunks SET text = coalesce((
    SELECT substr(text_content, start_offset + 1, end_offset - start_offset) FROM messages WHERE messages.id = message_id
), '') WHERE text = '';

CREATE VIRTUAL TABLE chunks_fts USING fts5 (
    text, header, extra,
    content = 'chunks', content_rowid = 'id',
    tokenize = 'porter unicode61 remove_diacritics 2'
);
CREATE VIRTUAL TABLE chunks_vocabulary USING fts5vocab (chunks_fts, row);
CREATE VIRTUAL TABLE chunks_instances USING fts5vocab (chunks_fts, instance);
INSERT INTO chunks_fts (chunks_fts) VALUES ('rebuild');

CREATE TRIGGER chunks_ad AFTER DELETE ON chunks
WHEN EXISTS (SELECT 1 FROM chunks_fts_docsize WHERE id = OLD.id) BEGIN
    INSERT INTO chunks_fts (chunks_fts, rowid, text, header, extra)
    VALUES ('delete', OLD.id, OLD.text, OLD.header, OLD.extra);
END;

CREATE TRIGGER chunks_au AFTER UPDATE OF text, header, extra ON chunks
WHEN EXISTS (SELECT 1 FROM chunks_fts_docsize WHERE id = OLD.id) BEGIN
    INSERT INTO chunks_fts (chunks_fts, rowid, text, header, extra)
    VALUES ('delete', OLD.id, OLD.text, OLD.header, OLD.extra);
    INSERT INTO chunks_fts (rowid, text, header, extra) VALUES (NEW.id, NEW.text, NEW.header, NEW.extra);
END;
