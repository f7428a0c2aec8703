-- A chunk of a message takes its text from the message: an empty text means that it is characters start_offset to
-- end_offset of it. Otherwise every message is stored twice. Chunks of very long messages still have their own text,
-- because finding a part of one means reading all before it.
--
-- The full-text index is contentless for that: a table with external content needs the exact old text to delete a row,
-- which is gone as soon as the message is. It is filled again from all texts, which takes about as long as storing
-- their words took (on two busy cores 30 seconds for 100,000 chunks of half a kilobyte, with the backup before it).
DROP TRIGGER chunks_ad;
DROP TRIGGER chunks_au;
DROP TABLE chunks_vocabulary;
DROP TABLE chunks_instances;
DROP TABLE chunks_fts;

CREATE VIRTUAL TABLE chunks_fts USING fts5 (
    text, header, extra,
    content = '', contentless_delete = 1,
    tokenize = 'porter unicode61 remove_diacritics 2'
);
-- In how many chunks a word stands, and where it stands in each.
CREATE VIRTUAL TABLE chunks_vocabulary USING fts5vocab (chunks_fts, row);
CREATE VIRTUAL TABLE chunks_instances USING fts5vocab (chunks_fts, instance);

INSERT INTO chunks_fts (rowid, text, header, extra) SELECT id, text, header, extra FROM chunks ORDER BY id;

UPDATE chunks SET text = '' WHERE text = (
    SELECT substr(text_content, start_offset + 1, end_offset - start_offset) FROM messages
    WHERE messages.id = message_id AND length(text_content) <= 16000);

-- As before, the words of new chunks are indexed together at the end of their transaction. A chunk whose words are not
-- indexed yet has no row in chunks_fts_docsize.
CREATE TRIGGER chunks_ad AFTER DELETE ON chunks
WHEN EXISTS (SELECT 1 FROM chunks_fts_docsize WHERE id = OLD.id) BEGIN
    DELETE FROM chunks_fts WHERE rowid = OLD.id;
END;

CREATE TRIGGER chunks_au AFTER UPDATE OF text, header, extra ON chunks
WHEN EXISTS (SELECT 1 FROM chunks_fts_docsize WHERE id = OLD.id) BEGIN
    DELETE FROM chunks_fts WHERE rowid = OLD.id;
    INSERT INTO chunks_fts (rowid, text, header, extra) VALUES (
        NEW.id,
        iif(NEW.text <> '', NEW.text, (
            SELECT substr(text_content, NEW.start_offset + 1, NEW.end_offset - NEW.start_offset) FROM messages
            WHERE messages.id = NEW.message_id)),
        NEW.header, NEW.extra);
END;
