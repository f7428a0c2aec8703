"""The server of the web view: the page's files, an allow-list of methods, exports, and a stream of changes."""

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

import anyio
import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from clankers.aio import AsyncClient
from clankers.messages import BadReply, DaemonUnavailable
from clankers.view.encoding import to_page_json
from clankers.view.exports import export_session
from clankers.view.guard import TOKEN_BYTES, Access, Guard, new_token
from clankers.view.live import Changes, follow_changes, stream
from clankers.view.methods import WRITE, method_type
from clankers_protocol.errors import NotFound, RpcError
from clankers_protocol.harnesses import NAMES

REQUEST_SECONDS = 60.0
STREAM_END_SECONDS = 2
VERSION_CHARACTERS = 16
PAGES = (
    "search", "sessions", "session", "recall", "memories", "memory", "files", "file", "graph", "overview", "documents",
    "document", "skills", "skill", "schedules", "index", "live",
)  # fmt: skip
"""Names of the pages. Each is a path with the same HTML; the script shows the page that the path names."""

MEDIA_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


@dataclass(frozen=True)
class View:
    """State that the routes share: the secrets, the connection to the daemon, the changes, and what to show first."""

    access: Access
    client: AsyncClient
    changes: Changes
    version: str
    project: str | None


def create_app(access: Access, socket_path: str | None, *, version: str, project: str | None = None) -> Starlette:
    """Build the application; its lifespan holds the connections to the daemon."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        changes = Changes(new_token()[: TOKEN_BYTES // 4])
        async with (
            AsyncClient(socket_path, name="clankers-view", timeout=REQUEST_SECONDS) as client,
            anyio.create_task_group() as tasks,
        ):
            app.state.view = View(access, client, changes, version, project)
            tasks.start_soon(follow_changes, socket_path, changes)
            yield
            tasks.cancel_scope.cancel()

    routes = [
        Route("/", _page),
        *(Route(f"/{name}", _page) for name in PAGES),
        Route("/static/{version}/{name:path}", _static),
        Route("/api/open", _open, methods=["POST"]),
        Route("/api/start", _start),
        Route("/api/rpc/{method}", _rpc, methods=["POST"]),
        Route("/api/export", _export),
        Route("/api/events", _events),
    ]
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _on_http_error})
    app.router.redirect_slashes = False
    app.add_middleware(Guard, access=access)
    return app


def serve(sockets: list[socket.socket], app: Starlette) -> None:
    """Serve until Ctrl-C. Open streams end with the server."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        http="h11",  # the strict parser, also where another one is installed
        ws="none",
        timeout_graceful_shutdown=STREAM_END_SECONDS,
    )
    uvicorn.Server(config).run(sockets)


async def _page(_: Request) -> Response:
    """Return the HTML. It names the other files with their version, so that a browser may keep them."""
    version, assets = _assets()
    content = assets["index.html"].replace(b'"/static/', b'"/static/%s/' % version.encode())
    return Response(content, media_type=MEDIA_TYPES["html"])


async def _static(request: Request) -> Response:
    """Return one of the page's files. Only names in the package's own folder exist, and only in this version."""
    version, assets = _assets()
    name = request.path_params["name"]
    if request.path_params["version"] != version or name not in assets:
        return _failure(404, f"there is no file {name}")
    headers = {"Cache-Control": "private, max-age=31536000, immutable"}
    return Response(assets[name], media_type=MEDIA_TYPES[name.rpartition(".")[2]], headers=headers)


@cache
def _assets() -> tuple[str, dict[str, bytes]]:
    """Read the page's files by their names relative to the folder; their version is a hash of all of them."""

    def walk(folder: Any, prefix: str) -> Iterator[tuple[str, bytes]]:
        for entry in folder.iterdir():
            if entry.is_dir():
                yield from walk(entry, f"{prefix}{entry.name}/")
            elif entry.name.rpartition(".")[2] in MEDIA_TYPES:
                yield f"{prefix}{entry.name}", entry.read_bytes()

    assets = dict(sorted(walk(files("clankers.view") / "static", "")))
    return sha256(b"".join(assets.values())).hexdigest()[:VERSION_CHARACTERS], assets


async def _open(request: Request) -> Response:
    """Exchange the token of the printed address for the cookie and the page's token."""
    try:
        token = msgspec.json.decode(await request.body(), type=dict[str, str]).get("token", "")
    except msgspec.MsgspecError:
        return _failure(400, "the body is not a JSON object with a token")
    view = _view(request)
    if not view.access.accept_opening_token(token):
        return _failure(401, "this address is not valid (any more): open the one that `clankers-ctl view` printed")
    return _answer({"pageToken": view.access.page}, headers={"Set-Cookie": view.access.cookie()})


async def _start(request: Request) -> Response:
    """Tell the page what it needs first; without the write token it can only read."""
    view = _view(request)
    told = {"writeToken": view.access.writing, "version": view.version, "project": view.project}
    return _answer(told | {"harnesses": list(NAMES)})


async def _rpc(request: Request) -> Response:
    """Call one of the allowed methods of the daemon."""
    view, name = _view(request), request.path_params["method"]
    declared = method_type(name)
    if declared is None:
        return _failure(404, f"the view has no method {name}")
    if name in WRITE and not view.access.may_write(request.headers):
        return _failure(403, "a change needs the write token")
    try:
        call = msgspec.json.decode(await request.body(), type=declared)
    except msgspec.MsgspecError as error:
        return _failure(400, f"invalid params: {error}")
    answer = _failure(499, "the page does not wait any more")
    async with anyio.create_task_group() as tasks:

        async def cancel_with_page() -> None:
            """Cancel the call, in the daemon too, when the page has dropped its request: somebody types on."""
            while (await request.receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()

        tasks.start_soon(cancel_with_page)
        try:
            answer = _answer({"result": await view.client.call_untyped(call)})
        except RpcError as error:
            answer = _failure(404 if isinstance(error, NotFound) else 422, error.message, error.code)
        except (DaemonUnavailable, BadReply, TimeoutError) as error:
            answer = _failure(503, str(error))
        tasks.cancel_scope.cancel()
    return answer


async def _export(request: Request) -> Response:
    """Return a session as a file to download."""
    wanted = request.query_params
    try:
        return await export_session(_view(request).client, wanted.get("id", ""), wanted.get("format", ""))
    except ValueError as error:
        return _failure(400, str(error))
    except RpcError as error:
        return _failure(404 if isinstance(error, NotFound) else 422, error.message, error.code)
    except (DaemonUnavailable, BadReply, TimeoutError) as error:
        return _failure(503, str(error))


async def _events(request: Request) -> Response:
    last = request.headers.get("last-event-id") or request.query_params.get("last")
    events = stream(_view(request).changes, last)
    return StreamingResponse(events, media_type="text/event-stream")


async def _on_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _failure(error.status_code, error.detail)


def _view(request: Request) -> View:
    view: View = request.app.state.view
    return view


def _answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(to_page_json(value), status, headers, media_type="application/json")


def _failure(status: int, message: str, code: int | None = None) -> Response:
    return _answer({"error": {"message": message, "code": code}}, status)
