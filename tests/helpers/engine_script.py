"""Calls of every RPC method, for daemons on different engines that must reply alike."""

from typing import Any

from helpers.daemon import RawConnection
from helpers.store import message
from helpers.waiting import settled

Calls = tuple[tuple[str, dict[str, Any]], ...]

DAY = 86_400_000

TEXTS = (
    "the deploy script fails when the registry is unreachable",
    "retry the connection with exponential backoff and jitter",
    "parseHttpHeader splits a header at the first colon",
    "数据库连接超时的时候重试",
    "the cat sat on the mat and nothing else happened",
    "a database migration adds a column and an index",
)


def fill(rpc: RawConnection) -> dict[str, str]:
    """Store something of every kind; returns the ids of what has one."""
    rpc.call("upsertSession", session={"id": "s1", "title": "Deploy", "projectPath": "/src/shop", "createdAt": DAY})
    for number, text in enumerate(TEXTS):
        created = {"role": "user" if number % 2 else "assistant", "createdAt": DAY + number, "promptTokens": number}
        rpc.call("upsertMessage", message={"id": f"m{number}", "sessionId": "s1", "textContent": text, **created})
    tool = {"toolName": "Edit", "toolInput": "make", "filePath": "/src/shop/a.py", "success": False}
    rpc.call("upsertTool", tool={"id": "t1", "sessionId": "s1", "errorMessage": "ENOENT", "createdAt": DAY, **tool})
    rpc.call("upsertSessionError", sessionError={"id": "e1", "sessionId": "s1", "errorMessage": "boom"})
    rpc.call("upsertCompactionEvent", compactionEvent={"id": "c1", "sessionId": "s1", "tokensBefore": 10})
    first = rpc.call("memory.add", content="Deploy keys live in the vault, never in the repository.", tags=["ops"])
    second = rpc.call("memory.add", content="Backups run at three in the morning.", pinned=True)
    relation = rpc.call("relation.add", source=first["memory"]["id"], target=second["memory"]["id"], type="RELATED_TO")
    document = rpc.call(
        "document.ingest", text="# Runbook\n\nRestart the queue.\n\n## Rollback\n\nUse the tag.", source="r"
    )
    skill = rpc.call("skill.create", name="deploy-it", description="How to deploy", instructions="Run make deploy.")
    action = rpc.call("schedule.create", description="report", schedule="09:00 daily", timezone="UTC")
    rpc.call("thread.create", chatId="chat", id="thread1", title="A thread")
    rpc.call("message.store", threadId="thread1", id="tm1", role="user", content="hello from the thread")
    rpc.call("config.set", namespace="n", key="k", value={"a": [1, None]})
    entity = rpc.call("entity.upsert", name="Vault", type="technology")
    rpc.call(
        "document.store",
        id="d1",
        source="parts",
        chunks=[{"id": key, "content": f"part {key}"} for key in ("k1", "k2", "k3")],
    )
    edges = [("k1", "k2", 1.0), ("k2", "k3", 0.5), ("k3", "k1", 0.05)]
    rpc.call(
        "graph.storeEdges",
        edges=[
            {"sourceId": source, "targetId": target, "relation": "references", "weight": weight}
            for source, target, weight in edges
        ],
    )
    settled(rpc)
    return {
        "memory": first["memory"]["id"],
        "other memory": second["memory"]["id"],
        "relation": str(relation.get("id") or relation["relation"]["id"]),
        "document": str(document.get("id") or document["document"]["id"]),
        "skill": str(skill.get("id") or skill["skill"]["id"]),
        "action": str(action.get("id") or action["action"]["id"]),
        "entity": str(entity.get("id") or entity["entity"]["id"]),
    }


