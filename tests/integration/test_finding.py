"""Finding things: titles, files and commands are searched, and a search without a good hit says so."""

import re
from pathlib import Path
from typing import Any

import pytest
from helpers.ctl import ctl
from helpers.daemon import DaemonProcess, RawConnection
from helpers.waiting import settled

TURNS = [
    ("login", "user", "The login form fails on Safari: after submitting, the page reloads and the cookie is gone."),
    ("login", "assistant", "The session cookie needs SameSite=None. Fixed in the login handler and tested on Safari."),
    ("export", "user", "The CSV export drops the last row when the number of rows is odd."),
    ("export", "assistant", "The writer was closed before its buffer was flushed; flush before close."),
]


@pytest.fixture
def filled(rpc: RawConnection) -> RawConnection:
    for session, title in (("login", "Zebra crossing redesign"), ("export", "Fix the spreadsheet download")):
        rpc.call("upsertSession", session={"id": session, "title": title, "projectPath": "/home/me/shop"})
    for number, (session, role, text) in enumerate(TURNS):
        message = {"id": f"m{number}", "sessionId": session, "role": role, "textContent": text}
        rpc.call("upsertMessage", message=message)
    edits = [("t1", "src/payments/refund_policy.py"), ("t2", "src/payments/refund_policy.py")]
    for name, path in edits:
        tool = {"id": name, "sessionId": "export", "toolName": "Edit", "filePath": path, "toolInput": '{"x": 1}'}
        rpc.call("upsertTool", tool=tool)
    command = {"id": "t3", "sessionId": "export", "toolName": "Bash", "toolOutput": "unsearched obsidian output"}
    rpc.call("upsertTool", tool=command | {"toolInput": '{"command": "terraform apply -target=quokka"}'})
    settled(rpc)
    return rpc


def hits(connection: RawConnection, query: str, **params: Any) -> list[dict[str, Any]]:
    return list(connection.call("search", query=query, **params)["hits"])


def test_title_of_a_session_is_found(filled: RawConnection) -> None:
    best = hits(filled, "zebra crossing")[0]
    assert best["ref"]["sessionId"] == "login"
    assert best["text"] == "Zebra crossing redesign"


def test_changed_title_replaces_the_old_one(filled: RawConnection) -> None:
    filled.call("thread.update", id="login", title="Giraffe enclosure")
    settled(filled)
    assert hits(filled, "giraffe enclosure", mode="keyword")[0]["text"] == "Giraffe enclosure"
    assert not hits(filled, "zebra", mode="keyword")
    filled.call("thread.update", id="login", title=None)
    settled(filled)
    assert not hits(filled, "giraffe", mode="keyword")


def test_title_that_is_the_first_prompt_is_found_once(rpc: RawConnection) -> None:
    prompt = "Why does the wombat counter overflow?"
    rpc.call("upsertSession", session={"id": "s", "title": prompt, "userPrompt": prompt})
    rpc.call("upsertMessage", message={"id": "m", "sessionId": "s", "role": "user", "textContent": prompt})
    settled(rpc)
    assert len(hits(rpc, "wombat counter", mode="keyword")) == 1


def test_file_names_and_commands_of_tools_are_found_once_per_session(filled: RawConnection) -> None:
    files = hits(filled, "refund_policy.py", mode="keyword")
    assert [hit["text"] for hit in files] == ["src/payments/refund_policy.py"]
    assert hits(filled, "terraform quokka")[0]["ref"]["toolId"] == "t3"
    assert not hits(filled, "obsidian", mode="keyword")  # outputs are indexed only if the setting says so


TRACE = """Exit code 1
Traceback (most recent call last):
  File "shop/ledger.py", line 88, in settle
KeyError: 'narwhal_balance'"""


def failed_tool(tool_id: str, error: str, **more: Any) -> dict[str, Any]:
    return {"id": tool_id, "sessionId": "export", "toolName": "Bash", "success": False, "errorMessage": error} | more


def test_errors_of_failed_tools_are_found(filled: RawConnection) -> None:
    filled.call("upsertTool", tool=failed_tool("t4", TRACE, toolInput='{"command": "pytest shop"}'))
    filled.call("upsertTool", tool=failed_tool("t5", "failed"))
    settled(filled)
    best = hits(filled, "KeyError: 'narwhal_balance'")[0]
    assert best["ref"]["toolId"] == "t4"
    assert best["text"].splitlines()[0] == "pytest shop"
    assert not [hit for hit in hits(filled, "failed") if hit["ref"].get("toolId") == "t5"]


