-- Every chunk with its own text again.
ALTER TABLE chunks DISABLE TRIGGER chunks_words;
UPDATE chunks SET text = substr(text_content, (start_offset + 1)::int, (end_offset - start_offset)::int)
    FROM messages WHERE messages.id = message_id AND text = '';
ALTER TABLE chunks ENABLE TRIGGER chunks_words;