READS: Calls = (
    ("session.list", {}),
    ("session.get", {"id": "s1"}),
    ("session.timeline", {"sessionId": "s1"}),
    ("message.list", {"sessionId": "s1"}),
    ("session.errors", {"sessionId": "s1"}),
    ("session.compactions", {"sessionId": "s1"}),
    ("session.turns", {"sessionId": "s1"}),
    ("tool.list", {"sessionId": "s1"}),
    ("file.list", {}),
    ("file.history", {"path": "/src/shop/a.py"}),
    ("stats", {}),
    ("search", {"query": "database connection retry"}),
    ("search", {"query": "parse header"}),
    ("search", {"query": "数据库"}),
    ("search", {"query": "deploy", "mode": "keyword"}),
    ("search", {"query": "vault keys", "mode": "vector"}),
    ("search", {"query": "deploy", "project": "/src/shop"}),
    ("message.search", {"query": "backoff"}),
    ("memory.list", {}),
    ("memory.get", {"id": "$memory"}),
    ("memory.search", {"query": "where are the keys"}),
    ("memory.history", {"id": "$memory"}),
    ("memory.compare", {"earlier": 1}),
    ("memory.related", {"id": "$memory"}),
    ("memory.stats", {}),
    ("memory.timeline", {"id": "$memory"}),
    ("memory.has", {"content": "Backups run at three in the morning."}),
    ("memory.strength", {"id": "$memory"}),
    ("memory.context", {"query": "deploy"}),
    ("memory.export", {"scopes": ["*"]}),
    ("relation.list", {"memoryId": "$memory"}),
    ("entity.list", {}),
    ("entity.get", {"id": "$entity"}),
    ("document.list", {}),
    ("document.get", {"id": "$document"}),
    ("chunk.list", {"documentId": "$document"}),
    ("chunk.search", {"query": "rollback"}),
    ("chunk.searchKeyword", {"query": "queue"}),
    ("skill.list", {}),
    ("skill.get", {"id": "$skill"}),
    ("skill.search", {"query": "deploy"}),
    ("skill.versions", {"id": "$skill"}),
    ("skill.export", {"id": "$skill"}),
    ("schedule.list", {}),
    ("schedule.get", {"id": "$action"}),
    ("schedule.history", {}),
    ("schedule.due", {}),
    ("schedule.find", {"description": "report"}),
    ("thread.list", {"chatId": "chat"}),
    ("thread.get", {"id": "thread1"}),
    ("config.get", {"namespace": "n", "key": "k"}),
    ("config.list", {"namespace": "n"}),
    ("project.list", {}),
    ("project.show", {"project": "/src/shop"}),
    ("recall.ledger", {}),
    ("recall.totals", {"memoryId": "$memory", "since": 1}),
    ("session.list", {"skipAutomated": True, "skipShort": True, "count": True}),
    ("tool.search", {"query": "A"}),
    ("tool.search", {"query": "no_such% thing", "project": "/src/shop", "sessionId": "s1", "since": 1}),
    ("recall.preview", {"kind": "prompt", "query": "deploy keys"}),
    ("recall.preview", {"kind": "prompt", "query": "exponential backoff of the connection", "project": "/src/shop"}),
    ("recall.preview", {"kind": "prompt", "query": "ENOENT src shop a.py", "project": "/src/shop"}),
    ("retention.show", {}),
    ("retention.count", {}),
    ("forget.count", {"matching": "vault"}),
    ("capture.status", {}),
    ("id.find", {"id": "s1"}),
    ("index.status", {}),
    ("model.list", {}),
    ("graph.neighbors", {"id": "$memory"}),
    ("chunk.get", {"ids": ["k1", "k2"]}),
    ("graph.getEdges", {"ids": ["k1"]}),
    ("graph.incoming", {"ids": ["k1"]}),
    ("graph.traverse", {"ids": ["k1"], "hops": 3}),
    ("id.shorten", {"kind": "session", "ids": ["s1"]}),
    ("mcp.message", {"project": "/src/shop", "message": {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}}),
    ("recall.get", {"id": "m1"}),
    ("recall.lines", {"path": "$notes", "startLine": 1, "lines": 2}),
    ("recall.recent", {}),
    ("recall.totals", {}),
    ("search.facets", {"query": "deploy database"}),
    ("session.entry", {"id": "m1"}),
    ("session.injections", {"sessionId": "s1"}),
    ("rpc.discover", {}),
    ("query", {"sql": "SELECT id, role FROM messages ORDER BY id"}),
)