def test_long_error_of_a_tool_is_found_by_its_beginning_and_end(filled: RawConnection) -> None:
    error = "walrus assertion in the compiler\n" + "at frame\n" * 2_000 + "caused by an axolotl"
    filled.call("upsertTool", tool=failed_tool("t4", error))
    settled(filled)
    for word in ("walrus", "axolotl"):
        [hit] = hits(filled, word, mode="keyword")
        assert hit["ref"]["toolId"] == "t4"
        assert len(hit["text"]) < 1_000


def test_exact_error_message_comes_before_its_words_in_another_order(rpc: RawConnection) -> None:
    error = "could not connect to server: Connection refused by broker"
    words = ["broker", "server", "refused", "connect", "could", "not", "connection", "to", "by"]
    texts = [" ".join(words[turn:] + words[:turn]) for turn in range(len(words))]
    for number, text in enumerate([*texts, f"After the upgrade I see {error}, please look"]):
        message = {"id": f"m{number}", "sessionId": f"s{number}", "role": "user", "textContent": text}
        rpc.call("upsertMessage", message=message)
    settled(rpc)
    assert hits(rpc, error)[0]["ref"]["messageId"] == f"m{len(texts)}"


def test_error_message_quoted_in_a_question_comes_before_its_words_in_another_order(rpc: RawConnection) -> None:
    words = ["5432", "ECONNREFUSED", "1", "connect", "127", "database", "0"]
    texts = [" ".join(words[turn:] + words[:turn]) for turn in range(len(words))]
    texts.append("what is for lunch in the garden today")
    for number, text in enumerate([*texts, "psql says connect ECONNREFUSED 127.0.0.1:5432 and ends"]):
        message = {"id": f"m{number}", "sessionId": f"s{number}", "role": "user", "textContent": text}
        rpc.call("upsertMessage", message=message)
    settled(rpc)
    asked = "Why do I get `connect ECONNREFUSED 127.0.0.1:5432` when the database connection should start?"
    assert hits(rpc, asked)[0]["ref"]["messageId"] == f"m{len(texts)}"
    asked = asked.replace("127.0.0.1:5432", "5432")
    assert hits(rpc, asked)[0]["ref"]["messageId"] != f"m{len(texts)}"


@pytest.mark.parametrize("asked", ["{}", "`{}`", "where is {} used", "why does {} fail?"])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("parse_config", "please parse the config"),
        ("getUserToken", "get the user token"),
        ("--no-verify", "there is no need to verify"),
        ("src/app/main.py", "the main app in src, py"),
        ("2.14.3", "2 of 14 tests and 3"),
    ],
)
def test_name_in_a_long_answer_comes_before_its_words_in_short_prompts(
    rpc: RawConnection, asked: str, name: str, words: str
) -> None:
    answer = "I looked at the module, and several places have to change. " * 5
    texts = [f"{answer}One is {name}, which comes before all others. {answer}"] + [f"{words} {n}" for n in range(10)]
    for number, text in enumerate(texts):
        role = "user" if number else "assistant"
        rpc.call(
            "upsertMessage", message={"id": f"m{number}", "sessionId": f"s{number}", "role": role, "textContent": text}
        )
    settled(rpc)
    assert hits(rpc, asked.format(name))[0]["ref"]["messageId"] == "m0"


def test_name_in_a_late_part_of_a_long_answer_comes_before_its_words_in_short_prompts(rpc: RawConnection) -> None:
    """The part with the name represents the answer, and not one that has its words more often."""
    words = "The loader has to parse the config file, and then parse each config section before it returns. "
    other = "Unrelated remarks about the weather and the lunch. " * 20
    answer = "\n\n".join([words * 6, *[other] * 4, "Finally parse_config failed.", *[other] * 3])
    texts = [answer, *(f"{number} parse the config with the loader" for number in range(15))]
    for number, text in enumerate(texts):
        role = "user" if number else "assistant"
        message = {"id": f"m{number}", "sessionId": f"s{number}", "role": role, "textContent": text}
        rpc.call("upsertMessage", message=message)
    settled(rpc)
    narrow = {"filters": [{"field": "role", "op": "ne", "value": "Ada"}]}  # ranked by rows, not by columns
    for params in ({}, {"mode": "keyword"}, narrow):
        found = rpc.call("search", query="parse_config", **params)["hits"][0]
        assert found["ref"]["messageId"] == "m0"
        assert "parse_config" in found["text"]


