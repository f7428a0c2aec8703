"""Extraction of memories from captured sessions: by rules on this machine, or by a chat model if one is configured."""
