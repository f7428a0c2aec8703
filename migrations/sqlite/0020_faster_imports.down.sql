DROP INDEX idx_told_messages_by_hook;
CREATE TRIGGER chunks_ai AFTER INSERT ON chunks BEGIN
    INSERT INTO index_queue (generation, chunk)
        SELECT id, NEW.id FROM index_generations
        WHERE chunking = NEW.chunking AND state IN ('live', 'building') AND provider <> 'none';
END;
