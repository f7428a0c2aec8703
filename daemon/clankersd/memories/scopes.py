"""Who may touch what: a memory outside the caller's scopes does not exist for the call."""

import json
from dataclasses import dataclass
from typing import Any

from clankers_protocol.errors import InvalidParams
from clankers_protocol.memories import Scoped
from clankersd.db import Db
from clankersd.projects import project_id

GLOBAL = "global"


@dataclass(frozen=True)
class Allowed:
    """The scopes of one call."""

    scopes: tuple[str, ...]

    @property
    def params(self) -> dict[str, Any]:
        """What `IN_SCOPE` wants to know."""
        return {"scopes": json.dumps(self.scopes)}


IN_SCOPE = "memories.scope IN (SELECT value FROM json_each(:scopes))"
"""A condition on memories; its parameter comes from `Allowed.params`."""


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


def require(scope: str, permitted: Allowed) -> str:
    """The scope itself, when the caller may write into it."""
    if scope not in permitted.scopes:
        raise InvalidParams(f"invalid params: {scope} is not one of the caller's scopes - at `$.scope`")
    return scope
