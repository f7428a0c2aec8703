-- Titles of sessions are searched, and so are the file names and commands of tool calls.
ALTER TABLE chunks ADD COLUMN session_title_id TEXT REFERENCES sessions (id) ON DELETE CASCADE;

CREATE INDEX idx_chunks_session_title ON chunks (session_title_id, chunking, position)
    WHERE session_title_id IS NOT NULL;

-- A title comes from many places (hooks, transcripts, imports, threads): the table itself notices that it changed.
CREATE TRIGGER sessions_title_ai AFTER INSERT ON sessions WHEN NEW.title IS NOT NULL BEGIN
    INSERT INTO index_backlog (kind, owner) VALUES ('session title', NEW.id) ON CONFLICT DO NOTHING;
END;

CREATE TRIGGER sessions_title_au AFTER UPDATE OF title ON sessions WHEN NEW.title IS NOT OLD.title BEGIN
    DELETE FROM chunks WHERE session_title_id = NEW.id;
    INSERT INTO index_backlog (kind, owner) VALUES ('session title', NEW.id) ON CONFLICT DO NOTHING;
END;

INSERT INTO index_backlog (kind, owner)
    SELECT 'session title', id FROM sessions WHERE title <> '' ORDER BY created_at, id;
INSERT INTO index_backlog (kind, owner)
    SELECT 'tool', id FROM tools WHERE file_path IS NOT NULL OR tool_input IS NOT NULL ORDER BY created_at, id
    ON CONFLICT DO NOTHING;

-- Claude Code ends the summary of a compaction with orders to the agent, which are no part of what happened.
UPDATE sessions SET summary = rtrim(substr(summary, 1, instr(summary, 'If you need specific details from before compaction') - 1), ' ' || char(10))
    WHERE instr(summary, 'If you need specific details from before compaction') > 1;
UPDATE sessions SET summary = rtrim(substr(summary, 1, instr(summary, 'Continue the conversation from where it left off') - 1), ' ' || char(10))
    WHERE instr(summary, 'Continue the conversation from where it left off') > 1;
UPDATE sessions SET summary = rtrim(substr(summary, 1, instr(summary, 'Please continue the conversation from where we left') - 1), ' ' || char(10))
    WHERE instr(summary, 'Please continue the conversation from where we left') > 1;
UPDATE compaction_events SET summary = rtrim(substr(summary, 1, instr(summary, 'If you need specific details from before compaction') - 1), ' ' || char(10))
    WHERE instr(summary, 'If you need specific details from before compaction') > 1;
UPDATE compaction_events SET summary = rtrim(substr(summary, 1, instr(summary, 'Continue the conversation from where it left off') - 1), ' ' || char(10))
    WHERE instr(summary, 'Continue the conversation from where it left off') > 1;
UPDATE compaction_events SET summary = rtrim(substr(summary, 1, instr(summary, 'Please continue the conversation from where we left') - 1), ' ' || char(10))
    WHERE instr(summary, 'Please continue the conversation from where we left') > 1;
