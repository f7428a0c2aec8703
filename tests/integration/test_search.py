"""Search over the socket: any question is answered, filters mean what they say, and every answer is honest."""

import itertools
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers.daemon import RawConnection, running_daemon
from helpers.waiting import eventually, settled
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clankersd.search.chunk_table import MAX_CHUNKS_READ_INLINE

INVALID = -32602
DAY = 86_400_000
BEGAN = 1_700_000_000_000
WORDS = ["amber", "basalt", "cobalt", "dolomite", "erbium", "feldspar", "gallium", "halite", "jasper", "krypton"]
ROLES = ["user", "assistant", "Ada"]


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="clk-") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def documents(home: Path) -> list[dict[str, Any]]:
    """What is stored, as a list that can be searched in Python."""
    chance = random.Random(7)
    made = []
    for number in range(84):  # with the files fewer than are fused, so that all of them can be paged through
        session = f"s{number % 12}"
        meta = [None, {"kind": "plan", "n": 1}, {"kind": "note", "n": 2.5, "done": True}, {"n": number}][number % 4]
        made.append({
            "id": f"m{number}", "session": session, "project": f"/home/me/{number % 3}", "role": ROLES[number % 3],
            "created": BEGAN + number * DAY, "meta": meta or {}, "source": "sessions", "path": None,
            "text": f"mineral {' '.join(chance.sample(WORDS, 3))} sample {number}",
        })  # fmt: skip
    for number in range(6):
        path = home / "work" / "memory" / f"note{number}.md"
        made.append({
            "id": str(path), "session": None, "project": str(home / "work"), "role": None, "created": None,
            "meta": {}, "source": "memory", "path": str(path), "text": f"mineral {WORDS[number]} in a file {number}",
        })  # fmt: skip
    return made


@pytest.fixture(scope="module")
def filled(home: Path, documents: list[dict[str, Any]]) -> Iterator[RawConnection]:
    """A daemon with all of that, whole."""
    (home / "work" / "memory").mkdir(parents=True)
    events: list[dict[str, Any]] = []
    for one in documents:
        if one["path"]:
            Path(one["path"]).write_text(one["text"])
            continue
        session = {"id": one["session"], "projectPath": one["project"]}
        message = {
            "id": one["id"], "sessionId": one["session"], "role": one["role"], "textContent": one["text"],
            "createdAt": one["created"], "metadata": one["meta"] or None,
        }  # fmt: skip
        events += [{"session": session}, {"message": message}]
    with (
        running_daemon(home, CLANKERS_WATCH_ROOTS=str(home / "work")) as daemon,
        daemon.connect() as connection,
    ):
        assert connection.call("events.batch", events=events)["ok"]
        eventually(lambda: connection.call("index.status")["live"]["vectors"] == len(documents), "all have vectors")
        yield connection


@contextmanager
def fresh() -> Iterator[RawConnection]:
    """A daemon with nothing in it."""
    with (
        tempfile.TemporaryDirectory(prefix="clk-") as folder,
        running_daemon(Path(folder)) as daemon,
        daemon.connect() as connection,
    ):
        yield connection


def search(connection: RawConnection, query: str = "mineral", **params: Any) -> dict[str, Any]:
    return dict(connection.call("search", query=query, **params))


def names(answer: dict[str, Any]) -> list[str]:
    return [hit["ref"].get("messageId") or hit["ref"]["path"] for hit in answer["hits"]]


def everything(connection: RawConnection, **params: Any) -> set[str]:
    """All that is found, over all pages."""
    found: list[str] = []
    cursor = None
    while True:
        answer = search(connection, **params, **({"cursor": cursor} if cursor else {}), limit=100)
        found += names(answer)
        cursor = answer["cursor"]
        if cursor is None:
            assert len(found) == len({*found})
            return {*found}


def refused(connection: RawConnection, **params: Any) -> str:
    reply = connection.request("search", {"query": "mineral"} | params)
    assert reply.get("error", {}).get("code") == INVALID, reply
    return str(reply["error"]["message"])


# --- Any text is a question

