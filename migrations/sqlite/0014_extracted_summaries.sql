-- What happened in a session, in a few lines, extracted from its rows without a model. It stands beside sessions.summary,
-- which is what a harness or a client said of the session, because it is derived and may be computed again at any time.
--
-- A row is due while computed < requested. Triggers count the requests: rows come from hooks, transcripts and imports, and
-- those of a session may arrive after its end. covers is sessions.updated_at when it was computed, for sessions that never
-- end but become quiet.
CREATE TABLE extracted_summaries (
    session_id TEXT PRIMARY KEY NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    summary    TEXT,
    requested  INTEGER NOT NULL DEFAULT 1,
    computed   INTEGER NOT NULL DEFAULT 0,
    covers     INTEGER
) STRICT, WITHOUT ROWID;

CREATE INDEX idx_extracted_summaries_due ON extracted_summaries (session_id, requested) WHERE computed < requested;

CREATE TRIGGER sessions_ai_summary AFTER INSERT ON sessions WHEN NEW.ended_at IS NOT NULL BEGIN
    INSERT INTO extracted_summaries (session_id) VALUES (NEW.id) ON CONFLICT DO UPDATE SET requested = requested + 1;
END;

CREATE TRIGGER sessions_au_summary AFTER UPDATE OF ended_at ON sessions
WHEN NEW.ended_at IS NOT NULL AND NEW.ended_at IS NOT OLD.ended_at BEGIN
    INSERT INTO extracted_summaries (session_id) VALUES (NEW.id) ON CONFLICT DO UPDATE SET requested = requested + 1;
END;

CREATE TRIGGER compaction_events_ai_summary AFTER INSERT ON compaction_events BEGIN
    INSERT INTO extracted_summaries (session_id) VALUES (NEW.session_id)
        ON CONFLICT DO UPDATE SET requested = requested + 1;
END;

CREATE TRIGGER messages_ai_summary AFTER INSERT ON messages
WHEN (SELECT ended_at FROM sessions WHERE id = NEW.session_id) IS NOT NULL BEGIN
    INSERT INTO extracted_summaries (session_id) VALUES (NEW.session_id)
        ON CONFLICT DO UPDATE SET requested = requested + 1;
END;

CREATE TRIGGER messages_au_summary AFTER UPDATE OF text_content, role, created_at ON messages
WHEN (NEW.text_content IS NOT OLD.text_content OR NEW.role IS NOT OLD.role OR NEW.created_at <> OLD.created_at)
    AND (SELECT ended_at FROM sessions WHERE id = NEW.session_id) IS NOT NULL BEGIN
    INSERT INTO extracted_summaries (session_id) VALUES (NEW.session_id)
        ON CONFLICT DO UPDATE SET requested = requested + 1;
END;

CREATE TRIGGER tools_ai_summary AFTER INSERT ON tools
WHEN (SELECT ended_at FROM sessions WHERE id = NEW.session_id) IS NOT NULL BEGIN
    INSERT INTO extracted_summaries (session_id) VALUES (NEW.session_id)
        ON CONFLICT DO UPDATE SET requested = requested + 1;
END;

CREATE TRIGGER tools_au_summary AFTER UPDATE OF tool_name, tool_input, file_path, success, created_at ON tools
WHEN (NEW.success IS NOT OLD.success OR NEW.file_path IS NOT OLD.file_path OR NEW.tool_name <> OLD.tool_name
      OR NEW.created_at <> OLD.created_at OR NEW.tool_input IS NOT OLD.tool_input)
    AND (SELECT ended_at FROM sessions WHERE id = NEW.session_id) IS NOT NULL BEGIN
    INSERT INTO extracted_summaries (session_id) VALUES (NEW.session_id)
        ON CONFLICT DO UPDATE SET requested = requested + 1;
END;

-- A text that is deleted must not live on in a summary, not even until it is computed again.
CREATE TRIGGER messages_ad_summary AFTER DELETE ON messages BEGIN
    UPDATE extracted_summaries SET summary = NULL, requested = requested + 1 WHERE session_id = OLD.session_id;
END;

CREATE TRIGGER tools_ad_summary AFTER DELETE ON tools BEGIN
    UPDATE extracted_summaries SET summary = NULL, requested = requested + 1 WHERE session_id = OLD.session_id;
END;

CREATE TRIGGER session_errors_ad_summary AFTER DELETE ON session_errors BEGIN
    UPDATE extracted_summaries SET summary = NULL, requested = requested + 1 WHERE session_id = OLD.session_id;
END;

INSERT INTO extracted_summaries (session_id)
    SELECT id FROM sessions WHERE ended_at IS NOT NULL OR id IN (SELECT session_id FROM compaction_events);
