"""Scheduled actions: when they are due, who does them, and what became of each run."""
