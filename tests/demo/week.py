"""Store the demo week through the daemon's own methods, as harnesses and agents would."""

import json
import random
import time
from typing import Any

from helpers.daemon import RawConnection
from helpers.waiting import settled
from tests.demo.stories import ENTITIES, INFRA, MEMORIES, PARSER, SHOP, STORIES, Exchange, Story

DAY_MS = 86_400_000
BATCH = 400
CONTEXT_START = 9_000
FOLLOW_UPS = (
    "Run the whole test suite once more.",
    "Write a short note for the changelog.",
    "Is there a simpler way?",
    "Explain the last change in two sentences.",
    "Commit it with a good message.",
)


def fill(connection: RawConnection) -> None:
    """Store sessions, memories, documents, skills and schedules; recall is asked as a harness would."""
    now = int(time.time() * 1000)
    connection.call("daemon.configure", key="recall_seconds", value=30)
    stories = sorted(STORIES, key=lambda story: (-story.days_ago, story.hour))
    for number, story in enumerate(stories):
        _store_story(connection, story, number, now)
    _store_short_sessions(connection, now)
    memories = _store_memories(connection, now)
    _store_library(connection, now)
    settled(connection)
    _recall(connection, now, memories)


def long_session(connection: RawConnection, messages: int) -> None:
    """Store one session with many messages."""
    choose = random.Random(3)
    words = [
        "parser",
        "lexer",
        "token",
        "retry",
        "buffer",
        "flush",
        "export",
        "invoice",
        "cache",
        "index",
        "schema",
        "column",
        "socket",
        "frame",
    ]
    start = int(time.time() * 1000) - DAY_MS * 2
    events: list[dict[str, Any]] = [
        {
            "session": {
                "id": "long-session-0001",
                "title": "A very long refactoring",
                "projectPath": PARSER,
                "source": "claude-code",
                "model": "claude-opus-5",
                "createdAt": start,
            }
        }
    ]
    for number in range(messages):
        at = start + number * 4_000
        role = "user" if number % 8 == 0 else "assistant"
        text = " ".join(choose.choices(words, k=choose.randint(6, 60)))
        tokens = {"promptTokens": 20_000 + number % 400 * 300, "completionTokens": 300} if role == "assistant" else {}
        events.append(
            {
                "message": {
                    "id": f"long-m{number:06}",
                    "sessionId": "long-session-0001",
                    "role": role,
                    "textContent": text,
                    "createdAt": at,
                    **tokens,
                }
            }
        )
        if number % 8 in (2, 4):
            events.append(
                {
                    "tool": {
                        "id": f"long-t{number:06}",
                        "sessionId": "long-session-0001",
                        "toolName": "Bash",
                        "toolInput": json.dumps({"command": f"pytest -k {choose.choice(words)}"}),
                        "toolOutput": "ok\n" * 30,
                        "success": number % 64 != 2,
                        "createdAt": at + 500,
                    }
                }
            )
    _send(connection, events)


def _send(connection: RawConnection, events: list[dict[str, Any]]) -> None:
    for start in range(0, len(events), BATCH):
        outcome = connection.call("events.batch", events=events[start : start + BATCH])
        assert outcome["ok"], outcome


