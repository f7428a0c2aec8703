"""Processes that the daemon starts for work that must neither harm nor delay it: documents, queries, imports."""
