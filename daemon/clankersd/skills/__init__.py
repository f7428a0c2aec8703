"""Skills: storage with versions, search, SKILL.md import and export."""
