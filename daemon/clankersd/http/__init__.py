"""HTTP client with retry, response checks and API keys, shared by embedders and chat."""
