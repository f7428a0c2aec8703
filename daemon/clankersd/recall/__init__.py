"""Recall: put relevant earlier work into an agent's prompt, bounded, without repetition, and on the record."""
