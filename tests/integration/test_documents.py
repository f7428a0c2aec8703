"""Documents over the socket: ingested, updated in place, found, and deleted completely."""

import base64
import os
from pathlib import Path
from typing import Any

import apsw
import pytest
from helpers.daemon import DaemonProcess, RawConnection, running_daemon
from helpers.documents import chunks_of, finished, search
from helpers.full_text import find_fault
from helpers.sample_files import bomb, deep_json, docx, mixed, pdf
from helpers.waiting import eventually, settled

PROSE = "Kestrels hover over fields. They look for voles. " * 40
TABLES = (
    "documents", "document_parts", "document_chunks", "chunk_edges", "ingest_items", "chunks", "chunks_fts_docsize",
    "chunks_fts_idx", "index_queue", "index_backlog", "projects",
)  # fmt: skip


# -- ingest


def test_documents_are_stored_without_their_secrets(rpc: RawConnection) -> None:
    token = "ghp_" + "a1B2c3D4e5" * 4
    text = f"# Access\n\nThe robot logs in with {token} every day.\n\n## Owls\n\nOwls hunt at night."
    before = sum(rpc.call("capture.status")["redacted"].values())
    document = rpc.call("document.ingest", text=text, source="access.md")["document"]
    rpc.call("document.store", source="given", chunks=[{"content": f"again {token}"}])
    stored = rpc.call("document.get", id=document["id"])["text"]
    assert token not in stored
    assert "logs in with [redacted:" in stored
    assert all(token not in hit["text"] for hit in search(rpc, "robot logs in again"))
    for one in chunks_of(rpc, document["id"]):
        assert stored[one["startOffset"] : one["endOffset"]] == one["content"]
    assert sum(rpc.call("capture.status")["redacted"].values()) == before + 2


def test_ingested_text_is_chunked_stored_and_found(rpc: RawConnection) -> None:
    text = f"# Birds\n\n{PROSE}\n\n## Owls\n\nOwls hunt at night with silent zephyrwings."
    ingested = rpc.call("document.ingest", text=text, source="birds.md", metadata={"shelf": "nature"})
    assert ingested["outcome"] == "stored"
    document = ingested["document"]
    assert (document["title"], document["kind"], document["strategy"]) == ("Birds", "markdown", "markdown")
    assert (document["bytes"], document["characters"]) == (len(text), len(text))
    hit = search(rpc, "zephyrwings")[0]
    assert hit["text"].startswith("## Owls")
    assert hit["ref"]["documentId"] == document["id"]
    assert hit["ref"]["documentTitle"] == "Birds"
    assert hit["ref"]["documentSource"] == "birds.md"
    chunk = rpc.call("chunk.get", ids=[hit["ref"]["documentChunkId"]])[0]
    assert text[chunk["startOffset"] : chunk["endOffset"]] == chunk["content"] == hit["text"]
    assert chunk["metadata"]["section_path"] == "Birds > Owls"
    assert chunk["startLine"] == text.count("\n", 0, chunk["startOffset"]) + 1


def test_unchanged_document_is_skipped_and_the_same_source_updates_in_place(rpc: RawConnection) -> None:
    parts = [f"Paragraph {number} is about subject{number}. {'It goes on. ' * 60}" for number in range(12)]
    first = rpc.call("document.ingest", text="\n\n".join(parts), source="notes")
    before = {chunk["content"]: chunk["id"] for chunk in chunks_of(rpc, first["document"]["id"])}
    again = rpc.call("document.ingest", text="\n\n".join(parts), source="notes")
    assert (again["outcome"], again["document"]) == ("unchanged", first["document"])

    parts[5] = f"Paragraph five is new and speaks of quetzals. {'It goes on. ' * 60}"
    changed = rpc.call("document.ingest", text="\n\n".join(parts[:9]), source="notes")
    assert changed["outcome"] == "updated"
    assert changed["document"]["id"] == first["document"]["id"]
    assert changed["document"]["createdAt"] == first["document"]["createdAt"]
    after = {chunk["content"]: chunk["id"] for chunk in chunks_of(rpc, first["document"]["id"])}
    kept = before.keys() & after.keys()
    assert len(kept) >= 5
    assert all(before[content] == after[content] for content in kept)
    assert search(rpc, "quetzals")
    assert not any("subject11" in hit["text"] for hit in search(rpc, "subject11"))
    assert rpc.call("document.get", source="notes")["text"] == "\n\n".join(parts[:9])


