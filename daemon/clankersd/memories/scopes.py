"""Who may touch what: a memory outside the caller's scopes does not exist for the call."""

import json
from dataclasses import dataclass
from typing import Any, Protocol

from clankers_protocol.errors import InvalidParams
from clankersd.db import Db
from clankersd.projects import find_project_id

GLOBAL = "global"
EVERY = "*"

IN_SCOPE = "(:every_scope OR memories.scope IN (SELECT value FROM json_each(:scopes)))"
"""A condition on memories; its parameters are `Allowed.params`."""


@dataclass(frozen=True)
class Allowed:
    """The scopes that one call may touch."""

    scopes: tuple[str, ...]

    @property
    def params(self) -> dict[str, Any]:
        return {"every_scope": EVERY in self.scopes, "scopes": json.dumps(self.scopes)}

    def __contains__(self, scope: str) -> bool:
        return EVERY in self.scopes or scope in self.scopes


class Asks(Protocol):
    """A request that says who asks."""

    scopes: list[str] | None
    agent: str | None
    project: str | None


def allowed(db: Db, request: Asks) -> Allowed:
    """The scopes the caller named, or its own and the global one."""
    permitted = own_scopes(request)
    if request.scopes is None and request.project and (known := find_project_id(db, request.project)):
        return Allowed((*permitted.scopes, f"project:{known}"))
    return permitted


def own_scopes(request: Asks) -> Allowed:
    """The same, but for the project's, which only the database knows."""
    if request.scopes is not None:
        return Allowed(tuple(dict.fromkeys(request.scopes)))
    return Allowed((GLOBAL, f"agent:{request.agent}") if request.agent else (GLOBAL,))


def scope_to_write(request: Asks, wanted: str | None, own_project: str | None) -> str:
    """Where a new memory goes: into the scope that is wanted, else the project's, the agent's, the global one."""
    own = {"project": own_project and f"project:{own_project}", "agent": request.agent and f"agent:{request.agent}"}
    if wanted is None:
        wanted = own["project"] or own["agent"] or GLOBAL
    kind = wanted.partition(":")[0]
    named = request.scopes is not None and wanted not in Allowed(tuple(request.scopes))
    somebody_elses = request.scopes is None and own.get(kind) not in (None, wanted)
    if named or somebody_elses:
        raise InvalidParams(f"invalid params: {wanted} is not one of the caller's scopes - at `$.scope`")
    return wanted
