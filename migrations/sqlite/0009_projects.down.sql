-- A project is the folder it was last seen at again. Projects that were merged stay merged.
DROP TABLE project_repositories;
DROP TABLE project_folders;
DROP INDEX idx_projects_name;
ALTER TABLE projects DROP COLUMN named;