def test_title_and_metadata_of_an_unchanged_document_are_updated(rpc: RawConnection) -> None:
    rpc.call("document.ingest", text=PROSE, source="p", title="Old name")
    changed = rpc.call("document.ingest", text=PROSE, source="p", title="Gyrfalcon papers", metadata={"a": 1})
    assert changed["outcome"] == "updated"
    assert changed["document"]["metadata"] == {"a": 1}
    assert search(rpc, "gyrfalcon")


def test_other_chunking_options_chunk_the_document_again(rpc: RawConnection) -> None:
    one = rpc.call("document.ingest", text=PROSE, source="p", chunkTokens=400)
    two = rpc.call("document.ingest", text=PROSE, source="p", chunkTokens=64)
    assert two["outcome"] == "updated"
    assert two["document"]["chunks"] > one["document"]["chunks"]


def test_text_without_a_source_is_identified_by_its_hash(rpc: RawConnection) -> None:
    one = rpc.call("document.ingest", text=PROSE)
    assert rpc.call("document.ingest", text=PROSE)["outcome"] == "unchanged"
    assert rpc.call("document.ingest", text=PROSE + "!")["document"]["id"] != one["document"]["id"]


@pytest.mark.parametrize(
    ("name", "data", "kind", "word"),
    [
        ("a.pdf", pdf("A page on wolverines."), "pdf", "wolverines"),
        ("a.docx", docx("A paragraph on marmots.", heading="Report"), "docx", "marmots"),
        ("a.html", b"<h1>Head</h1><p>About ibexes.</p>", "html", "ibexes"),
        ("a.csv", b"animal,legs\nokapi,4\n", "csv", "okapi"),
        ("a.json", b'{"animal": "tapir"}', "json", "tapir"),
        ("a.py", b"def find_pangolin():\n    return 1\n", "code", "pangolin"),
        ("a.txt", "Über Füchse: vixenhaft.".encode(), "text", "vixenhaft"),
    ],
)
def test_files_and_bytes_of_every_kind_are_found(
    rpc: RawConnection, tmp_path: Path, name: str, data: bytes, kind: str, word: str
) -> None:
    (tmp_path / name).write_bytes(data)
    by_path = rpc.call("document.ingest", path=str(tmp_path / name))
    by_bytes = rpc.call("document.ingest", data=base64.b64encode(data).decode(), source=f"mem/{name}")
    for ingested in (by_path, by_bytes):
        assert ingested["document"]["kind"] == kind
        assert ingested["document"]["bytes"] == len(data)
    found = search(rpc, word, collapse=False)
    assert {hit["ref"]["documentSource"] for hit in found} == {str(tmp_path / name), f"mem/{name}"}


def test_text_is_text_even_if_its_source_names_a_pdf(rpc: RawConnection) -> None:
    document = rpc.call("document.ingest", text="Text of a paper on grebes.", source="/papers/a.pdf")["document"]
    assert document["kind"] == "text"
    untitled = rpc.call("document.ingest", text='{"a": 1}', kind="json")["document"]
    assert untitled["title"] == "Untitled json"


def test_url_source_is_only_a_name(rpc: RawConnection) -> None:
    url = "https://example.invalid/guide.html"
    document = rpc.call("document.ingest", text="<p>Given content on lemurs.</p>", source=url)["document"]
    assert (document["source"], document["kind"]) == (url, "html")


def test_semantic_chunking_does_not_split_a_topic(rpc: RawConnection) -> None:
    birds = "The owl is a bird of prey. Owls and hawks are birds that hunt. Birds have feathers and wings. "
    money = "The bank raised interest rates. Loans and credit cost more money. Investors sold bank shares. "
    document = rpc.call("document.ingest", text=birds + money, source="p", strategy="semantic")["document"]
    assert document["strategy"] == "semantic"
    contents = [chunk["content"] for chunk in chunks_of(rpc, document["id"])]
    assert len(contents) > 1
    assert not any("feathers" in content and "interest" in content for content in contents)


# -- store


