-- Without policies: every role with rights on the tables sees all rows.
DO $$
DECLARE
    name text;
BEGIN
    FOR name IN SELECT tablename FROM pg_policies WHERE schemaname = current_schema() AND tablename LIKE 'chunk_vectors_%' LOOP
        EXECUTE format('ALTER TABLE %I DISABLE ROW LEVEL SECURITY', name);
        EXECUTE format('DROP POLICY team ON %I', name);
    END LOOP;
END $$;
ALTER VIEW memories_fts RESET (security_invoker);
ALTER VIEW chunks_fts RESET (security_invoker);
ALTER TABLE injections DISABLE ROW LEVEL SECURITY;
ALTER TABLE document_chunks DISABLE ROW LEVEL SECURITY;
ALTER TABLE document_parts DISABLE ROW LEVEL SECURITY;
ALTER TABLE documents DISABLE ROW LEVEL SECURITY;
ALTER TABLE extracted_summaries DISABLE ROW LEVEL SECURITY;
ALTER TABLE compaction_events DISABLE ROW LEVEL SECURITY;
ALTER TABLE session_errors DISABLE ROW LEVEL SECURITY;
ALTER TABLE tools DISABLE ROW LEVEL SECURITY;
ALTER TABLE messages DISABLE ROW LEVEL SECURITY;
ALTER TABLE sessions DISABLE ROW LEVEL SECURITY;
ALTER TABLE entities DISABLE ROW LEVEL SECURITY;
ALTER TABLE memory_relationships DISABLE ROW LEVEL SECURITY;
ALTER TABLE memory_entities DISABLE ROW LEVEL SECURITY;
ALTER TABLE session_memories DISABLE ROW LEVEL SECURITY;
ALTER TABLE memory_log DISABLE ROW LEVEL SECURITY;
ALTER TABLE index_backlog DISABLE ROW LEVEL SECURITY;
ALTER TABLE index_queue DISABLE ROW LEVEL SECURITY;
ALTER TABLE memory_words DISABLE ROW LEVEL SECURITY;
ALTER TABLE chunk_words DISABLE ROW LEVEL SECURITY;
ALTER TABLE chunks DISABLE ROW LEVEL SECURITY;
ALTER TABLE memories DISABLE ROW LEVEL SECURITY;
DROP POLICY team ON injections;
DROP POLICY team ON document_chunks;
DROP POLICY team ON document_parts;
DROP POLICY team ON documents;
DROP POLICY team ON extracted_summaries;
DROP POLICY team ON compaction_events;
DROP POLICY team ON session_errors;
DROP POLICY team ON tools;
DROP POLICY team ON messages;
DROP POLICY team ON sessions;
DROP POLICY team ON entities;
DROP POLICY team ON memory_relationships;
DROP POLICY team ON memory_entities;
DROP POLICY team ON session_memories;
DROP POLICY team ON memory_log;
DROP POLICY team ON index_backlog;
DROP POLICY team ON index_queue;
DROP POLICY team ON memory_words;
DROP POLICY team ON chunk_words;
DROP POLICY team ON chunks;
DROP POLICY team ON memories;
DROP FUNCTION is_hidden_text, is_hidden_entity, is_hidden_memory, is_hidden_scope, hidden_sessions, hidden_project_numbers, hidden_projects;
DROP TABLE project_members;
