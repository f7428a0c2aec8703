"""Extractive summaries of sessions, computed from stored rows without a model."""
