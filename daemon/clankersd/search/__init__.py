"""Search engine: keyword and vector search over chunks, filtered first, then fused and ranked."""
