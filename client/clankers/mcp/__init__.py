"""`clankers-mcp`: an MCP server that gives an agent six tools for the memory, over standard input and output."""

from clankers.mcp.server import main

__all__ = ["main"]
