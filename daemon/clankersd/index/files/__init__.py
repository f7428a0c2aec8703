"""Watched markdown files: scan, watch and sync with the index."""
