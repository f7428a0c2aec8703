"""Documents: extracted in a separate process, split into chunks, and stored."""
