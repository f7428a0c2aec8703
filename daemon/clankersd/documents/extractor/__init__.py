"""Extract text from documents in a separate process."""
