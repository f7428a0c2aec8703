"""Recall: what an agent is told of earlier work, within bounds, once, and on the record."""
