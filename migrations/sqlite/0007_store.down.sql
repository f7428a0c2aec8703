-- Without skills, schedules and clients' settings: they are gone, but for the backup that is made first.
DROP INDEX idx_sessions_chat;
DELETE FROM chunks WHERE skill_id IS NOT NULL;
DROP INDEX idx_chunks_skill;
ALTER TABLE chunks DROP COLUMN skill_id;
DROP TABLE config;
DROP TABLE schedule_runs;
DROP TABLE scheduled_actions;
DROP TABLE skill_versions;
DROP TABLE skills;
