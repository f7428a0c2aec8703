-- What was put into the context of a session: so that nothing is said twice in it, and its cost can be seen.

-- A session may be told something before it is heard of, so session_id refers to nothing; what goes with the session
-- goes by the trigger. trigger_event is what it was told at ('startup', 'resume', 'clear', 'compact', 'prompt', …): at
-- 'compact' the harness has dropped what was told before, and there is a row even when nothing is told.
CREATE TABLE injections (
    id            INTEGER PRIMARY KEY,
    session_id    TEXT NOT NULL,
    at            INTEGER NOT NULL,
    kind          TEXT NOT NULL CHECK (kind IN ('start', 'prompt')),
    trigger_event TEXT NOT NULL,
    characters    INTEGER NOT NULL,
    ids_json      TEXT NOT NULL,
    text          TEXT NOT NULL
) STRICT;

CREATE INDEX idx_injections_session ON injections (session_id, id);

CREATE TRIGGER sessions_ad_injections AFTER DELETE ON sessions BEGIN
    DELETE FROM injections WHERE session_id = OLD.id;
END;
