"""Load jsonrpcserver without what the daemon does not use of it: a fifth of every start, and megabytes.

It imports jsonschema for a validator that rpc.py replaces, and an HTTP server. Importing this module first loads it
with stand-ins instead, which are gone again afterwards.
"""

import sys
from types import ModuleType
from typing import Any

SERVER = "jsonrpcserver.server"
NAMES = ("jsonschema", "jsonschema.validators", SERVER)


class _Validator:
    """As much of a validator as jsonrpcserver touches while it is imported."""

    def __init__(self, _schema: Any) -> None:
        pass

    @staticmethod
    def check_schema(_schema: Any) -> None:
        pass

    def validate(self, _request: Any) -> None:
        raise RuntimeError("requests are validated by rpc.py")


def _serve(*_: Any) -> None:
    raise RuntimeError("the daemon serves no HTTP")


def _load() -> None:
    stand_ins = {name: ModuleType(name) for name in NAMES}
    stand_ins["jsonschema.validators"].validator_for = lambda _schema: _Validator  # type: ignore[attr-defined]
    stand_ins[SERVER].serve = _serve  # type: ignore[attr-defined]
    sys.modules.update(stand_ins)
    try:
        import jsonrpcserver  # noqa: F401
    finally:
        for name in NAMES:
            del sys.modules[name]


if not {"jsonrpcserver", *NAMES} & set(sys.modules):
    _load()