def test_client_chunks_are_stored_with_parents_and_metadata(rpc: RawConnection) -> None:
    chunks = [
        {"id": "whole", "content": "All about narwhals and their tusks."},
        {"id": "part", "parentId": "whole", "content": "narwhals", "metadata": {"page": 3}},
        {"content": "Nothing else.", "startOffset": 40, "endOffset": 53},
    ]
    stored = rpc.call("document.store", chunks=chunks, title="Arctic", source="own")
    assert stored["document"]["chunks"] == 2
    hit = search(rpc, "narwhals")[0]
    assert (hit["text"], hit["ref"]["documentChunkId"]) == ("All about narwhals and their tusks.", "whole")
    assert hit["ref"]["matchedChunkId"] == "part"
    assert rpc.call("document.store", chunks=chunks, title="Arctic", source="own")["outcome"] == "unchanged"
    fewer = rpc.call("document.store", chunks=chunks[:2], source="own")
    assert fewer["outcome"] == "updated"
    assert len(chunks_of(rpc, stored["document"]["id"])) == 2
    assert not rpc.call("chunk.searchKeyword", query="nothing else")["hits"]


def test_document_stored_again_by_id_retains_its_source(rpc: RawConnection) -> None:
    stored = rpc.call("document.store", id="mine", source="where", chunks=[{"content": "one"}])
    again = rpc.call("document.store", id="mine", chunks=[{"content": "two"}])
    assert (again["outcome"], again["document"]["source"]) == ("updated", "where")
    assert again["document"]["id"] == stored["document"]["id"] == "mine"


# -- read, list, update, delete


def test_document_text_is_read_in_parts(rpc: RawConnection) -> None:
    text = "\n".join(f"line {number} – ünï" for number in range(30_000))
    rpc.call("document.ingest", text=text, source="long")
    read, offset = "", 0
    while offset is not None:
        part = rpc.call("document.get", source="long", offset=offset, length=70_001)
        read, offset = read + part["text"], part["nextOffset"]
    assert read == text


def test_documents_are_listed_newest_first_page_by_page(rpc: RawConnection, tmp_path: Path) -> None:
    for number in range(5):
        rpc.call("document.ingest", text=f"text {number}", source=f"/a/{number}", createdAt=1_700_000_000 + number)
    rpc.call("document.ingest", text="<p>other</p>", source="/b/x.html", project=str(tmp_path), createdAt=1_600_000_000)
    page = rpc.call("document.list", limit=4)
    rest = rpc.call("document.list", limit=4, cursor=page["cursor"])
    sources = [one["source"] for one in page["documents"] + rest["documents"]]
    assert sources == ["/a/4", "/a/3", "/a/2", "/a/1", "/a/0", "/b/x.html"]
    assert rest["cursor"] is None
    assert [one["source"] for one in rpc.call("document.list", source="/b")["documents"]] == ["/b/x.html"]
    assert [one["source"] for one in rpc.call("document.list", kind="html")["documents"]] == ["/b/x.html"]
    found = rpc.call("document.list", project=str(tmp_path))["documents"]
    assert [one["projectPath"] for one in found] == [str(tmp_path)]
    settled(rpc)
    assert search(rpc, "other", project=str(tmp_path))
    assert {hit["ref"]["documentSource"] for hit in search(rpc, "text", project=str(tmp_path))} == {"/b/x.html"}


def test_document_id_may_be_a_unique_prefix(rpc: RawConnection) -> None:
    rpc.call("document.store", id="abcdefgh-1", chunks=[{"content": "one"}])
    rpc.call("document.store", id="abcdefgh-2", chunks=[{"content": "two"}])
    assert rpc.call("document.get", id="abcdefgh-1")["text"] == "one"
    assert rpc.request("document.get", {"id": "abcdefgh"})["error"]["code"] == 4009
    assert rpc.request("document.get", {"id": "abcdefg"})["error"]["code"] == 4004
    assert rpc.request("document.delete", {"id": "abcdefgh"})["error"]["code"] == 4004


def test_document_title_and_metadata_can_be_updated(rpc: RawConnection) -> None:
    document = rpc.call("document.ingest", text=PROSE, source="p", metadata={"a": 1, "b": 2})["document"]
    changed = rpc.call("document.update", id=document["id"], title="On lammergeiers", metadata={"b": 3})
    assert (changed["title"], changed["metadata"]) == ("On lammergeiers", {"b": 3})
    assert search(rpc, "lammergeiers")


