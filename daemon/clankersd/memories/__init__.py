"""Long-term memories: what is known, how strongly, since when, and for whom."""
