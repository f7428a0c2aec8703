"""MCP: messages of the Model Context Protocol, relayed between an agent and the daemon."""

from typing import Annotated, Any, ClassVar

from msgspec import Meta

from clankers_protocol.wire import Method


class McpMessage(Method[Any]):
    """Answer a message of the Model Context Protocol, as `clankers-mcp` relays it.

    `message` is a request, a notification or a batch, `project` the folder that the agent works in. The result is the
    response, or null if the message takes none. A request that `notifications/cancelled` names on the same connection
    is ended, with null as its result. Nothing is kept between messages, so a connection may be replaced at any time.
    """

    method: ClassVar[str] = "mcp.message"
    message: dict[str, Any] | list[Any]
    project: Annotated[str, Meta(min_length=1, max_length=4096)]
