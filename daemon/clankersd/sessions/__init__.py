"""Captured sessions: reading them back, threads, statistics."""
