-- A project is its repository, wherever it lies: its folders (clones, worktrees' main folders, places it was moved from)
-- and its repositories (addresses of remotes, else root commits) lead to it. projects.path is the folder that is shown.
--
-- Projects that exist already know only their folder. They learn their repository when something happens there next.

-- named is 1 if the owner chose the name: then neither a harness nor a move changes it.
ALTER TABLE projects ADD COLUMN named INTEGER NOT NULL DEFAULT 0 CHECK (named IN (0, 1));

CREATE INDEX idx_projects_name ON projects (name COLLATE NOCASE);

-- repository is what was last read there: host and path of the remote, or commit: and the root commit. directory is the
-- inode and time of creation of the directory, which a rename keeps.
CREATE TABLE project_folders (
    path       TEXT PRIMARY KEY NOT NULL,
    project_id TEXT NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    repository TEXT,
    directory  TEXT,
    seen_at    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX idx_project_folders_project ON project_folders (project_id);
CREATE INDEX idx_project_folders_directory ON project_folders (directory) WHERE directory IS NOT NULL;

CREATE TABLE project_repositories (
    repository TEXT PRIMARY KEY NOT NULL,
    project_id TEXT NOT NULL REFERENCES projects (id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

CREATE INDEX idx_project_repositories_project ON project_repositories (project_id);

INSERT INTO project_folders (path, project_id, seen_at) SELECT path, id, updated_at FROM projects;
