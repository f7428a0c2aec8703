"""Export and import of everything durable, as JSON lines: to move to another machine, to merge two, to keep a copy."""
