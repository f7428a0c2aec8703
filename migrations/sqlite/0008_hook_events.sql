-- A hook whose answer comes too late writes its event into the spool, although the daemon has stored it. The digests of
-- the newest hook events tell the replay from a new event, so that nothing is counted twice.
CREATE TABLE hook_events (
    position INTEGER PRIMARY KEY,
    digest BLOB NOT NULL UNIQUE
) STRICT;
