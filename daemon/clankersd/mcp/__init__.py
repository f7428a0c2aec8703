"""The Model Context Protocol: six tools that give an agent the memory. `clankers-mcp` relays its messages."""
