-- A chunk of a message takes its text from the message: an empty text means that it is characters start_offset to
-- end_offset of it. Its words stay as they are.
ALTER TABLE chunks DISABLE TRIGGER chunks_words;
UPDATE chunks SET text = '' FROM messages
    WHERE messages.id = message_id AND length(text_content) <= 16000 AND text <> ''
        AND text = substr(text_content, (start_offset + 1)::int, (end_offset - start_offset)::int);
ALTER TABLE chunks ENABLE TRIGGER chunks_words;