def test_deleted_document_leaves_no_rows(home: Path) -> None:
    with running_daemon(home) as daemon, daemon.connect() as connection:
        connection.call("document.ingest", text=PROSE, source="stays")
        connection.call("upsertMessage", message={"id": "m", "sessionId": "s", "role": "user", "textContent": PROSE})
        settled(connection)
        before = counts(daemon.database)
        given = [{"id": f"c{number}", "content": f"chunk {number} of it"} for number in range(50)]
        document = connection.call("document.store", chunks=given, source="goes")["document"]
        parted = connection.call("document.ingest", text=PROSE * 30, source="too", strategy="parentChild")["document"]
        edge = {"sourceId": "c1", "targetId": chunks_of(connection, parted["id"])[0]["id"], "relation": "references"}
        connection.call("graph.storeEdges", edges=[edge])
        settled(connection)
        between = counts(daemon.database)
        assert all(
            between[table] > before[table]
            for table in ("documents", "document_chunks", "chunk_edges", "chunks", "vectors")
        )
        assert connection.call("document.delete", id=document["id"], dryRun=True)["chunks"] == 50
        gone = connection.call("document.delete", id=document["id"])
        assert (gone["chunks"], gone["edges"]) == (50, 50)
        connection.call("document.delete", id=parted["id"])
        assert counts(daemon.database) == before
        assert not search(
            connection, "chunk of it", filters=[{"field": "document", "op": "eq", "value": document["id"]}]
        )
        assert connection.request("document.get", {"id": document["id"]})["error"]["code"] == 4004
        assert daemon.stop() == 0
        check_words(daemon.database)


def counts(database: Path) -> dict[str, int]:
    db = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        db.set_busy_timeout(5000)
        found: dict[str, Any] = {
            table: db.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0]
            for table in TABLES
            if "idx" not in table
        }
        (name,) = db.execute("SELECT name FROM sqlite_master WHERE name LIKE 'chunk_vectors_%_rowids'").fetchall()[0]
        found["vectors"] = db.execute(f"SELECT count(*) FROM {name}").fetchall()[0][0]
        return found
    finally:
        db.close()


def check_words(database: Path) -> None:
    """The full-text index has the words of the chunks and no others."""
    db = apsw.Connection(str(database))
    try:
        assert find_fault(db) is None
    finally:
        db.close()


# -- many


def test_batch_reports_progress(rpc: RawConnection, tmp_path: Path) -> None:
    items = [{"path": str(path)} for path in mixed(tmp_path / "many", 120)]
    result = finished(rpc, rpc.call("document.ingestMany", documents=items)["jobId"])
    assert result == {"stored": 120, "updated": 0, "unchanged": 0, "failed": []}
    told = [one["params"] for one in rpc.notifications if one["method"] == "$/progress"]
    assert told
    assert all(one["total"] in (None, 120) for one in told)


def test_second_batch_is_rejected_while_one_runs_and_a_cancelled_batch_is_deleted(
    rpc: RawConnection, tmp_path: Path
) -> None:
    items = [{"text": f"{PROSE * 20} {number}"} for number in range(200)]
    job = rpc.call("document.ingestMany", documents=items)["jobId"]
    assert rpc.request("document.ingestMany", {"documents": [{"text": "x"}]})["error"]["code"] == 4009
    assert rpc.call("job.cancel", id=job)["state"] == "cancelled"
    assert rpc.call("query", sql="SELECT count(*) FROM ingest_items")["rows"] == [[0]]


def test_cancelled_ingest_removes_a_new_document_and_leaves_an_existing_one_incomplete(
    rpc: RawConnection, tmp_path: Path
) -> None:
    book = tmp_path / "book.txt"
    chunks = "SELECT count(*) FROM document_chunks WHERE revision = 2"

    def cancelled_halfway(counted: str) -> None:
        small = {"path": str(book), "chunkTokens": 32, "overlap": 0}  # so that storing it takes many seconds
        job = rpc.call("document.ingestMany", documents=[small])["jobId"]
        eventually(lambda: rpc.call("query", sql=counted)["rows"][0][0] > 0, "some of it is stored")
        rpc.call("job.cancel", id=job)
        eventually(lambda: rpc.call("job.status", id=job)["state"] == "cancelled", "it is cancelled")

    book.write_text("\n\n".join(f"Paragraph {number}. {'word ' * 60}" for number in range(6_000)))
    cancelled_halfway(chunks.replace("2", "1"))
    for table in TABLES[:5]:
        assert rpc.call("query", sql=f"SELECT count(*) FROM {table}")["rows"] == [[0]], table

    whole = book.read_text()
    book.write_text("Only the beginning.")
    rpc.call("document.ingest", path=str(book))
    book.write_text(whole)
    cancelled_halfway(chunks)
    assert rpc.call("document.get", source=str(book), length=0)["document"]["complete"] is False
    book.write_text("Only the end.")
    again = rpc.call("document.ingest", path=str(book))
    assert (again["outcome"], again["document"]["complete"], again["document"]["chunks"]) == ("updated", True, 1)


