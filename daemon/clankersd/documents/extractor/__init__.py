"""Text extraction from documents, in a process of its own."""