def test_pasted_stack_trace_finds_the_message_with_it(rpc: RawConnection) -> None:
    frames = [
        f'  File "/srv/app/mod{n}.py", line {n * 37}, in handler_{n}\n    return process(request)' for n in range(40)
    ]
    trace = "\n".join(["Traceback (most recent call last):", *frames, "LookupError: no such ocelot"])
    for number, text in enumerate(["the handler of the request returns", trace, "line 37 in a file of the app"]):
        message = {"id": f"m{number}", "sessionId": f"s{number}", "role": "user", "textContent": text}
        rpc.call("upsertMessage", message=message)
    settled(rpc)
    for query in (trace, trace.replace("srv", "opt"), trace[-120:]):
        assert hits(rpc, query)[0]["ref"]["messageId"] == "m1"


def test_changed_error_of_a_tool_replaces_the_old_one(filled: RawConnection) -> None:
    filled.call("upsertTool", tool=failed_tool("t4", TRACE))
    settled(filled)
    assert hits(filled, "narwhal", mode="keyword")
    filled.call("upsertTool", tool=failed_tool("t4", "the capybara did not answer in time"))
    settled(filled)
    assert not hits(filled, "narwhal", mode="keyword")
    assert hits(filled, "capybara", mode="keyword")[0]["ref"]["toolId"] == "t4"


def test_tool_call_that_comes_to_repeat_another_one_is_not_found_as_it_was(filled: RawConnection) -> None:
    """It is stored before it has failed, and then with the error of an earlier call: that one is found for both."""
    command = '{"command": "make capybara"}'
    filled.call("upsertTool", tool=failed_tool("t4", TRACE, toolInput=command))
    filled.call("upsertTool", tool={"id": "t5", "sessionId": "export", "toolName": "Bash", "toolInput": command})
    settled(filled)
    assert {hit["ref"]["toolId"] for hit in hits(filled, "capybara", mode="keyword")} == {"t4", "t5"}
    filled.call("upsertTool", tool=failed_tool("t5", TRACE, toolInput=command))
    settled(filled)
    assert [hit["ref"]["toolId"] for hit in hits(filled, "capybara", mode="keyword")] == ["t4"]


@pytest.mark.parametrize("query", ["login cookie safari", "why does the csv export drop a row", "refund_policy.py"])
def test_search_with_a_good_hit_is_not_weak(filled: RawConnection, query: str) -> None:
    assert not filled.call("search", query=query)["weak"]


@pytest.mark.parametrize("query", ["sourdough fermentation temperature", "kubernetes ingress annotations for grpc"])
def test_search_without_a_good_hit_is_weak(filled: RawConnection, query: str) -> None:
    found = filled.call("search", query=query)
    assert found["hits"]
    assert found["weak"]
    assert filled.call("message.search", query=query)["weak"]


def test_weak_search_of_memories_says_so(rpc: RawConnection) -> None:
    rpc.call("memory.add", content="We deploy on Tuesdays, after the standup.")
    settled(rpc)
    assert rpc.call("memory.search", query="sourdough fermentation temperature")["weak"]
    assert not rpc.call("memory.search", query="when do we deploy")["weak"]


def test_skill_found_by_its_instructions_alone_is_not_weak(rpc: RawConnection) -> None:
    instructions = "Run the wombat migration, then check the quokka ledger."
    rpc.call("skill.create", name="release", description="How to publish a version", instructions=instructions)
    settled(rpc)
    for method in ("search", "skill.search"):
        assert not rpc.call(method, query="quokka ledger wombat")["weak"]
        assert rpc.call(method, query="sourdough fermentation temperature")["weak"]


def test_ctl_says_that_nothing_is_close(shared_daemon: DaemonProcess, filled: RawConnection) -> None:
    ran = ctl(shared_daemon, "search", "sourdough", "fermentation", "temperature")
    assert ran.out.startswith("Nothing close; the nearest are:\n")
    assert "Nothing close" not in ctl(shared_daemon, "search", "login", "cookie").out


