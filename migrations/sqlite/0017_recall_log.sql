-- For the recall page: searches of agents, prompts with which nothing was injected, and what became of injections.

-- A row is a search, or a prompt with which nothing was injected although something matched. facts_json has the other fields
-- of RecordedSearch and SilentPrompt: ids and figures. The only text is the query of a search, with secrets redacted; a
-- prompt is read from the messages of its session. session_id and tool_id of a search name the tool call that made it.
CREATE TABLE recall_log (
    id         INTEGER PRIMARY KEY,
    at         INTEGER NOT NULL,
    kind       TEXT NOT NULL CHECK (kind IN ('search', 'silent')),
    session_id TEXT,
    tool_id    TEXT,
    query      TEXT,
    facts_json TEXT NOT NULL
) STRICT;

CREATE INDEX idx_recall_log_kind ON recall_log (kind, id);
CREATE INDEX idx_recall_log_session ON recall_log (session_id, id);

CREATE TRIGGER sessions_ad_recall_log AFTER DELETE ON sessions BEGIN
    DELETE FROM recall_log WHERE session_id = OLD.id;
END;

-- Whether the items of an injection were used: derived from what followed it, so that it can be counted. It is judged again
-- when the session has changed since. outcome is NULL while there is no answer, and for items that do not exist any more.
CREATE TABLE injection_outcomes (
    injection_id       INTEGER NOT NULL REFERENCES injections (id) ON DELETE CASCADE,
    item_id            TEXT NOT NULL,
    outcome            TEXT CHECK (outcome IN ('used', 'contradicted', 'ignored')),
    session_updated_at INTEGER NOT NULL,
    PRIMARY KEY (injection_id, item_id)
) STRICT, WITHOUT ROWID;
