"""`python -m clankers.mcp` is `clankers-mcp`."""

from clankers.mcp import main

if __name__ == "__main__":
    main()
