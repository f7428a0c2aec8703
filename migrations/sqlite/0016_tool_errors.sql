-- Errors of failed tool calls are searched. They come from many places (hooks, transcripts, imports, the RPC methods)
-- and may change or vanish when a later report arrives: the table itself notices it.
CREATE TRIGGER tools_error_ai AFTER INSERT ON tools WHEN NEW.error_message IS NOT NULL BEGIN
    INSERT INTO index_backlog (kind, owner) VALUES ('tool', NEW.id) ON CONFLICT DO NOTHING;
END;

CREATE TRIGGER tools_error_au AFTER UPDATE OF error_message ON tools WHEN NEW.error_message IS NOT OLD.error_message BEGIN
    INSERT INTO index_backlog (kind, owner) VALUES ('tool', NEW.id) ON CONFLICT DO NOTHING;
END;

INSERT INTO index_backlog (kind, owner)
    SELECT 'tool', id FROM tools WHERE error_message IS NOT NULL ORDER BY created_at, id
    ON CONFLICT DO NOTHING;
