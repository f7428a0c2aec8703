"""Captured sessions: reading them, threads of chats, and usage statistics."""
