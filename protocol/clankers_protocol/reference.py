"""Protocol reference generated from the declarations: docs/rpc.md for people, OpenRPC for programs."""

import inspect
from functools import cache
from typing import Any

import msgspec

from clankers_protocol import PROTOCOL
from clankers_protocol.errors import ERRORS
from clankers_protocol.wire import Method, methods, result_type

_HEAD = """\
# RPC reference

Generated from the declarations in `protocol/clankers_protocol` by `make docs`; a test checks that it is current.

JSON-RPC 2.0 over a Unix socket, each message framed as `Content-Length: N\\r\\n\\r\\n` and N bytes of UTF-8
JSON. A connection carries any number of requests; writes of one connection take effect in the order sent,
other replies may come out of order. Batches and notifications work. Times are milliseconds since 1970 UTC;
a number below 1e12 is taken as seconds. `?` marks optional fields. Any request may carry
`schemaVersion` and `client: {name, version}`.

## Cancelling

Send the notification `$/cancelRequest` with the `id` of a request, as in the Language Server Protocol. A request that
has stored nothing yet is answered with error -32800 (RequestCancelled) and stores nothing. A request that has begun to
store something runs to its end and is answered as usual, so a cancelled request never leaves half of its work behind.
When a connection is closed, its searches, queries and other long reads end. What it asked to store is stored all the
same: a harness may exit right after it has sent its last event. A connection that is closed for sending only
(`shutdown(SHUT_WR)`) still gets its answers. Jobs continue; end them with `job.cancel`.

Every request has a deadline, `request_seconds` (600). A request that has stored nothing by then is answered with error
5003 (DeadlineExceeded). `search` and `query` have shorter limits of their own (`search_seconds`, `query_seconds`).

## Limits

- A frame holds at most 32 MiB, its header 8 KiB, a batch 1,000 requests. A frame must be complete within 30 s.
- A body of 128 KiB or more may hold 200,000 arrays and objects, 400,000 members of objects and 1,500,000 values in all.
  Any body may be nested 64 levels deep and have numbers of 1,000 digits. Send more in several requests.
- Large requests are prepared in the background. Other connections do not wait for them; later requests
  of the same connection start when the write of the large one is queued.
- Read your replies. While a connection has unread replies, its next requests are not executed. A connection that
  reads nothing for 30 s is closed. When memory for replies is short, one that has read nothing for 1 s may be closed.
- A connection may leave 32 MiB of replies unread, all connections together 128 MiB. A reply beyond that, or one
  that does not fit into a frame, is replaced by error 5002 (Overloaded): ask for less at a time.
- A batch is answered by one frame. Replies that do not fit into it are replaced by error 5002; the requests were
  executed all the same.
- Frames of more than 1 MiB wait until there is room for them: all connections together may send 128 MiB at once.
- `max_connections` (256) clients may be connected. One process may hold half of them, and the last eighth is for
  processes that have no connection yet. A connection that is refused gets error 5002 without an id, then its end.
"""


def _summary(documented: type[Any]) -> str:
    return inspect.cleandoc(documented.__doc__ or "")


def _schemas() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the JSON Schema of every method by name, and of every struct they use."""
    declared = methods()
    requests, parts = msgspec.json.schema_components(
        list(declared.values()), ref_template="#/components/schemas/{name}"
    )
    results, more = msgspec.json.schema_components(
        [result_type(method) for method in declared.values()], ref_template="#/components/schemas/{name}"
    )
    described = {
        name: {"request": _resolve(request, parts), "result": result}
        for name, request, result in zip(declared, requests, results, strict=True)
    }
    return described, parts | more


def _resolve(schema: dict[str, Any], parts: dict[str, Any]) -> dict[str, Any]:
    return parts[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


@cache
def openrpc(version: str) -> dict[str, Any]:
    """Build the OpenRPC document that `rpc.discover` returns."""
    described, parts = _schemas()
    names = {method.__name__ for method in methods().values()}
    return {
        "openrpc": "1.3.2",
        "info": {"title": "clankers", "version": version, "x-protocol": PROTOCOL},
        "methods": [_openrpc_method(name, described[name]) for name in sorted(described)],
        "components": {"schemas": {name: part for name, part in sorted(parts.items()) if name not in names}},
    }


def _openrpc_method(name: str, described: dict[str, Any]) -> dict[str, Any]:
    request = described["request"]
    return {
        "name": name,
        "summary": _summary(methods()[name]).partition("\n")[0],
        "paramStructure": "by-name",
        "params": [
            {"name": field, "required": field in request.get("required", ()), "schema": schema}
            for field, schema in request.get("properties", {}).items()
        ],
        "result": {"name": "result", "schema": described["result"]},
    }


def page() -> str:
    """Render docs/rpc.md."""
    described, parts = _schemas()
    names = {method.__name__ for method in methods().values()}
    sections = [_HEAD, "## Methods\n"]
    sections += [_method_section(methods()[name], described[name]) for name in sorted(described)]
    sections.append("## Types\n")
    sections += [_type_section(name, part) for name, part in sorted(parts.items()) if name not in names]
    rows = [f"| {code} | {error.__name__} | {_summary(error)} |" for code, error in sorted(ERRORS.items())]
    sections += ["## Errors\n", "\n".join(["| code | error | meaning |", "|---|---|---|", *rows]) + "\n"]
    return "\n".join(sections)


def _method_section(method: type[Method[Any]], described: dict[str, Any]) -> str:
    signature = f"{method.method}({_object(described['request'])}): {_type(described['result'])}"
    return f"### {method.method}\n\n{_summary(method)}\n\n```ts\n{signature}\n```\n"


def _type_section(name: str, part: dict[str, Any]) -> str:
    text = part.get("description", "")
    # msgspec gives a struct without a docstring its base's signature or none at all
    about = f"{inspect.cleandoc(text)}\n\n" if text else ""
    return f"### {name}\n\n{about}```ts\ntype {name} = {_object(part)}\n```\n"


def _object(schema: dict[str, Any]) -> str:
    required = schema.get("required", ())
    fields = [
        f"{name}{'' if name in required else '?'}: {_type(part)}" for name, part in schema.get("properties", {}).items()
    ]
    if not fields:
        return "{}" if schema.get("title") != "Discover" else ""
    joined = "{ " + ", ".join(fields) + " }"
    return joined if len(joined) <= 90 else "{\n  " + ",\n  ".join(fields) + ",\n}"


def _type(schema: dict[str, Any]) -> str:
    """Render a JSON Schema as a TypeScript type."""
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "anyOf" in schema:
        types = dict.fromkeys(_type(part) for part in schema["anyOf"])
        return " | ".join(sorted(types, key=lambda kind: kind == "null"))  # last, whatever the version of msgspec
    if "enum" in schema:
        return " | ".join("null" if value is None else f'"{value}"' for value in schema["enum"])
    kind = schema.get("type")
    if kind == "array":
        item = _type(schema.get("items", {}))
        return f"({item})[]" if "|" in item else f"{item}[]"
    if kind == "object":
        return f"Record<string, {_type(schema.get('additionalProperties', {}))}>"
    plain = {
        "integer": "number",
        "number": "number",
        "string": "string",
        "boolean": "boolean",
        "null": "null",
    }
    return plain.get(str(kind), "unknown")


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201  # `make docs` sends it to docs/rpc.md
