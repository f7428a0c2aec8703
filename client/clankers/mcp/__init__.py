"""`clankers-mcp`: an MCP server that gives an agent six tools for the memory, over standard input and output."""

import sys


def main() -> None:
    """Serve until the harness closes our standard input."""
    try:
        from clankers.mcp.server import main as serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types"):
            raise
        sys.exit("clankers-mcp: the package mcp is missing: pip install 'mcp>=2.3,<3'")
    serve()
