-- A team on one schema: each member has a role of its own, and sees what is its own or common. The policies below apply to
-- all roles but the owner of the tables, whose daemon migrates and maintains the schema.
--
-- Private are memories in the scope user:NAME, which only the role NAME sees, and projects that are restricted to some members,
-- with their sessions and the memories of their scopes. What is derived from a private row is as private.

CREATE TABLE project_members (
    project_id text COLLATE "C" NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    member     text COLLATE "C" NOT NULL,
    PRIMARY KEY (project_id, member)
);

-- These read what the caller may not see, so their names are bound when they are created: no search path leads them elsewhere.
CREATE FUNCTION hidden_projects() RETURNS text[] LANGUAGE sql STABLE SECURITY DEFINER
BEGIN ATOMIC
    SELECT ARRAY(SELECT project_id FROM project_members GROUP BY project_id HAVING NOT bool_or(member = session_user::text));
END;

CREATE FUNCTION hidden_project_numbers() RETURNS bigint[] LANGUAGE sql STABLE SECURITY DEFINER
BEGIN ATOMIC
    SELECT ARRAY(SELECT number FROM projects WHERE id = ANY (hidden_projects()));
END;

CREATE FUNCTION hidden_sessions() RETURNS text[] LANGUAGE sql STABLE SECURITY DEFINER
BEGIN ATOMIC
    SELECT ARRAY(SELECT id FROM sessions WHERE project_id = ANY (hidden_projects()));
END;

CREATE FUNCTION is_hidden_scope(scope text, hidden text[]) RETURNS boolean LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT CASE pg_catalog.split_part(scope, ':', 1)
        WHEN 'user' THEN pg_catalog.substr(scope, 6) <> session_user::text
        WHEN 'project' THEN pg_catalog.substr(scope, 9) = ANY (hidden)
        ELSE false
    END;
END;

CREATE FUNCTION is_hidden_memory(memory text) RETURNS boolean LANGUAGE sql STABLE SECURITY DEFINER
BEGIN ATOMIC
    SELECT EXISTS (SELECT 1 FROM memories WHERE id = memory
        AND (is_hidden_scope(scope, hidden_projects()) OR project_id = ANY (hidden_projects())));
END;

-- An entity is as private as the memories that name it, if all of them are.
CREATE FUNCTION is_hidden_entity(entity text) RETURNS boolean LANGUAGE sql STABLE SECURITY DEFINER
BEGIN ATOMIC
    SELECT coalesce(bool_and(is_hidden_memory(memory_id)), false) FROM memory_entities WHERE entity_id = entity;
END;

-- Otherwise a daemon would take the text of another member from the backlog, not find it, and leave it without index.
CREATE FUNCTION is_hidden_text(text_kind text, id text) RETURNS boolean LANGUAGE sql STABLE SECURITY DEFINER
BEGIN ATOMIC
    SELECT CASE text_kind
        WHEN 'memory' THEN is_hidden_memory(id)
        WHEN 'message' THEN (SELECT session_id FROM messages WHERE messages.id = is_hidden_text.id) = ANY (hidden_sessions())
        WHEN 'tool' THEN (SELECT session_id FROM tools WHERE tools.id = is_hidden_text.id) = ANY (hidden_sessions())
        WHEN 'session title' THEN id = ANY (hidden_sessions())
        WHEN 'document chunk' THEN (
            SELECT project_id FROM documents JOIN document_chunks ON document_chunks.document_id = documents.id
            WHERE document_chunks.id = is_hidden_text.id) = ANY (hidden_projects())
        ELSE false
    END;
END;

CREATE POLICY team ON memories USING (
    NOT is_hidden_scope(scope, (SELECT hidden_projects()))
    AND (project_id IS NULL OR project_id <> ALL ((SELECT hidden_projects())::text[]))
);
CREATE POLICY team ON chunks USING (
    (scope IS NULL OR NOT is_hidden_scope(scope, (SELECT hidden_projects())))
    AND (project IS NULL OR project <> ALL ((SELECT hidden_project_numbers())::bigint[]))
    AND (session_id IS NULL OR session_id <> ALL ((SELECT hidden_sessions())::text[]))
);
CREATE POLICY team ON chunk_words USING (EXISTS (SELECT 1 FROM chunks WHERE chunks.id = chunk));
CREATE POLICY team ON memory_words USING (EXISTS (SELECT 1 FROM memories WHERE memories.number = memory));
CREATE POLICY team ON index_queue USING (EXISTS (SELECT 1 FROM chunks WHERE chunks.id = chunk));
CREATE POLICY team ON index_backlog USING (is_hidden_text(kind, owner) IS NOT true);
CREATE POLICY team ON memory_log USING (NOT is_hidden_memory(memory_id));
CREATE POLICY team ON session_memories USING (
    NOT is_hidden_memory(memory_id) AND session_id <> ALL ((SELECT hidden_sessions())::text[])
);
CREATE POLICY team ON memory_entities USING (NOT is_hidden_memory(memory_id));
CREATE POLICY team ON memory_relationships USING (
    NOT is_hidden_memory(source_memory_id) AND NOT is_hidden_memory(target_memory_id)
);
CREATE POLICY team ON entities USING (NOT is_hidden_entity(id));
CREATE POLICY team ON sessions USING (
    project_id IS NULL OR project_id <> ALL ((SELECT hidden_projects())::text[])
);
CREATE POLICY team ON messages USING (session_id <> ALL ((SELECT hidden_sessions())::text[]));
CREATE POLICY team ON tools USING (session_id <> ALL ((SELECT hidden_sessions())::text[]));
CREATE POLICY team ON session_errors USING (session_id <> ALL ((SELECT hidden_sessions())::text[]));
CREATE POLICY team ON compaction_events USING (session_id <> ALL ((SELECT hidden_sessions())::text[]));
CREATE POLICY team ON extracted_summaries USING (session_id <> ALL ((SELECT hidden_sessions())::text[]));
CREATE POLICY team ON extractions USING (session_id <> ALL ((SELECT hidden_sessions())::text[]));
-- A search is stored before it is known which session made it: until then only the owner sees it.
CREATE POLICY team ON recall_log
    USING (session_id IS NOT NULL AND session_id <> ALL ((SELECT hidden_sessions())::text[]))
    WITH CHECK (session_id IS NULL OR session_id <> ALL ((SELECT hidden_sessions())::text[]));