HOSTILE = [
    '"', '"""', '"amber', "amber*", "^amber", "-amber", "amber -basalt", "amber AND", "OR", "NOT", "AND AND AND",
    "NEAR(amber basalt, 2)", "NEAR(", "amber NEAR basalt", "text:amber", "header : amber", "{text header}: amber",
    "- text : amber", "amber + basalt", "(amber", "amber)", "()", "amber AND (basalt OR", "a\x00b", "\x00", "amber\x00",
    "'; DROP TABLE chunks; --", "%", "_", "*", ":", "\\", "\n", "🐢", "🐢 amber", "\ufffd", "\u200b", "\u202eamber",
    "rank", "chunks_fts", "rowid:1", "?1", ":stem", "$", "x" * 5000, "a", "x1", "漢", "漢字", "東京都庁", "ﬁ", "İ",
    "ß", "ſ", "e\u0301", "١٢٣", "हिन्दी", "ไทย", "ᾳ", "\ue000", "\U0001f9d1\u200d\U0001f680",
]  # fmt: skip


@pytest.mark.parametrize("mode", ["keyword", "vector", "hybrid"])
def test_search_accepts_every_query(filled: RawConnection, mode: str) -> None:
    for query in HOSTILE:
        reply = filled.request("search", {"query": query, "mode": mode, "explain": True})
        assert "error" not in reply, query
        scores = [hit["score"] for hit in reply["result"]["hits"]]
        assert scores == sorted(scores, reverse=True)
        assert all(0 <= score <= 1 for score in scores)


@given(st.text(min_size=1, max_size=200))
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_search_accepts_arbitrary_text(filled: RawConnection, text: str) -> None:
    assert "error" not in filled.request("search", {"query": text})


@pytest.mark.parametrize(
    "query",
    [
        "amber NOT basalt", "amber -basalt", "amber AND basalt", "basalt AND NOT amber", '"amber basalt"',
        "NEAR(amber basalt, 1)", "text:amber basalt", "^amber ^basalt", "amber + basalt", "{header} : amber basalt",
    ],
)  # fmt: skip
def test_query_has_no_syntax(filled: RawConnection, query: str, documents: list[dict[str, Any]]) -> None:
    """Whatever stands between them, both words are asked for and either is enough."""
    wanted = {one["id"] for one in documents if "amber" in one["text"] or "basalt" in one["text"]}
    assert wanted <= everything(filled, query=query, mode="keyword")


def test_query_with_an_asterisk_is_no_prefix_search(filled: RawConnection) -> None:
    assert names(search(filled, "ambe*", mode="keyword")) == []


def test_query_of_a_hundred_kilobytes_is_accepted(filled: RawConnection) -> None:
    for mode in ("keyword", "hybrid"):
        answer = search(filled, "jasper " + "lorem ipsum dolor " * 6000, mode=mode)
        assert "jasper" in answer["hits"][0]["text"]
    note = "of 100,000 characters the first and last 5,000 were read"
    assert search(filled, "x" * 100_000)["degraded"] == note


def test_query_that_is_empty_or_too_long_is_refused(filled: RawConnection) -> None:
    assert "query" in refused(filled, query="")
    assert "query" in refused(filled, query="x" * 1_000_001)


def test_query_of_a_short_or_cjk_word_finds_its_text() -> None:
    texts = {
        "go": "we wrote it in go", "c": "the C compiler", "r2": "stored in r2", "jp": "東京都庁で会議があった",
        "cn": "我们讨论了数据库设计", "kr": "데이터베이스 설계", "mixed": "Python言語のテスト",
        "id": "call parseHttpResponse(x)", "snake": "set max_retry_count", "path": "see clankersd/index/tokenize.py",
        "de": "Größe und Straße", "tr": "İstanbul", "fr": "un café crème", "i": "I think so",
        "el": "Σφα\u0301λμα", "ko": "\u1109\u1165\u1107\u1165",
    }  # fmt: skip
    questions = {
        "go": "go", "C": "c", "r2": "r2", "京": "jp", "東京": "jp", "都庁": "jp", "会議": "jp", "東京都庁": "jp",
        "数据库": "cn", "设计": "cn", "데이터베이스": "kr", "言語": "mixed", "Python": "mixed", "HTTP response": "id",
        "parsehttpresponse": "id", "parse_http": "id", "retry": "snake", "maxRetryCount": "snake", "words.py": "path",
        "clankersd/index": "path", "größe": "de", "Grosse STRASSE strase straße": "de", "istanbul": "tr",
        "İSTANBUL": "tr", "cafe creme": "fr", "cafe\u0301": "fr", "I": "i", "σφάλμα": "el",
        "서버": "ko",
    }  # fmt: skip
    with fresh() as own:
        for name, text in texts.items():
            message = {"id": name, "sessionId": f"s-{name}", "role": "user", "textContent": text}
            own.call("upsertMessage", message=message)
        wrong = {
            query: names(search(own, query, mode="keyword"))
            for query, name in questions.items()
            if names(search(own, query, mode="keyword"))[:1] != [name]
        }
    assert wrong == {}


