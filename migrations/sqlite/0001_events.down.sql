-- Back to an empty database: everything captured goes with it.
DROP TABLE jobs;
DROP TABLE compaction_events;
DROP TABLE session_errors;
DROP TABLE tools;
DROP TABLE messages;
DROP TABLE sessions;
DROP TABLE projects;