CREATE POLICY team ON told_messages USING (session_id <> ALL ((SELECT hidden_sessions())::text[]));
CREATE POLICY team ON transcripts USING (
    session_id IS NULL OR session_id <> ALL ((SELECT hidden_sessions())::text[])
);
CREATE POLICY team ON chunk_edges USING (
    EXISTS (SELECT 1 FROM document_chunks WHERE id = source_id)
    AND EXISTS (SELECT 1 FROM document_chunks WHERE id = target_id)
);
CREATE POLICY team ON documents USING (project_id IS NULL OR project_id <> ALL ((SELECT hidden_projects())::text[]));
CREATE POLICY team ON document_parts USING (EXISTS (SELECT 1 FROM documents WHERE documents.id = document_id));
CREATE POLICY team ON document_chunks USING (EXISTS (SELECT 1 FROM documents WHERE documents.id = document_id));
-- A block that was injected quotes memories.
CREATE POLICY team ON injections USING (
    session_id <> ALL ((SELECT hidden_sessions())::text[])
    AND NOT EXISTS (SELECT 1 FROM json_array_elements_text(ids_json::json) AS item (id) WHERE is_hidden_memory(item.id))
);
CREATE POLICY team ON injection_outcomes USING (EXISTS (SELECT 1 FROM injections WHERE injections.id = injection_id));

ALTER TABLE memories ENABLE ROW LEVEL SECURITY;
ALTER TABLE chunks ENABLE ROW LEVEL SECURITY;
ALTER TABLE chunk_words ENABLE ROW LEVEL SECURITY;
ALTER TABLE memory_words ENABLE ROW LEVEL SECURITY;
ALTER TABLE index_queue ENABLE ROW LEVEL SECURITY;
ALTER TABLE index_backlog ENABLE ROW LEVEL SECURITY;
ALTER TABLE memory_log ENABLE ROW LEVEL SECURITY;
ALTER TABLE session_memories ENABLE ROW LEVEL SECURITY;
ALTER TABLE memory_entities ENABLE ROW LEVEL SECURITY;
ALTER TABLE memory_relationships ENABLE ROW LEVEL SECURITY;
ALTER TABLE entities ENABLE ROW LEVEL SECURITY;
ALTER TABLE sessions ENABLE ROW LEVEL SECURITY;
ALTER TABLE messages ENABLE ROW LEVEL SECURITY;
ALTER TABLE tools ENABLE ROW LEVEL SECURITY;
ALTER TABLE session_errors ENABLE ROW LEVEL SECURITY;
ALTER TABLE compaction_events ENABLE ROW LEVEL SECURITY;
ALTER TABLE extracted_summaries ENABLE ROW LEVEL SECURITY;
ALTER TABLE extractions ENABLE ROW LEVEL SECURITY;
ALTER TABLE told_messages ENABLE ROW LEVEL SECURITY;
ALTER TABLE transcripts ENABLE ROW LEVEL SECURITY;
ALTER TABLE chunk_edges ENABLE ROW LEVEL SECURITY;
ALTER TABLE documents ENABLE ROW LEVEL SECURITY;
ALTER TABLE document_parts ENABLE ROW LEVEL SECURITY;
ALTER TABLE document_chunks ENABLE ROW LEVEL SECURITY;
ALTER TABLE injections ENABLE ROW LEVEL SECURITY;
ALTER TABLE injection_outcomes ENABLE ROW LEVEL SECURITY;
ALTER TABLE recall_log ENABLE ROW LEVEL SECURITY;

-- A view reads with the rights of its owner unless it says otherwise.
ALTER VIEW chunks_fts SET (security_invoker = true);
ALTER VIEW memories_fts SET (security_invoker = true);

-- Tables of vectors that are there already; the daemon protects those that it creates.
DO $$
DECLARE
    name text;
BEGIN
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = current_schema() AND tablename ~ '^chunk_vectors_\d+$' LOOP
        EXECUTE format('CREATE POLICY team ON %1$I USING (EXISTS (SELECT 1 FROM chunks WHERE id = %1$I.rowid))', name);
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('ALTER VIEW %I SET (security_invoker = true)', name || '_rowids');
    END LOOP;
END $$;
