"""Memories from captured sessions: by rules on this machine, or by a chat model where the owner configures one."""
