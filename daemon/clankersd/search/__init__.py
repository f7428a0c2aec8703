"""Search: words and meaning, fused, filtered before they are ranked."""
