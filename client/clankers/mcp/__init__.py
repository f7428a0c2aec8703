"""`clankers-mcp`: an MCP server that gives an agent six tools for the memory, over standard input and output."""

import sys

HELP = """\
Usage: clankers-mcp

MCP server that gives an agent six tools for the local memory: search, get, remember, forget, timeline and status.
A harness starts it and talks to it over standard input and output; it takes no arguments.

To connect an MCP client, add this to its configuration:

  { "mcpServers": { "clankers": { "command": "clankers-mcp" } } }

The project is the folder it is started in, or CLAUDE_PROJECT_DIR. CLANKERS_SOCKET_PATH names another socket of the
daemon.

Options:
  --version   Print the version and exit.
  -h, --help  Print this help and exit.
"""


def _explain(arguments: list[str]) -> None:
    if arguments in (["-h"], ["--help"]):
        sys.stdout.write(HELP)
    elif arguments == ["--version"]:
        from importlib.metadata import version

        sys.stdout.write(f"clankers-mcp, version {version('clankers')}\n")
    else:
        sys.stderr.write(f"clankers-mcp: unknown argument {arguments[0]}. See clankers-mcp --help.\n")
        sys.exit(2)


def main() -> None:
    """Serve until the harness closes our standard input, or print the help."""
    if sys.argv[1:]:
        _explain(sys.argv[1:])
        return
    try:
        from clankers.mcp.server import main as serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types"):
            raise
        sys.exit("clankers-mcp: the package mcp is missing: pip install 'mcp>=2.3,<3'")
    serve()
