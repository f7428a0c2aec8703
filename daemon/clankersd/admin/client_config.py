"""Settings of clients: a small key-value table that the daemon itself does not use."""

from typing import TYPE_CHECKING, Any

import msgspec

from clankers_protocol.client_config import (
    MAX_KEYS,
    MAX_VALUE,
    ConfigDelete,
    ConfigEntry,
    ConfigGet,
    ConfigList,
    ConfigPage,
    ConfigRemoved,
    ConfigSet,
)
from clankers_protocol.errors import Conflict, InvalidParams
from clankersd import clock
from clankersd.db import Db
from clankersd.db.paging import decode_cursor, encode_cursor, fit_reply
from clankersd.redaction.engine import count_redactions, redact_all, refuse_secret
from clankersd.wire.preparation import is_request_beyond, prepare
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

_SELECT = "SELECT namespace, key, value_json, updated_at FROM config"
_ONE = f"{_SELECT} WHERE namespace = :namespace AND key = :key"
_SET = """
    INSERT INTO config (namespace, key, value_json, updated_at) VALUES (:namespace, :key, :value, :now)
    ON CONFLICT (namespace, key) DO UPDATE SET value_json = :value, updated_at = :now
"""
_PAGE = f"""
    {_SELECT}
    WHERE (:namespace IS NULL OR namespace = :namespace) AND substr(key, 1, length(:prefix)) = :prefix
      AND (namespace, key) > (:after_namespace, :after_key)
    ORDER BY namespace, key LIMIT :limit
"""


@handles(ConfigGet)
async def get(daemon: "Daemon", request: ConfigGet) -> ConfigEntry | None:
    where = {"namespace": request.namespace, "key": request.key}
    row = await daemon.store.read(lambda db: db.fetch_one(_ONE, where))
    return _entry(row) if row else None


@handles(ConfigSet)
async def set_value(daemon: "Daemon", request: ConfigSet) -> ConfigEntry:
    refuse_secret(request.namespace, "$.namespace")
    refuse_secret(request.key, "$.key")

    def redact_value() -> tuple[object, bytes, dict[str, int]]:
        if is_request_beyond(MAX_VALUE):
            raise InvalidParams(f"invalid params: a value may take {MAX_VALUE} bytes, this takes more - at `$.value`")
        given_bytes = len(msgspec.json.encode(request.value))
        if given_bytes > MAX_VALUE:
            problem = f"a value may take {MAX_VALUE} bytes, this takes {given_bytes}"
            raise InvalidParams(f"invalid params: {problem} - at `$.value`")
        redacted, secrets = redact_all({request.key: request.value})
        assert isinstance(redacted, dict)
        value = next(iter(redacted.values()))
        return value, msgspec.json.encode(value), secrets

    redacted_value, encoded, secrets = await prepare(redact_value)
    now = clock.now()
    row = {"namespace": request.namespace, "key": request.key, "value": encoded.decode(), "now": now}

    def store(db: Db) -> None:
        count = db.value("SELECT count(*) FROM config WHERE namespace = :namespace AND key <> :key", row)
        if count >= MAX_KEYS and not db.fetch_one(_ONE, row):  # keys that exist may change
            raise Conflict(f"the namespace {row['namespace']} holds {MAX_KEYS} keys already: delete one first")
        db.execute(_SET, row)
        count_redactions(db, secrets, now)

    await daemon.store.write(store)
    return ConfigEntry(request.namespace, request.key, redacted_value, now)


@handles(ConfigDelete)
async def delete(daemon: "Daemon", request: ConfigDelete) -> ConfigRemoved:
    where = {"namespace": request.namespace, "key": request.key}
    sql = "DELETE FROM config WHERE namespace = :namespace AND key = :key RETURNING key"
    return ConfigRemoved(len(await daemon.store.write(lambda db: db.fetch(sql, where))))


@handles(ConfigList)
async def list_entries(daemon: "Daemon", request: ConfigList) -> ConfigPage:
    namespace, key = decode_cursor(request.cursor, str, str) if request.cursor else ("", "")
    params = {
        "namespace": request.namespace,
        "prefix": request.prefix,
        "after_namespace": namespace,
        "after_key": key,
        "limit": request.limit + 1,
    }
    rows = await daemon.store.read(lambda db: db.fetch(_PAGE, params))
    entries = [_entry(row) for row in fit_reply(rows[: request.limit])]
    more = len(rows) > len(entries)
    return ConfigPage(entries, encode_cursor(entries[-1].namespace, entries[-1].key) if more else None)


def _entry(row: dict[str, Any]) -> ConfigEntry:
    return ConfigEntry(row["namespace"], row["key"], msgspec.json.decode(row["value_json"]), row["updated_at"])