def _store_story(connection: RawConnection, story: Story, number: int, now: int) -> None:
    choose = random.Random(number)
    midnight = now - now % DAY_MS
    at = min(midnight - story.days_ago * DAY_MS + int(story.hour * 3_600_000), now - 3_600_000)
    session = f"{choose.getrandbits(32):08x}-demo-{number:04}"
    facts = {
        "id": session,
        "title": story.title,
        "projectPath": story.project,
        "source": story.harness,
        "model": story.model,
    }
    events: list[dict[str, Any]] = [{"session": facts | {"createdAt": at, "userPrompt": story.exchanges[0].prompt}}]
    context = CONTEXT_START
    exchanges = list(story.exchanges) + [
        Exchange(choose.choice(FOLLOW_UPS), "Done.") for _ in range(choose.randint(0, 3))
    ]
    for turn, exchange in enumerate(exchanges):
        at += choose.randint(30_000, 240_000)
        events.append(_message(session, f"{turn}-user", "user", exchange.prompt, at))
        for place, call in enumerate(exchange.calls):
            at += choose.randint(2_000, 20_000)
            context += choose.randint(800, 5_000) + 2 * len(call.output)
            result = {"errorMessage": call.output} if call.failed else {"toolOutput": call.output}
            tool = {
                "id": f"{session}-{turn}-{place}",
                "sessionId": session,
                "toolName": call.name,
                "toolInput": json.dumps(call.input),
                "filePath": call.path,
            }
            events.append(
                {
                    "tool": tool
                    | result
                    | {"success": not call.failed, "durationMs": int(call.seconds * 1000), "createdAt": at}
                }
            )
        at += choose.randint(4_000, 30_000)
        context += choose.randint(500, 2_500)
        usage = {"promptTokens": context, "completionTokens": choose.randint(150, 1_400), "model": story.model}
        events.append(_message(session, f"{turn}-assistant", "assistant", exchange.answer, at, **usage))
        if story.is_compacted and turn == 1:
            summary = "The lexer was profiled; one compiled alternation replaces the loop over operators. Golden files are identical."
            events.append(
                {
                    "compactionEvent": {
                        "id": f"{session}-c",
                        "sessionId": session,
                        "tokensBefore": 168_400,
                        "tokensAfter": 21_300,
                        "messagesBefore": 212,
                        "messagesAfter": 9,
                        "cause": "auto",
                        "summary": summary,
                        "createdAt": at + 1_000,
                    }
                }
            )
            context = 21_300
    if story.error:
        events.append(
            {
                "sessionError": {
                    "id": f"{session}-e",
                    "sessionId": session,
                    "errorType": "overloaded",
                    "errorMessage": story.error,
                    "createdAt": at - 2_000,
                }
            }
        )
    for place, title in enumerate(story.subagents):
        child = f"{session}-agent-{place}"
        events.append(
            {
                "session": {
                    "id": child,
                    "title": title,
                    "projectPath": story.project,
                    "source": story.harness,
                    "model": story.model,
                    "createdAt": at - 60_000 + place,
                    "status": "ended",
                    "metadata": {"parentId": session, "agent": "explore"},
                }
            }
        )
        events.append(_message(child, "0-user", "user", f"{title}. Report the places only.", at - 59_000))
        events.append(
            _message(
                child,
                "0-assistant",
                "assistant",
                "Three places: `checkout.py:88`, `refunds.py:31`, `discounts.py:18`.",
                at - 30_000,
                promptTokens=7_200,
                completionTokens=180,
            )
        )
    ended = {"endedAt": at, "status": "ended"} if story.days_ago else {"status": "active"}
    events.append({"session": {"id": session, "summary": story.summary, "cost": story.cost, **ended}})
    _send(connection, events)


def _message(session: str, name: str, role: str, text: str, at: int, **fields: Any) -> dict[str, Any]:
    given = {"id": f"{session}-{name}", "sessionId": session, "role": role, "textContent": text, "createdAt": at}
    return {"message": given | fields}