def test_ctl_groups_the_hits_of_a_session(shared_daemon: DaemonProcess, filled: RawConnection) -> None:
    out = ctl(shared_daemon, "search", "login", "safari", "cookie").out
    assert out.count("Zebra crossing redesign\n") == 1
    assert out.count("session login") == 1
    assert "SameSite" in out
    assert "The «login» form" in out


def test_ctl_source_files_means_memory_files(shared_daemon: DaemonProcess, filled: RawConnection) -> None:
    for name in ("files", "memory"):
        ran = ctl(shared_daemon, "search", "login", "--source", name, "--json")
        assert ran.json["hits"] == []
    assert ctl(shared_daemon, "search", "login", "--source", "sessions", "--json").json["hits"]


def test_nearly_equal_messages_are_listed_once_with_a_count(shared_daemon: DaemonProcess, rpc: RawConnection) -> None:
    for number, last in enumerate(["today", "now please", "again"]):
        text = f"explain why the migration of the billing tables locks the whole database for minutes {last}"
        message = {"id": f"m{number}", "sessionId": f"s{number}", "role": "user", "textContent": text}
        rpc.call("upsertMessage", message=message)
    settled(rpc)
    [hit] = hits(rpc, "billing migration")
    assert hit["duplicates"] == 2
    assert len(hits(rpc, "billing migration", collapse=False)) == 3
    assert "2 more like it" in ctl(shared_daemon, "search", "billing", "migration").out


def test_documents_with_nearly_the_same_text_are_listed_once_with_a_count(rpc: RawConnection) -> None:
    text = "The narwhal service keeps its queue in memory and loses it when the machine is switched off at night."
    for source, more in (("notes/a.md", ""), ("notes/b.md", ""), ("notes/c.md", " Really.")):
        rpc.call("document.store", source=source, chunks=[{"content": text + more}])
    said = {"id": "m", "sessionId": "s", "role": "user", "textContent": text}
    rpc.call("upsertMessage", message=said)
    settled(rpc)
    found = {hit["source"]: hit["duplicates"] for hit in hits(rpc, "narwhal queue")}
    assert found == {"documents": 2, "sessions": 0}
    assert len(hits(rpc, "narwhal queue", collapse=False)) == 4


def test_children_with_the_same_text_of_different_parents_are_all_listed(rpc: RawConnection) -> None:
    for number, about in enumerate(["rivers and their sources", "mountains and their heights"]):
        parent = f"Narwhal usage. This part tells about {about} in some detail."
        chunks = [{"id": f"p{number}", "content": parent}, {"content": "Narwhal usage.", "parentId": f"p{number}"}]
        rpc.call("document.store", source=f"guide{number}.md", chunks=chunks)
    settled(rpc)
    assert len(hits(rpc, "narwhal usage")) == 2


# -- ids


@pytest.fixture
def memories(rpc: RawConnection) -> list[str]:
    texts = ["Tabs, not spaces", "PostgreSQL is the database of the shop", "Deploys happen on Tuesdays"]
    return [rpc.call("memory.add", content=text, force=True)["memory"]["id"] for text in texts]


def test_ids_of_one_moment_are_shortened_to_their_ends(rpc: RawConnection, memories: list[str]) -> None:
    shortened = rpc.call("id.shorten", kind="memory", ids=memories)
    assert shortened == [each[-8:] for each in memories]
    assert [rpc.call("memory.get", id=each)["id"] for each in shortened] == memories
    assert rpc.call("id.find", id=shortened[0]) == [{"kind": "memory", "id": memories[0]}]


def test_id_is_shortened_no_further_than_the_store_allows(rpc: RawConnection, memories: list[str]) -> None:
    rival = f"rival-{memories[0][-10:]}"
    rpc.call("upsertSession", session={"id": rival})
    [shortened] = rpc.call("id.shorten", kind="memory", ids=memories[:1])
    assert shortened == memories[0][-12:]
    assert rpc.call("id.find", id=shortened) == [{"kind": "memory", "id": memories[0]}]
    assert {each["id"] for each in rpc.call("id.find", id=memories[0][-10:])} == {memories[0], rival}


