DROP INDEX idx_told_messages_by_hook;
