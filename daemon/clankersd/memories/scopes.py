"""Who may touch what: a memory outside the caller's scopes does not exist for the call."""

import json
from dataclasses import dataclass
from typing import Any

from clankers_protocol.errors import InvalidParams
from clankers_protocol.memories import Scoped
from clankersd.db import Db
from clankersd.projects import project_id

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


def allowed(db: Db, request: Scoped[Any]) -> Allowed:
    """The scopes the caller named, or its own and the global one."""
    if request.scopes is not None:
        return Allowed(tuple(dict.fromkeys(request.scopes)))
    own = [GLOBAL]
    if request.agent:
        own.append(f"agent:{request.agent}")
    if request.project and (known := project_id(db, request.project)):
        own.append(f"project:{known}")
    return Allowed(tuple(own))


def scope_to_write(request: Scoped[Any], wanted: str | None, own_project: str | None) -> str:
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
