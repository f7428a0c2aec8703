-- A chunk knows its project, so that a search in one project filters by a small number: in SQL by an index, in memory
-- by an array beside the vectors. The number stands for the project's id, which is 36 characters long.
ALTER TABLE projects ADD COLUMN number INTEGER;

UPDATE projects SET number = rowid;

CREATE UNIQUE INDEX idx_projects_number ON projects (number);

CREATE TRIGGER projects_ai AFTER INSERT ON projects BEGIN
    UPDATE projects SET number = (SELECT coalesce(max(number), 0) + 1 FROM projects) WHERE id = NEW.id;
END;

-- A path may name a project by the folder in which its sessions ran.
CREATE INDEX idx_sessions_project_path ON sessions (project_path, project_id);

ALTER TABLE chunks ADD COLUMN project INTEGER;

UPDATE chunks SET project = (
    SELECT number FROM projects WHERE id = coalesce(
        (SELECT project_id FROM sessions WHERE sessions.id = chunks.session_id),
        (SELECT project_id FROM files WHERE files.id = chunks.file_id),
        (SELECT project_id FROM memories WHERE memories.id = chunks.memory_id),
        (SELECT documents.project_id FROM document_chunks JOIN documents ON documents.id = document_chunks.document_id
         WHERE document_chunks.id = chunks.document_chunk_id)));

CREATE INDEX idx_chunks_project ON chunks (project, chunking) WHERE project IS NOT NULL;

DROP INDEX idx_chunks_place;
CREATE INDEX idx_chunks_place ON chunks (id, chunking, project, session_id, turn, tokens, source, memory_id, scope);

-- What moves to another project takes its chunks along.
CREATE TRIGGER sessions_project_au AFTER UPDATE OF project_id ON sessions WHEN NEW.project_id IS NOT OLD.project_id BEGIN
    UPDATE chunks SET project = (SELECT number FROM projects WHERE id = NEW.project_id) WHERE session_id = NEW.id;
END;

CREATE TRIGGER files_project_au AFTER UPDATE OF project_id ON files WHEN NEW.project_id IS NOT OLD.project_id BEGIN
    UPDATE chunks SET project = (SELECT number FROM projects WHERE id = NEW.project_id) WHERE file_id = NEW.id;
END;

CREATE TRIGGER memories_project_au AFTER UPDATE OF project_id ON memories WHEN NEW.project_id IS NOT OLD.project_id BEGIN
    UPDATE chunks SET project = (SELECT number FROM projects WHERE id = NEW.project_id) WHERE memory_id = NEW.id;
END;

CREATE TRIGGER documents_project_au AFTER UPDATE OF project_id ON documents
WHEN NEW.project_id IS NOT OLD.project_id BEGIN
    UPDATE chunks SET project = (SELECT number FROM projects WHERE id = NEW.project_id)
    WHERE document_chunk_id IN (SELECT id FROM document_chunks WHERE document_id = NEW.id);
END;
