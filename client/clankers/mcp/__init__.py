"""`clankers-mcp`: the memory as six tools for an agent, over standard input and output."""

from clankers.mcp.server import main

__all__ = ["main"]
