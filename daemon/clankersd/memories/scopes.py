"""Scopes: which memories a caller may see and write. Memories outside the caller's scopes do not exist for it."""

import json
from dataclasses import dataclass
from typing import Any, Protocol

from clankers_protocol.errors import InvalidParams
from clankersd.db import Db
from clankersd.projects import find_project_id, resolve_scope

GLOBAL = "global"
ALL_SCOPES = "*"

IN_SCOPE = "(:every_scope OR memories.scope IN (SELECT value FROM json_each(:scopes)))"
"""SQL condition on `memories`; `AllowedScopes.params` holds its parameters."""


@dataclass(frozen=True)
class AllowedScopes:
    """The scopes that one call may read and write."""

    scopes: tuple[str, ...]

    @property
    def params(self) -> dict[str, Any]:
        return {"every_scope": ALL_SCOPES in self.scopes, "scopes": json.dumps(self.scopes)}

    def __contains__(self, scope: str) -> bool:
        return ALL_SCOPES in self.scopes or scope in self.scopes


class ScopedRequest(Protocol):
    """A request that names the caller: its scopes, or its agent and project."""

    scopes: list[str] | None
    agent: str | None
    project: str | None


def needs_lookup(request: ScopedRequest) -> bool:
    """Return True if the allowed scopes include that of a project, which is found in the database."""
    if request.scopes is None:
        return bool(request.project)
    return any(scope.startswith("project:") for scope in request.scopes)


def allowed_scopes(db: Db, request: ScopedRequest) -> AllowedScopes:
    """Return the scopes named in the request, or by default the global one, the agent's and the project's.

    Raises NotFound or Conflict for the scope of a project that does not exist, or that could be several.
    """
    scopes = scopes_without_project(request)
    if request.scopes is None and request.project and (known := find_project_id(db, request.project)):
        return AllowedScopes((*scopes.scopes, f"project:{known}"))
    return AllowedScopes(tuple(dict.fromkeys(resolve_scope(db, scope) for scope in scopes.scopes)))


def scopes_without_project(request: ScopedRequest) -> AllowedScopes:
    """Return the allowed scopes except the project's. Scopes of projects have the names that the request gives them."""
    if request.scopes is not None:
        return AllowedScopes(tuple(dict.fromkeys(request.scopes)))
    return AllowedScopes((GLOBAL, f"agent:{request.agent}") if request.agent else (GLOBAL,))


def scope_to_write(db: Db, request: ScopedRequest, requested: str | None, own_project: str | None) -> str:
    """Return the scope of a new memory: the requested one, else the project's, the agent's or the global one.

    Raises InvalidParams for a scope that the caller may not write, NotFound or Conflict as `allowed_scopes` does.
    """
    requested = requested and resolve_scope(db, requested)
    own = {
        "project": f"project:{own_project}" if own_project else None,
        "agent": f"agent:{request.agent}" if request.agent else None,
    }
    scope = requested if requested is not None else own["project"] or own["agent"] or GLOBAL
    if request.scopes is not None:
        is_writable = scope in allowed_scopes(db, request)
    else:  # any scope but that of another project or agent
        is_writable = own.get(scope.partition(":")[0]) in (None, scope)
    if not is_writable:
        raise InvalidParams(f"invalid params: {scope} is not one of the caller's scopes - at `$.scope`")
    return scope
