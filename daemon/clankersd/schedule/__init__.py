"""Scheduled actions: when they are due, who executes them, and the result of each run."""