def _store_short_sessions(connection: RawConnection, now: int) -> None:
    """Store sessions of one turn, such as scripts and quick questions produce."""
    choose = random.Random(11)
    questions = (
        "What does `git worktree prune` do?",
        "Convert 1700000000 to a date.",
        "Name three good test names for the cart.",
    )
    events: list[dict[str, Any]] = []
    for number in range(26):
        at = now - choose.randint(1, 7 * DAY_MS)
        session = f"{choose.getrandbits(32):08x}-short-{number:03}"
        question = choose.choice(questions)
        project, source = (
            choose.choice((SHOP, PARSER, INFRA)),
            choose.choice(("claude-code", "claude-code", "codex", "gemini")),
        )
        events.append(
            {
                "session": {
                    "id": session,
                    "projectPath": project,
                    "source": source,
                    "createdAt": at,
                    "endedAt": at + 9_000,
                    "status": "ended",
                    "title": question,
                    "userPrompt": question if question == questions[-1] else None,  # a script asks this one
                }
            }
        )
        events.append(_message(session, "q", "user", question, at + 100))
        events.append(
            _message(
                session,
                "a",
                "assistant",
                "Here is a short answer.",
                at + 6_000,
                promptTokens=choose.randint(3_000, 9_000),
                completionTokens=90,
            )
        )
    _send(connection, events)


def _store_memories(connection: RawConnection, now: int) -> list[str]:
    records = [_memory_record(number, memory, now) for number, memory in enumerate(MEMORIES)]
    outcome = connection.call("memory.import", memories=records, scopes=["*"])
    assert not outcome["refused"], outcome
    ids = [record["id"] for record in records]
    older = connection.call(
        "memory.add",
        content="Deploy to staging by hand from the main branch.",
        project=INFRA,
        category="convention",
        force=True,
    )["memory"]["id"]
    connection.call(
        "memory.add",
        content="Deploys to staging run from CI after every merge to main.",
        project=INFRA,
        category="convention",
        importance=0.7,
        supersedes=older,
    )
    connection.call(
        "memory.update",
        id=ids[7],
        content="We deploy on Tuesdays and Wednesdays, never on Fridays.",
        reason="Ada said so",
    )
    for name, kind in ENTITIES:
        connection.call("entity.upsert", name=name, type=kind)
    links = (
        (0, "BlockWriter"),
        (1, "Decimal"),
        (1, "invoice"),
        (3, "lexer"),
        (4, "vault"),
        (6, "Ada"),
        (8, "payments service"),
        (8, "invoice"),
    )
    entities = {one["name"]: one["id"] for one in connection.call("entity.list", limit=100)["entities"]}
    for memory, name in links:
        connection.call("entity.link", memoryId=ids[memory], entityId=entities[name], scopes=["*"])
    connection.call("relation.add", source=ids[8], target=ids[1], type="DEPENDS_ON", scopes=["*"])
    closed = connection.call("relation.add", source=ids[9], target=ids[8], type="RELATED_TO", scopes=["*"])
    connection.call("relation.close", id=closed["id"], scopes=["*"])
    return ids


def _memory_record(number: int, memory: dict[str, Any], now: int) -> dict[str, Any]:
    """Return a memory as an export has it, so that it is as old, as strong and as often used as it says."""
    choose = random.Random(number)
    project = memory.get("project")
    scope = {"scope": "project:demo", "projectId": "demo", "projectPath": project} if project else {}
    created = now - choose.randint(8, 60) * DAY_MS // 10
    strength = {"salience": round(choose.uniform(0.35, 1), 2), "accessCount": choose.choice((0, 0, 1, 2, 5, 9))}
    rest = {key: value for key, value in memory.items() if key != "project"}
    return {"id": f"{choose.getrandbits(32):08x}-memory-{number:02}", "createdAt": created} | scope | strength | rest


