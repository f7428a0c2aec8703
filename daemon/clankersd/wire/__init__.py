"""The wire: sockets, connections, JSON-RPC dispatch, jobs and subscriptions."""