# --- Filters


def value_of(one: dict[str, Any], field: str) -> Any:
    if field.startswith("meta."):
        return one["meta"].get(field[5:])
    return one[field]


def holds(one: dict[str, Any], condition: dict[str, Any]) -> bool:
    """What a filter means, in Python."""
    mine, op, value = value_of(one, condition["field"]), condition["op"], condition["value"]
    tests: dict[str, Callable[[], bool]] = {
        "eq": lambda: mine == value,
        "ne": lambda: mine != value,
        "in": lambda: mine in value,
        "notIn": lambda: mine not in value,
        "before": lambda: mine < value,
        "after": lambda: mine > value,
        "notBefore": lambda: mine >= value,
        "notAfter": lambda: mine <= value,
    }
    return tests[op]()


VALUES: dict[str, list[Any]] = {
    "source": ["sessions", "memory", "none"],
    "role": ["user", "assistant", "Ada", "ada"],
    "session": ["s1", "s2", "s11", "nobody"],
    "project": ["/home/me/0", "/home/me/1", "/nowhere"],
    "meta.kind": ["plan", "note", 1, "'; --"],
    "meta.n": [1, 2.5, 7, "7"],
    "meta.done": [True],
    "meta.absent": ["x"],
}
of_text: st.SearchStrategy[dict[str, Any]] = st.sampled_from([*VALUES]).flatmap(
    lambda field: st.one_of(
        st.builds(dict, field=st.just(field), op=st.sampled_from(["eq", "ne"]), value=st.sampled_from(VALUES[field])),
        st.builds(
            dict,
            field=st.just(field),
            op=st.sampled_from(["in", "notIn"]),
            value=st.lists(st.sampled_from(VALUES[field]), min_size=1, max_size=3),
        ),
    )
)
of_time: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    field=st.just("created"),
    op=st.sampled_from(["before", "after", "notBefore", "notAfter"]),
    value=st.integers(-1, 85).map(lambda day: BEGAN + day * DAY),
)


@given(st.lists(st.one_of(of_text, of_time), min_size=1, max_size=3), st.sampled_from(["keyword", "vector", "hybrid"]))
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_filters_return_exactly_what_they_describe(
    filled: RawConnection, documents: list[dict[str, Any]], filters: list[dict[str, Any]], mode: str
) -> None:
    made = made_at(filled, documents)
    wanted = {one["id"] for one in made if all(holds(one, condition) for condition in filters)}
    assert everything(filled, filters=filters, mode=mode) == wanted