def _store_library(connection: RawConnection, now: int) -> None:
    texts = {
        "Release checklist": "# Release checklist\n\n1. All tests pass on CI\n2. The changelog names every change\n3. Tag, then deploy on Tuesday\n",
        "Money in the shop": "# Money in the shop\n\nAll amounts are `Decimal`. Round half up, per line.\n\n## Refunds\n\nA refund repeats the rounding of its invoice.\n",
        "Parser grammar": "# Grammar\n\nThe grammar is LL(1). `expr := term (('+' | '-') term)*`\n",
    }
    for title, text in texts.items():
        connection.call(
            "document.ingest",
            text=text,
            title=title,
            source=f"docs/{title.lower().replace(' ', '-')}.md",
            kind="markdown",
            project=SHOP,
        )
    connection.call(
        "skill.create",
        name="release",
        description="Cut a release of the shop.",
        instructions="1. Run `make check`.\n2. Update the changelog.\n3. Tag and push.",
        tags=["release"],
    )
    connection.call(
        "skill.create",
        name="triage-flaky-test",
        description="Find out why a test fails now and then.",
        instructions="Run it 200 times. Look for sleeps, order and shared state.",
        tags=["tests"],
    )
    connection.call(
        "schedule.create",
        description="Summarise the week for the team",
        schedule="16:00 weekly(friday)",
        synthesisPrompt="Summarise the sessions of this week.",
    )
    connection.call(
        "schedule.create",
        description="Remind of the staging prune",
        schedule="0 4 * * 0",
        enabled=False,
        synthesisPrompt="Check the disk of staging.",
    )


def _recall(connection: RawConnection, now: int, memories: list[str]) -> None:
    """Ask recall as Claude Code does, at the start and with prompts of one more session today."""
    session, at = "7c41d0aa-demo-recall", now - 25 * 60_000
    _send(
        connection,
        [
            {
                "session": {
                    "id": session,
                    "title": "XML export for the accountant",
                    "projectPath": SHOP,
                    "source": "claude-code",
                    "model": "claude-opus-5",
                    "status": "active",
                    "createdAt": at,
                }
            }
        ],
    )
    event = {"session_id": session, "cwd": SHOP}
    connection.call(
        "recall.hook", harness="claude-code", event=event | {"hook_event_name": "SessionStart", "source": "startup"}
    )
    exchanges = (
        (
            "Write the XML export. How do the exporters flush and close the BlockWriter?",
            "As in the other exporters: the BlockWriter is closed before the stream, since close() of the writer flushes the last block.",
        ),
        (
            "How are invoice totals rounded? The XML must show the same Decimal amounts.",
            "Per line, half up, as the tax office requires; totals are Decimal sums.",
        ),
        ("When do we deploy, and may the accountant test it on Friday?", "I would ask the team first."),
        (
            "Translate the column headings of the export to German.",
            "Datum, Betrag, Steuer, Summe: the headings are translated.",
        ),
    )
    for number, (prompt, answer) in enumerate(exchanges):
        asked = int(time.time() * 1000)
        _send(connection, [_message(session, f"{number}-user", "user", prompt, asked)])
        connection.call(
            "recall.hook",
            harness="claude-code",
            event=event | {"hook_event_name": "UserPromptSubmit", "prompt": prompt},
        )
        told = int(time.time() * 1000)
        _send(
            connection,
            [
                _message(
                    session,
                    f"{number}-assistant",
                    "assistant",
                    answer,
                    told + 20,
                    promptTokens=14_000 + 3_000 * number,
                    completionTokens=220,
                )
            ],
        )
        time.sleep(6 if number < len(exchanges) - 1 else 0)  # prompts are told apart by their time
    _search(connection, session)
    for memory in memories[:2]:
        connection.call("memory.reinforce", id=memory, sessionId=session, scopes=["*"])


def _search(connection: RawConnection, session: str) -> None:
    """Search as an agent does through MCP; its harness captures the calls."""
    for number, query in enumerate(("tax rounding per line", "staging disk full", "who approves a release on Friday")):
        call = {"name": "search", "arguments": {"query": query, "everywhere": number > 0}}
        message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": call}
        answer = connection.call("mcp.message", project=SHOP, message=message)
        tool = {
            "id": f"{session}-search-{number}",
            "sessionId": session,
            "toolName": "mcp__clankers__search",
            "toolInput": json.dumps(call["arguments"]),
            "toolOutput": answer["result"]["content"][0]["text"],
            "success": True,
            "createdAt": int(time.time() * 1000),
        }
        _send(connection, [{"tool": tool}])
