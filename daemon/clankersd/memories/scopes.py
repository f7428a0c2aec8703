"""Who may touch what: a memory outside the caller's scopes does not exist for the call."""

import json
from dataclasses import dataclass
from typing import Any, Protocol

from clankers_protocol.errors import InvalidParams
from clankersd.db import Db
from clankersd.projects import find_project_id

GLOBAL = "global"
ALL_SCOPES = "*"

IN_SCOPE = "(:every_scope OR memories.scope IN (SELECT value FROM json_each(:scopes)))"
"""A condition on memories; its parameters are `AllowedScopes.params`."""


@dataclass(frozen=True)
class AllowedScopes:
    """The scopes that one call may touch."""

    scopes: tuple[str, ...]

    @property
    def params(self) -> dict[str, Any]:
        return {"every_scope": ALL_SCOPES in self.scopes, "scopes": json.dumps(self.scopes)}

    def __contains__(self, scope: str) -> bool:
        return ALL_SCOPES in self.scopes or scope in self.scopes


class ScopedRequest(Protocol):
    """A request that says who asks."""

    scopes: list[str] | None
    agent: str | None
    project: str | None


def allowed_scopes(db: Db, request: ScopedRequest) -> AllowedScopes:
    """The scopes the caller named, or its own and the global one."""
    permitted = scopes_without_project(request)
    if request.scopes is None and request.project and (known := find_project_id(db, request.project)):
        return AllowedScopes((*permitted.scopes, f"project:{known}"))
    return permitted


def scopes_without_project(request: ScopedRequest) -> AllowedScopes:
    """The same, but for the project's, which only the database knows."""
    if request.scopes is not None:
        return AllowedScopes(tuple(dict.fromkeys(request.scopes)))
    return AllowedScopes((GLOBAL, f"agent:{request.agent}") if request.agent else (GLOBAL,))


def scope_to_write(request: ScopedRequest, wanted: str | None, own_project: str | None) -> str:
    """Where a new memory goes: into the scope that is wanted, else the project's, the agent's, the global one."""
    own = {"project": own_project and f"project:{own_project}", "agent": request.agent and f"agent:{request.agent}"}
    if wanted is None:
        wanted = own["project"] or own["agent"] or GLOBAL
    kind = wanted.partition(":")[0]
    named = request.scopes is not None and wanted not in AllowedScopes(tuple(request.scopes))
    somebody_elses = request.scopes is None and own.get(kind) not in (None, wanted)
    if named or somebody_elses:
        raise InvalidParams(f"invalid params: {wanted} is not one of the caller's scopes - at `$.scope`")
    return wanted