def made_at(connection: RawConnection, documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The documents with the moments that files were given when they were found."""
    if any(one["created"] is None for one in documents):
        hits = search(connection, sources=["memory"], limit=100)["hits"]
        moments = {hit["ref"]["path"]: hit["createdAt"] for hit in hits}
        for one in documents:
            one["created"] = one["created"] or moments[one["id"]]
    return documents


def test_filter_by_path_finds_a_file(filled: RawConnection, documents: list[dict[str, Any]]) -> None:
    path = documents[-1]["path"]
    assert everything(filled, filters=[{"field": "path", "op": "eq", "value": path}]) == {path}
    others = everything(filled, filters=[{"field": "path", "op": "notIn", "value": [path]}])
    assert others == {one["id"] for one in documents} - {path}


@pytest.mark.parametrize("mode", ["keyword", "vector", "hybrid"])
def test_parameters_restrict_the_search(filled: RawConnection, documents: list[dict[str, Any]], mode: str) -> None:
    messages = [one for one in documents if one["source"] == "sessions"]
    [project] = [one["id"] for one in filled.call("project.list") if one["path"] == "/home/me/1"]
    middle = BEGAN + 60 * DAY

    def ids(test: Callable[[dict[str, Any]], bool], among: list[dict[str, Any]] = messages) -> set[str]:
        return {one["id"] for one in among if test(one)}

    files = ids(lambda one: one["source"] == "memory", documents)
    assert everything(filled, mode=mode, sources=["memory"]) == files
    assert everything(filled, mode=mode, sources=["memory", "sessions"]) == ids(lambda one: True, documents)
    assert everything(filled, mode=mode, sessionId="s3") == ids(lambda one: one["session"] == "s3")
    assert everything(filled, mode=mode, project="/home/me/1") == ids(lambda one: one["project"] == "/home/me/1")
    assert everything(filled, mode=mode, project="/home/me/1/") == ids(lambda one: one["project"] == "/home/me/1")
    assert everything(filled, mode=mode, project=project) == ids(lambda one: one["project"] == "/home/me/1")
    assert everything(filled, mode=mode, project="/work") == set()
    assert everything(filled, mode=mode, sessionId="nobody") == set()
    assert everything(filled, mode=mode, since=middle, until=middle + DAY) == ids(lambda o: o["created"] == middle)
    assert everything(filled, mode=mode, since=middle / 1000, until=(middle + DAY) / 1000) == {"m60"}  # seconds
    both = everything(filled, mode=mode, project="/home/me/1", sources=["memory"])
    assert both == set()


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"field": "colour", "op": "eq", "value": "x"}, "colour"),
        ({"field": "chunks.text", "op": "eq", "value": "x"}, "chunks.text"),
        ({"field": "", "op": "eq", "value": "x"}, "''"),
        ({"field": "Role", "op": "eq", "value": "x"}, "Role"),
        ({"field": "meta.", "op": "eq", "value": "x"}, "meta."),
        ({"field": "meta.a b", "op": "eq", "value": "x"}, "meta.a b"),
        ({"field": "meta.a') OR 1 --", "op": "eq", "value": "x"}, "meta.a"),
        ({"field": "meta.a\n", "op": "eq", "value": "x"}, "meta.a"),
        ({"field": "meta." + "k" * 65, "op": "eq", "value": "x"}, "meta.k"),
        ({"field": "role", "op": "in", "value": []}, "role"),
        ({"field": "role", "op": "notIn", "value": []}, "role"),
        ({"field": "role", "op": "in", "value": "user"}, "role"),
        ({"field": "role", "op": "eq", "value": ["user"]}, "role"),
        ({"field": "role", "op": "before", "value": 1}, "role"),
        ({"field": "created", "op": "eq", "value": 1}, "created"),
        ({"field": "created", "op": "in", "value": [1]}, "created"),
        ({"field": "created", "op": "before", "value": "yesterday"}, "created"),
        ({"field": "created", "op": "before", "value": True}, "created"),
        ({"field": "role", "op": "like", "value": "u%"}, "op"),
        ({"field": "role", "op": "eq"}, "value"),
        ({"field": "role", "op": "eq", "value": None}, "value"),
        ({"field": "role", "op": "eq", "value": "user", "not": True}, "not"),
    ],
)
def test_filter_that_is_invalid_is_named_in_the_error(filled: RawConnection, wrong: dict[str, Any], named: str) -> None:
    assert named in refused(filled, filters=[wrong])


@pytest.mark.parametrize(
    "params",
    [
        {"sources": []}, {"sources": ["elsewhere"]}, {"limit": 0}, {"limit": 101}, {"mode": "magic"}, {"minScore": 2},
        {"halfLifeDays": 0}, {"diversity": -0.1}, {"cursor": "nonsense"}, {"since": "now"}, {"unknown": 1},
        {"project": ""}, {"filters": [{"field": "role", "op": "eq", "value": "user"}] * 33},
    ],
)  # fmt: skip
def test_parameter_that_is_invalid_is_named_in_the_error(filled: RawConnection, params: dict[str, Any]) -> None:
    assert next(iter(params)) in refused(filled, **params)


@pytest.mark.parametrize("value", [10**30, -(10**30), 2**63, ["user"] * 40_000, ["user", 2**64]])
def test_filter_with_values_that_sqlite_cannot_store_is_no_internal_error(filled: RawConnection, value: Any) -> None:
    op = "in" if isinstance(value, list) else "ne"
    reply = filled.request("search", {"query": "amber", "filters": [{"field": "meta.n", "op": op, "value": value}]})
    assert reply.get("error", {"code": INVALID})["code"] == INVALID, reply


@pytest.mark.parametrize("mode", ["vector", "hybrid", "keyword"])
def test_filtered_search_returns_its_full_limit(filled: RawConnection, mode: str) -> None:
    """Filtered before the nearest are chosen, not after."""
    answer = search(filled, "file", mode=mode, limit=7, filters=[{"field": "session", "op": "eq", "value": "s5"}])
    assert len(answer["hits"]) == (0 if mode == "keyword" else 7)


# --- Pages


@pytest.mark.parametrize("mode", ["keyword", "vector", "hybrid"])
@pytest.mark.parametrize("limit", [7, 50])
def test_pages_contain_every_hit_once_in_order(filled: RawConnection, mode: str, limit: int) -> None:
    whole = []
    for part in (search(filled, mode=mode, limit=100), None):
        if part:
            whole += names(part)
            if part["cursor"]:
                whole += names(search(filled, mode=mode, limit=100, cursor=part["cursor"]))
    paged, cursor = [], None
    for _ in range(100):
        answer = search(filled, mode=mode, limit=limit, **({"cursor": cursor} if cursor else {}))
        paged += names(answer)
        cursor = answer["cursor"]
        if cursor is None:
            break
        assert len(answer["hits"]) == limit
    assert paged == whole
    assert len(paged) == len({*paged}) == 90


@pytest.mark.parametrize("mode", ["keyword", "vector", "hybrid"])
def test_session_that_moves_takes_its_chunks_to_the_other_project(rpc: RawConnection, mode: str) -> None:
    text = "zircon from the mountain"
    message = {"id": f"moved-{mode}", "sessionId": f"moving-{mode}", "role": "user", "textContent": text}
    rpc.call("upsertMessage", message=message)
    eventually(lambda: rpc.call("index.status")["live"]["pending"] == 0, "it has its vector")
    for project in ("/home/me/first", "/home/me/second"):
        rpc.call("upsertSession", session={"id": f"moving-{mode}", "projectPath": project})
        others = {"/home/me/first", "/home/me/second"} - {project}
        found = search(rpc, "zircon mountain", mode=mode, project=project)["hits"]
        assert [hit["ref"]["messageId"] for hit in found] == [f"moved-{mode}"]
        for other in others:
            assert not search(rpc, "zircon mountain", mode=mode, project=other)["hits"]
    rpc.call("session.delete", id=f"moving-{mode}")


@pytest.mark.parametrize(
    "other",
    [
        {"query": "amber"},
        {"mode": "keyword"},
        {"project": "/home/me/1"},
        {"diversity": 0.5},
        {"since": 1},
        {"minScore": 0.1},
    ],
)
def test_cursor_of_another_search_is_refused(filled: RawConnection, other: dict[str, Any]) -> None:
    cursor = search(filled)["cursor"]
    assert "cursor" in refused(filled, **other, cursor=cursor)


def test_cursor_may_be_used_with_another_limit(filled: RawConnection) -> None:
    first = search(filled, limit=5)
    assert len(search(filled, limit=50, cursor=first["cursor"])["hits"]) == 50


# --- Ranking


def test_score_is_explained_by_its_components(filled: RawConnection) -> None:
    for mode, parts in (("keyword", {"keyword"}), ("hybrid", {"keyword", "vector"}), ("vector", {"vector"})):
        for hit in search(filled, "amber basalt", mode=mode, explain=True)["hits"]:
            assert parts <= hit["components"].keys()
            if hit["ref"].get("role") == "assistant":
                assert hit["components"]["role"] <= 1
        assert all(hit["components"] is None for hit in search(filled, "amber", mode=mode)["hits"])


def test_min_score_never_removes_a_keyword_hit(filled: RawConnection, documents: list[dict[str, Any]]) -> None:
    wanted = {one["id"] for one in documents if "amber" in one["text"]}
    for mode in ("keyword", "hybrid"):
        assert wanted <= everything(filled, query="amber mineral", mode=mode, minScore=1)
    few = search(filled, "amber", mode="vector", minScore=0.9, limit=100)["hits"]
    assert 0 < len(few) < 50
    assert all(hit["score"] >= 0.9 for hit in few)


def test_half_life_halves_the_score_of_old_hits(filled: RawConnection, documents: list[dict[str, Any]]) -> None:
    plain = {hit["chunkId"]: hit for hit in search(filled, "amber", mode="keyword", limit=100)["hits"]}
    created = {one["id"]: one["created"] for one in documents if one["source"] == "sessions"}
    before = time.time() * 1000
    answer = search(filled, "amber", mode="keyword", limit=100, halfLifeDays=365, explain=True)
    after = time.time() * 1000
    assert {hit["chunkId"] for hit in answer["hits"]} == plain.keys()
    for name, hit in zip(names(answer), answer["hits"], strict=True):
        at = created.get(name, before)  # the files were written just now
        oldest, youngest = (0.5 ** (max(0.0, now - at) / DAY / 365) for now in (after, before))
        recency = hit["components"]["recency"]
        assert oldest - 1e-3 <= recency <= youngest + 1e-5
        assert hit["score"] == pytest.approx(plain[hit["chunkId"]]["score"] * recency, abs=2e-6)


def test_diversity_ranks_near_duplicates_lower() -> None:
    like = "the amber deployment failed on the staging server again"
    with fresh() as own:
        texts = [f"{like} {number}" for number in range(5)] + ["an amber necklace was found in the drawer of my aunt"]
        for number, text in enumerate(texts):
            message = {"id": f"m{number}", "sessionId": f"s{number}", "role": "user", "textContent": text}
            own.call("upsertMessage", message=message)
        question: dict[str, Any] = {"query": "amber deployment staging", "mode": "keyword", "explain": True}
        assert names(search(own, **question)).index("m5") == 5
        varied = search(own, **question, diversity=0.7)
        assert names(varied).index("m5") == 1
        assert all("similarity" in hit["components"] for hit in varied["hits"])


def test_neighbour_of_a_match_is_found_after_it() -> None:
    turns = [
        "Which tool shall we use for the backup?",
        "Restic, since it is encrypted.",
        "Install it now.",
        "Then lunch.",
    ]
    with fresh() as own:
        for number, text in enumerate(turns):
            message = {"id": f"m{number}", "sessionId": "s", "role": "user", "textContent": text}
            own.call("upsertMessage", message=message)
        assert names(search(own, "backup tool", mode="keyword")) == ["m0", "m1", "m2", "m3"]


def test_speaker_named_in_the_query_is_preferred(filled: RawConnection) -> None:
    answer = search(filled, "what did Ada say about amber", mode="keyword", limit=100, explain=True)
    assert answer["hits"][0]["ref"]["role"] == "Ada"
    speakers = {hit["ref"].get("role"): hit["components"]["speaker"] for hit in answer["hits"]}
    assert speakers["Ada"] == 1
    assert speakers["user"] == 0


def test_speaker_whose_name_begins_the_texts_is_preferred() -> None:
    """A chat log: the roles are those of a program, and the texts say who speaks."""
    with fresh() as own:
        for number in range(60):
            name, other = ("Ada", "Grace") if number % 2 else ("Grace", "Ada")
            text = f"{name}: {other}, turbine number {number} is running" if number < 50 else f"{name}: fine, {number}"
            message = {"id": f"m{number}", "sessionId": "s", "role": "user", "textContent": text}
            own.call("upsertMessage", message=message)
        answer = search(own, "what did Ada say about turbine number 30 or 31?", mode="keyword", explain=True)
        assert names(answer)[0] == "m31"
        assert answer["hits"][0]["components"]["speaker"] == 1
        assert names(search(own, "what did Grace say about turbine number 30 or 31?", mode="keyword"))[0] == "m30"


def test_imperative_that_begins_many_prompts_is_no_speaker() -> None:
    with fresh() as own:
        for number in range(60):
            verb, part = ("Add", "a column to the table") if number % 2 else ("Fix", "the test of the parser")
            said = {"id": f"m{number}", "sessionId": f"s{number}", "textContent": f"{verb} {part} number {number}"}
            own.call("upsertMessage", message=said | {"role": "user"})
        said = {"id": "jitter", "sessionId": "other", "textContent": "the retry loop has jitter now"}
        own.call("upsertMessage", message=said | {"role": "user"})
        answer = search(own, "Add jitter to the retry loop", mode="keyword", explain=True)
        assert names(answer)[0] == "jitter"
        assert all("speaker" not in hit["components"] for hit in answer["hits"])


def test_speaker_of_another_project_is_a_word_as_any_other() -> None:
    texts = {"/one": ["The compiler is slow today."], "/two": ["The compiler is slow.", "Ada has a compiler, too."]}
    with fresh() as own:
        for project, said in texts.items():
            own.call("upsertSession", session={"id": project, "projectPath": project})
            for number, text in enumerate(said):
                role = "Ada" if project == "/one" else "user"
                message = {"id": f"{project}{number}", "sessionId": project, "role": role, "textContent": text}
                own.call("upsertMessage", message=message)
        answer = search(own, "compiler of Ada", mode="keyword", project="/two", explain=True)
        assert names(answer)[0] == "/two1"
        assert all("speaker" not in hit["components"] for hit in answer["hits"])
        answer = search(own, "compiler of Ada", mode="keyword", explain=True)
        assert names(answer)[0] == "/one0"


def test_snippets_mark_matches(filled: RawConnection) -> None:
    for hit in search(filled, "amber", mode="hybrid", limit=100)["hits"]:
        assert ("«amber»" in hit["snippet"]) == ("amber" in hit["text"])


# --- Answers in general


def test_mode_of_the_result_is_the_one_used(filled: RawConnection) -> None:
    for mode in ("keyword", "vector", "hybrid"):
        answer = search(filled, "amber", mode=mode)
        assert (answer["mode"], answer["pending"], answer["degraded"]) == (mode, 0, None)
        assert answer["tookMs"] > 0
        assert answer["hits"]


def test_query_without_a_vector_is_answered_by_keyword_search(filled: RawConnection) -> None:
    answer = search(filled, "?!", mode="hybrid")
    assert answer["mode"] in ("hybrid", "keyword")


def test_search_is_deterministic(filled: RawConnection) -> None:
    for mode, query in itertools.product(("keyword", "vector", "hybrid"), ("amber", "mineral basalt")):
        first = search(filled, query, mode=mode)["hits"]
        assert search(filled, query, mode=mode)["hits"] == first


def test_search_writes_nothing(filled: RawConnection) -> None:
    before = filled.call("daemon.status")["queue"]["writes"]
    for mode in ("keyword", "vector", "hybrid"):
        search(filled, "amber", mode=mode)
    assert filled.call("daemon.status")["queue"]["writes"] == before


def test_result_is_plain_json(filled: RawConnection) -> None:
    answer = search(filled, "amber", explain=True)
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer


def test_search_without_time_returns_a_partial_result() -> None:
    with fresh() as own:
        for number in range(200):
            message = {"id": f"m{number}", "sessionId": "s", "role": "user", "textContent": f"amber {number}"}
            own.call("upsertMessage", message=message)
        own.call("daemon.configure", key="search_seconds", value=0.0001)
        assert search(own, "amber")["degraded"]
        own.call("daemon.configure", key="search_seconds", value=None)
        eventually(lambda: search(own, "amber")["degraded"] is None, "it has time again")
        eventually(lambda: own.call("index.status")["inMemory"], "the vectors are in memory")


def test_search_says_if_the_session_is_not_known(filled: RawConnection) -> None:
    assert search(filled, "amber", sessionId="nobody")["degraded"] == "there is no session 'nobody'"
    assert search(filled, "amber", sessionId="s3")["degraded"] is None


def test_search_lists_a_repeated_message_once_with_a_count() -> None:
    with fresh() as own:
        for number in range(3):
            message = {
                "id": f"m{number}",
                "sessionId": f"s{number}",
                "role": "user",
                "textContent": "run the migration",
            }
            own.call("upsertMessage", message=message)
        [hit] = search(own, "migration", mode="keyword")["hits"]
        assert hit["duplicates"] == 2
        assert len(search(own, "migration", mode="keyword", collapse=False)["hits"]) == 3


def test_search_finds_what_comes_after_a_prompt_that_fills_the_first_candidates() -> None:
    texts = ["regenerate the quarterly wombat forecast"] * 40 + ["the wombat forecast needs a second column"]
    with fresh() as own:
        events = [
            {"message": {"id": f"m{number}", "sessionId": f"s{number}", "role": "user", "textContent": text}}
            for number, text in enumerate(texts)
        ]
        own.call("events.batch", events=events)
        hits = search(own, "quarterly wombat forecast regenerate", mode="keyword")["hits"]
        assert [hit["duplicates"] for hit in hits] == [39, 0]


def test_search_in_the_whole_store_finds_what_a_deletion_has_left() -> None:
    with fresh() as own:
        stored = {"stays": 250, "goes": 2_400, "later": 1}
        for session, count in stored.items():
            text = "another subject" if session == "later" else "the sprocket setting"
            messages = [
                {"id": f"{session}{number}", "sessionId": session, "role": "user", "textContent": f"{text} {number}"}
                for number in range(count)
            ]
            for start in range(0, count, 400):
                own.call("events.batch", events=[{"message": one} for one in messages[start : start + 400]])
        assert search(own, "sprocket", mode="keyword", collapse=False)["hits"]
        own.call("session.delete", id="goes")
        found = search(own, "sprocket", mode="keyword", collapse=False, limit=5)
        assert [hit["ref"]["sessionId"] for hit in found["hits"]] == ["stays"] * 5
        assert found["degraded"] is None


def test_lowest_score_keeps_only_messages_that_have_a_word_themselves() -> None:
    """Neighbours of a message with the word have a keyword score too, and were kept as if they had the word."""
    with fresh() as own:
        texts = ["first of all", "the visibleword came up", "and then this", "and that"]
        for number, text in enumerate(texts):
            message = {
                "id": f"m{number}",
                "sessionId": "s",
                "role": "user",
                "textContent": text,
                "createdAt": BEGAN + number,
            }
            own.call("upsertMessage", message=message)
        for filters in ([], [{"field": "role", "op": "eq", "value": "user"}]):
            assert len(search(own, "visibleword", filters=filters)["hits"]) > 1
            assert names(search(own, "visibleword", minScore=1, filters=filters)) == ["m1"]


def test_search_that_leaves_out_matches_says_so(filled: RawConnection) -> None:
    whole = search(filled, "amber", mode="keyword", limit=100)
    assert whole["degraded"] is None
    cut = search(filled, "amber", mode="keyword", limit=100, pool=10)
    assert cut["degraded"].endswith("matches the best 10 were ranked")
    assert search(filled, "amber", mode="keyword", limit=5, pool=10)["degraded"] is None  # there are more pages


def test_search_by_vector_that_ends_with_the_pool_says_so(filled: RawConnection) -> None:
    cut = search(filled, "amber", mode="vector", limit=100, pool=10)
    assert cut["degraded"] == "only the nearest 10 chunks were ranked"
    assert search(filled, "amber", mode="vector", limit=5, pool=10)["degraded"] is None  # there are more pages
    assert search(filled, "amber", mode="vector", limit=100, pool=10, minScore=0.5)["degraded"] is None
    assert search(filled, "amber", mode="vector", limit=100, pool=1000)["degraded"] is None


def test_vector_weight_and_pool_of_a_search_are_used(filled: RawConnection) -> None:
    for weight, part in ((0.0, "keyword"), (1.0, "vector")):
        hits = search(filled, "amber basalt", vectorWeight=weight, explain=True)["hits"]
        best = max(hits, key=lambda hit: hit["components"][part])
        assert hits[0]["components"][part] == best["components"][part]
    assert len(search(filled, "amber", mode="keyword", pool=10, limit=100)["hits"]) == 10


def test_messages_of_a_large_import_are_soon_ranked_with_their_neighbours() -> None:
    """Of more new messages than a search waits for, none was read into memory until the daemon was started again."""

    def store(connection: RawConnection, word: str, count: int) -> None:
        for start in range(0, count, 1000):
            events = []
            for number in range(start, min(start + 1000, count)):
                text = f"{word} lighthouse {number}"
                said = {"id": f"{word}{number}", "sessionId": f"{word}{number // 40}", "textContent": text}
                events.append({"message": said | {"role": "user"}})
            assert connection.call("events.batch", events=events)["ok"]
        settled(connection)

    with fresh() as own:
        store(own, "old", 200)
        note = "messages were ranked without their neighbours"
        eventually(lambda: note not in (search(own, "old lighthouse")["degraded"] or ""), "all is loaded")
        store(own, "new", MAX_CHUNKS_READ_INLINE + 1000)
        assert f"the newest {note}" in search(own, "new lighthouse")["degraded"]
        eventually(lambda: note not in search(own, "new lighthouse")["degraded"], "the newest are loaded too")


def test_small_talk_is_found_by_its_own_words_only() -> None:
    """Most words around "thanks" are those of the query, but nobody looks for it."""
    talk = [
        ("user", "The AbortController of the product search is never aborted."),
        ("assistant", "Done."),
        ("user", "yes, go ahead"),
        ("assistant", "You're welcome."),
        ("user", "👍"),
        ("user", "Keep the AbortController in a ref."),
        ("user", "thanks"),
    ]
    with fresh() as connection:
        for number, (role, text) in enumerate(talk):
            message = {"id": f"m{number}", "sessionId": "s", "role": role, "textContent": text, "createdAt": number}
            assert connection.call("events.batch", events=[{"message": message}])["ok"]
        settled(connection)
        for params in ({}, {"mode": "vector"}, {"mode": "keyword"}, {"vectorWeight": 0.0}, {"collapse": False}):
            assert sorted(names(search(connection, "AbortController", **params))) == ["m0", "m5"], params
        assert names(search(connection, "thanks"))[0] == "m6"
