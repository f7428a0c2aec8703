"""The index: chunks of everything searchable, their words and their vectors."""
