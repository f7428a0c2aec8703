"""HTTP client for services on the network, with retries and API keys; used by embedders and the chat model."""