def test_large_file_is_stored_while_others_are_served(rpc: RawConnection, tmp_path: Path) -> None:
    big = tmp_path / "big.txt"
    big.write_text("\n\n".join(f"Paragraph {number} on item{number}. {'word ' * 60}" for number in range(15_000)))
    rpc.send({"jsonrpc": "2.0", "id": "big", "method": "document.ingest", "params": {"path": str(big)}})
    answered = 0
    while True:
        rpc.send({"jsonrpc": "2.0", "id": "ping", "method": "health"})
        reply = rpc.receive()
        if reply["id"] == "big":
            break
        answered += 1
    assert reply["result"]["document"]["characters"] == len(big.read_text())
    assert rpc.receive()["id"] == "ping"
    assert answered > 20  # held up for all of the time it would be one or two
    assert search(rpc, "item14999")[0]["ref"]["documentSource"] == str(big)
    big.write_text("Only one line on peregrines is left.")
    changed = rpc.call("document.ingest", path=str(big))
    assert (changed["outcome"], changed["document"]["chunks"], changed["document"]["complete"]) == ("updated", 1, True)
    assert not [hit for hit in search(rpc, "item14999") if "item14999" in hit["text"]]


def test_hostile_file_ends_only_the_extraction_process(home: Path, tmp_path: Path) -> None:
    with running_daemon(home, CLANKERS_DOCUMENT_SECONDS="2") as daemon, daemon.connect() as connection:
        endless = b"[" + b",".join(b'"%d"' % number for number in range(3_000_000)) + b"]"
        (tmp_path / "slow.json").write_bytes(endless)
        reply = connection.request("document.ingest", {"path": str(tmp_path / "slow.json"), "chunkTokens": 32})
        assert "longer than 2 seconds" in reply["error"]["message"]
        assert connection.call("document.ingest", text="Still here.")["outcome"] == "stored"


def test_document_chunks_survive_a_reindex_with_other_chunking(home: Path) -> None:
    with running_daemon(home) as daemon, daemon.connect() as connection:
        document = connection.call("document.ingest", text=f"{PROSE} It ends with hoopoes.", source="p")["document"]
        before = chunks_of(connection, document["id"])
        settled(connection)
        connection.call("daemon.configure", key="chunk_tokens", value=64)
        finished(connection, connection.call("reindex")["jobId"])
        assert chunks_of(connection, document["id"]) == before
        hit = search(connection, "hoopoes")[0]
        assert hit["text"] == before[-1]["content"]
        assert connection.call("index.status")["chunks"] == {"documents": len(before)}
        assert connection.call("chunk.search", query="hoopoes")["hits"]


# -- bad input

