"""Long-term memories: storing, searching, relating, maintaining and transferring them."""