def test_ids_of_a_harness_are_shortened_to_their_beginnings(rpc: RawConnection) -> None:
    ids = ["8c1f6c6e-1111-4222-8333-444455556666", "8c1f6c6e-2222-4222-8333-444455556666"]
    for each in ids:
        rpc.call("upsertSession", session={"id": each})
    assert rpc.call("id.shorten", kind="session", ids=ids) == [ids[0][:12], ids[1][:12]]


def test_show_opens_everything_that_has_an_id(
    shared_daemon: DaemonProcess, filled: RawConnection, memories: list[str], tmp_path: Path
) -> None:
    (tmp_path / "guide.md").write_text("# Guide\n\nHow the marmot service is restarted.")
    document = filled.call("document.ingest", path=str(tmp_path / "guide.md"))["document"]["id"]
    [piece] = filled.call("chunk.list", documentId=document)["chunks"]
    skill = filled.call("skill.create", name="bisect", description="Find the commit", instructions="git bisect")["id"]
    action = filled.call("schedule.create", description="Nightly look", schedule="03:00 daily", timezone="UTC")["id"]
    entity = filled.call("entity.upsert", name="Marmot", type="technology", scopes=["*"])["id"]
    relation = filled.call("relation.add", source=memories[0], target=memories[1], type="RELATED_TO")["id"]
    chunk = hits(filled, "login cookie")[0]["chunkId"]
    project = filled.call("project.list")[0]["id"]
    job = filled.call("db.vacuum")["jobId"]
    filled.call("upsertSessionError", sessionError={"id": "e-12345678", "sessionId": "login", "errorType": "Boom"})
    expected = {
        "login": "Zebra crossing redesign", "m0": "The login form fails", "t3": "terraform apply",
        memories[1]: "PostgreSQL is the database", document: "Guide", piece["id"]: "marmot service",
        skill: "git bisect", action: "Nightly look", entity: "Marmot", relation: "RELATED_TO", chunk[:16]: "Safari",
        "e-12345678": "Boom", project: "/home/me/shop (no longer there)", job: "vacuum", job[-8:]: "vacuum",
    }  # fmt: skip
    for each, text in expected.items():
        ran = ctl(shared_daemon, "show", each)
        assert (ran.code, ran.err) == (0, ""), each
        assert text in ran.out
        assert not re.search(r"[{\[]'|\w_\w+  ", ran.out), "values and names of Python or SQL"
        assert ctl(shared_daemon, "show", each, "--json").json
    filled.call("skill.delete", id=skill)
    filled.call("schedule.delete", id=action)
    filled.call("document.delete", id=document)


def test_show_names_what_an_ambiguous_id_could_be(shared_daemon: DaemonProcess, rpc: RawConnection) -> None:
    for each in ("same-beginning-a", "same-beginning-b"):
        rpc.call("upsertSession", session={"id": each})
    ran = ctl(shared_daemon, "show", "same-beginning")
    assert ran.code == 1
    assert "session same-beginning-a, session same-beginning-b" in ran.err
    missing = ctl(shared_daemon, "show", "nothing-like-this")
    assert (missing.code, missing.err) == (1, "Error: nothing has the id nothing-like-this\n")


@pytest.mark.parametrize("width", ["30", "60", "119"])
def test_every_id_in_a_list_can_be_opened(
    shared_daemon: DaemonProcess, rpc: RawConnection, memories: list[str], width: str
) -> None:
    lines = ctl(shared_daemon, "memory", "list", COLUMNS=width).out.splitlines()[1:]
    opened = {ctl(shared_daemon, "show", line.split()[0], "--json").json["id"] for line in lines}
    assert opened == set(memories)


@pytest.mark.parametrize("width", ["40", "60"])
def test_jobs_and_backups_in_a_narrow_list_can_be_opened(
    shared_daemon: DaemonProcess, rpc: RawConnection, width: str
) -> None:
    made = Path(ctl(shared_daemon, "backup", "create", "--json").json["path"]).name
    newest = rpc.call("job.list")[0]["id"]
    listed = ctl(shared_daemon, "jobs", COLUMNS=width).out.splitlines()[1].split()[0]
    for command in (["show"], ["jobs", "show"]):
        assert ctl(shared_daemon, *command, listed, "--json").json["id"] == newest
    assert made in ctl(shared_daemon, "backup", "list", COLUMNS=width).out
