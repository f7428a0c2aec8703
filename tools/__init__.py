"""Tools for those who work on clankers; nothing of it is installed."""
