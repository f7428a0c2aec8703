-- Without capture's books: transcripts are read again from their beginning, which changes nothing.
DROP TABLE opted_out;
DROP TABLE redactions;
DROP TABLE capture_counts;
DROP TABLE told_messages;
DROP TABLE transcripts;
ALTER TABLE compaction_events DROP COLUMN summary;
ALTER TABLE compaction_events DROP COLUMN cause;