BAD: list[tuple[str, dict[str, Any], str]] = [
    ("document.ingest", {}, "exactly one"),
    ("document.ingest", {"text": "a", "path": "/b"}, "exactly one"),
    ("document.ingest", {"text": " \n"}, "$.text"),
    ("document.ingest", {"data": "???"}, "$.data"),
    ("document.ingest", {"path": "relative.txt"}, "$.path"),
    ("document.ingest", {"path": "/nowhere/at/all.txt"}, "No such file"),
    ("document.ingest", {"path": "/dev/zero"}, "regular file"),
    ("document.ingest", {"path": "/tmp"}, "regular file"),
    ("document.ingest", {"text": "a", "kind": "odt"}, "$.kind"),
    ("document.ingest", {"text": "a", "strategy": "magic"}, "$.strategy"),
    ("document.ingest", {"text": "a", "chunkTokens": 3}, "$.chunkTokens"),
    ("document.ingest", {"text": "a", "parentTokens": 500}, "$.parentTokens"),
    ("document.ingest", {"text": "a", "metadata": {"no-identifier": 1}}, "$.metadata"),
    ("document.ingest", {"text": "a", "metadata": {"k": "x" * 20_000}}, "$.metadata"),
    ("document.ingest", {"text": "a", "project": "no-such-id"}, "there is no project 'no-such-id'"),
    ("document.ingest", {"text": deep_json(500), "kind": "json"}, "deeper"),
    ("document.ingest", {"data": base64.b64encode(pdf("x", password="y")).decode()}, "encrypted"),
    ("document.ingest", {"data": base64.b64encode(bomb(250 * 1024 * 1024)).decode()}, "unpack"),
    ("document.ingest", {"text": "a", "strategy": "code", "source": "a.unknown"}, "grammar"),
    ("document.ingestMany", {"documents": []}, "$.documents"),
    ("document.store", {"chunks": []}, "$.chunks"),
    ("document.store", {"chunks": [{"content": ""}]}, "$.chunks[0].content"),
    ("document.store", {"chunks": [{"content": "a"}, {"content": "  "}]}, "$.chunks[1].content"),
    ("document.store", {"chunks": [{"content": "a", "id": "x"}, {"content": "b", "id": "x"}]}, "$.chunks[1].id"),
    ("document.store", {"chunks": [{"content": "a", "parentId": "none"}]}, "$.chunks[0].parentId"),
    ("document.store", {"chunks": [{"content": "a", "startOffset": 5, "endOffset": 2}]}, "$.chunks[0].endOffset"),
    ("document.store", {"chunks": [{"content": "a", "embedding": [0.5, 0.5]}]}, "$.chunks[0].embedding"),
    ("document.store", {"chunks": [{"content": "a", "embedding": [0.0] * 256}]}, "zero"),
    ("document.store", {"chunks": [{"content": "a", "metadata": {"a.b": 1}}]}, "$.chunks[0].metadata"),
    ("document.get", {}, "exactly one"),
    ("document.get", {"id": "nope"}, "not found"),
    ("document.update", {"id": "nope", "title": "x"}, "not found"),
    ("document.delete", {"id": "nope"}, "not found"),
    ("document.list", {"cursor": "rubbish"}, "$.cursor"),
    ("chunk.search", {}, "exactly one"),
    ("chunk.search", {"query": "a", "embedding": [1.0]}, "exactly one"),
    ("chunk.search", {"embedding": [1.0, 2.0]}, "$.embedding"),
    ("chunk.search", {"embedding": "AAAA"}, "$.embedding"),
    ("chunk.search", {"query": "a", "filters": [{"field": "nonsense", "op": "eq", "value": 1}]}, "nonsense"),
    ("chunk.search", {"query": "a", "filters": [{"field": "document", "op": "in", "value": []}]}, "at least one value"),
    ("chunk.searchKeyword", {"query": "a", "filters": [{"field": "meta.a-b", "op": "eq", "value": 1}]}, "meta.a-b"),
    ("chunk.search", {"query": "a", "filters": [{"field": "session", "op": "eq", "value": "s"}]}, "by 'session'"),
    ("chunk.searchKeyword", {"query": ""}, "$.query"),
    ("chunk.get", {"ids": []}, "$.ids"),
    ("chunk.list", {"documentId": "nope"}, "not found"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "params", "says"), BAD)
def test_invalid_document_params_are_named_and_nothing_is_stored(
    shared_daemon: DaemonProcess, method: str, params: dict[str, Any], says: str
) -> None:
    with shared_daemon.connect() as connection:
        before = counts(shared_daemon.database)
        reply = connection.request(method, params)
        assert says in reply["error"]["message"], reply
        assert reply["error"]["code"] in (-32602, 4004)
        assert counts(shared_daemon.database) == before


def test_chunk_id_of_another_document_is_rejected(rpc: RawConnection) -> None:
    rpc.call("document.store", source="one", chunks=[{"id": "c", "content": "mine"}])
    reply = rpc.request("document.store", {"source": "two", "chunks": [{"id": "c", "content": "yours"}]})
    assert reply["error"]["code"] == 4009
    assert rpc.call("chunk.get", ids=["c"])[0]["content"] == "mine"
    assert len(rpc.call("document.list")["documents"]) == 1


@pytest.mark.skipif(not Path("/proc/self/mountinfo").exists(), reason="the kernel shows no files here")
@pytest.mark.parametrize("path", ["/proc/self/environ", "/proc/version", "/sys/kernel/uevent_seqnum", "/dev/zero"])
def test_files_generated_by_the_kernel_are_rejected(rpc: RawConnection, path: str) -> None:
    if not Path(path).exists():
        pytest.skip(f"there is no {path} here")
    refused = rpc.request("document.ingest", {"path": path})["error"]["message"]
    assert "not stored on a disk" in refused or "not a regular file" in refused
    assert rpc.call("document.list")["documents"] == []


def test_symbolic_link_is_not_followed(rpc: RawConnection, tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("hello")
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    os.mkfifo(tmp_path / "pipe.txt")
    assert "link" in rpc.request("document.ingest", {"path": str(tmp_path / "link.txt")})["error"]["message"]
    assert "regular" in rpc.request("document.ingest", {"path": str(tmp_path / "pipe.txt")})["error"]["message"]
