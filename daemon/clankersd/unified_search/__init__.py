"""The `search` method: one search over messages, files, documents, skills and memories."""