CHANGES: Calls = (
    ("subscribe", {"kinds": ["message", "memory"]}),
    ("unsubscribe", {"subscriptionId": "$subscribe"}),
    ("schedule.subscribe", {}),
    ("schedule.ack", {"runId": "unknown"}),
    ("capture.pause", {"project": "/src/other", "seconds": 3600}),
    ("capture.status", {}),
    ("capture.resume", {"project": "/src/other"}),
    ("log.write", {"entry": {"level": "info", "message": "hello", "component": "test"}}),
    ("daemon.configure", {"key": "backup_keep", "value": 5}),
    ("daemon.reload", {}),
    ("index.add", {"path": "$notes"}),
    ("index.sync", {}),
    ("search", {"query": "zebra crossing"}),
    ("recall.lines", {"path": "$notes", "startLine": 1, "lines": 3}),
    ("index.remove", {"path": "$notes"}),
    ("document.ingestMany", {"documents": [{"text": "# One\n\nfirst of many", "source": "one"}]}),
    ("document.list", {}),
    ("document.delete", {"id": "$document", "dryRun": True}),
    ("graph.prune", {"minWeight": 0.1}),
    ("graph.traverse", {"ids": ["k1"], "direction": "both"}),
    ("import.start", {"harness": "claude-code"}),
    ("export.start", {}),
    ("export.read", {"jobId": "$export.start"}),
    (
        "import.lines",
        {
            "lines": [
                {"kind": "session", "id": "imported", "title": "Imported", "createdAt": 1},
                {"kind": "nonsense"},
                "no JSON",
            ]
        },
    ),
    (
        "memory.import",
        {"memories": [{"id": "01J00000000000000000000001", "content": "Tests run in parallel.", "createdAt": 1}]},
    ),
    ("memory.promote", {"id": "01J00000000000000000000001", "tier": "global"}),
    ("memory.extract", {"sessionId": "s1", "by": "rules"}),
    ("memory.summarize", {"sessionId": "s1"}),
    ("memory.bulkDelete", {"query": "parallel", "dryRun": True}),
    ("memory.bulkDelete", {"query": "parallel"}),
    ("memory.purge", {"id": "01J00000000000000000000001"}),
    (
        "recall.hook",
        {
            "harness": "claude-code",
            "event": {
                "hook_event_name": "UserPromptSubmit",
                "session_id": "s1",
                "cwd": "/src/shop",
                "prompt": "where do the deploy keys live?",
            },
        },
    ),
    ("recall.recent", {"sessionId": "s1"}),
    (
        "mcp.message",
        {
            "project": "/src/shop",
            "message": {
                "jsonrpc": "2.0",
                "id": 2,
                "method": "tools/call",
                "params": {"name": "search", "arguments": {"query": "deploy keys"}},
            },
        },
    ),
    ("relation.close", {"id": "$relation"}),
    ("entity.upsert", {"name": "The vault", "type": "technology"}),
    ("entity.merge", {"id": "$entity.upsert", "into": "$entity"}),
    ("entity.upsert", {"name": "Registry", "type": "technology"}),
    ("entity.delete", {"id": "$entity.upsert"}),
    ("skill.import", {"text": "---\nname: second\ndescription: note\n---\nuse it\n", "folder": "second"}),
    ("skill.delete", {"id": "$skill.import"}),
    ("schedule.update", {"id": "$action", "schedule": "10:00 daily"}),
    ("schedule.create", {"description": "other", "schedule": "11:00 daily", "timezone": "UTC"}),
    ("schedule.delete", {"id": "$schedule.create"}),
    ("schedule.deleteAll", {"dryRun": True}),
    ("thread.create", {"chatId": "chat", "id": "thread2", "title": "Another", "project": "/src/cart"}),
    ("message.store", {"threadId": "thread2", "id": "tm2", "role": "user", "content": "goodbye"}),
    ("thread.delete", {"id": "thread2"}),
    ("upsertSession", {"session": {"id": "s3", "title": "Cart", "projectPath": "/src/cart"}}),
    ("upsertMessage", {"message": message("m9", "s3", "the cart is empty")}),
    ("project.move", {"project": "/src/cart", "folder": "/src/basket"}),
    ("project.merge", {"project": "/src/basket", "into": "/src/shop"}),
    ("upsertSession", {"session": {"id": "s4", "title": "Gone", "projectPath": "/src/gone"}}),
    ("project.forget", {"project": "/src/gone"}),
    ("document.delete", {"id": "d1"}),
    ("job.cancel", {"id": "unknown"}),
    (
        "memory.update",
        {"id": "$memory", "content": "Deploy keys live in the vault of the team.", "tags": ["ops", "keys"]},
    ),
    ("memory.pin", {"id": "$memory", "pinned": True}),
    ("memory.reinforce", {"id": "$memory"}),
    ("memory.deemphasize", {"id": "$memory"}),
    ("memory.touch", {"ids": ["$memory"]}),
    ("memory.delete", {"id": "$memory"}),
    ("memory.restore", {"id": "$memory"}),
    ("memory.maintain", {}),
    ("entity.link", {"memoryId": "$memory", "entityId": "$entity"}),
    ("events.batch", {"events": [{"session": {"id": "s2", "title": "Second"}}, {"message": message("b1", "s2")}]}),
    ("hook.event", {"harness": "generic", "event": {"message": message("h1", "s2")}}),
    ("thread.update", {"id": "thread1", "title": "Renamed"}),
    ("project.rename", {"project": "/src/shop", "name": "Shop"}),
    ("schedule.enable", {"id": "$action", "enabled": False}),
    ("skill.update", {"id": "$skill", "description": "How to deploy it"}),
    ("config.delete", {"namespace": "n", "key": "k"}),
    ("document.update", {"id": "$document", "title": "Runbook of the team"}),
    ("session.delete", {"id": "s2"}),
    ("upsertMessage", {"message": message("m0", "s1", "an updated text about databases")}),
    ("ensureDb", {}),
    ("health", {}),
    ("daemon.status", {}),
    ("metrics", {}),
    ("job.list", {}),
    ("daemon.config", {}),
    ("getDbPath", {}),
)
MAINTENANCE: Calls = (
    ("doctor.check", {}),
    ("db.check", {}),
    ("db.vacuum", {}),
    ("reindex", {}),
    ("backup.create", {}),
    ("backup.create", {"withoutDerived": True}),
    ("doctor.repair", {}),
    ("retention.start", {}),
    ("forget.start", {"matching": "mat and nothing"}),
    ("index.sync", {}),
    ("db.rollback", {}),
    ("db.migrate", {}),
)
"""Jobs and migrations: they end well on both engines, but describe the engine."""

ELSEWHERE = {
    "$/cancelRequest": "a notification: it has no reply; tests/integration/test_cancellation.py",
    "backup.restore": "replaces the database: tests/engines/test_backups.py",
    "engine.copy": "from one engine to the other: tests/engines/test_postgres.py",
    "job.status": "called for every job",
}
"""Methods that are not called here, and why."""
