"""Deleting captured data for good: on request, and by the retention settings."""
