"""`clankers-ctl docs` and `clankers-ctl graph`, as a person uses them."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.ctl import ctl, on_a_terminal
from helpers.daemon import DaemonProcess, running_daemon
from helpers.sample_files import docx, mixed, pdf


@pytest.fixture(scope="module")
def library() -> Iterator[DaemonProcess]:
    """A daemon with a folder of documents beside it, added."""
    with tempfile.TemporaryDirectory(prefix="clk-") as folder, running_daemon(Path(folder)) as daemon:
        papers = Path(folder) / "papers"
        (papers / "deep" / ".hidden").mkdir(parents=True)
        (papers / "node_modules").mkdir()
        (papers / "report.pdf").write_bytes(pdf("The kingfisher report.", title="Kingfishers"))
        (papers / "deep" / "letter.docx").write_bytes(docx("Dear heron.", heading="Letter"))
        (papers / "notes.md").write_text("# Notes\n\n" + "The wagtail runs along the bank. " * 60)
        for left_out in ("node_modules/x.md", "deep/.hidden/y.md", ".z.md", "picture.png"):
            (papers / left_out).write_text("left out")
        (papers / "link.md").symlink_to(papers / "notes.md")
        ran = ctl(daemon, "docs", "add", str(papers))
        assert (ran.code, ran.out.startswith("3 stored in ")) == (0, True), ran.err
        yield daemon


def papers(daemon: DaemonProcess) -> Path:
    return daemon.home / "papers"


def chunk_ids(daemon: DaemonProcess) -> list[str]:
    shown = ctl(daemon, "docs", "show", str(papers(daemon) / "notes.md"), "--chunks", "--json")
    return [chunk["id"] for chunk in shown.json]


def test_docs_add_of_a_folder_skips_hidden_files_and_links(library: DaemonProcess) -> None:
    listed = ctl(library, "docs", "list", "--json").json["documents"]
    assert {Path(one["source"]).name for one in listed} == {"report.pdf", "letter.docx", "notes.md"}
    assert {one["title"] for one in listed} == {"Kingfishers", "Letter", "Notes"}


def test_docs_add_again_skips_unchanged_files(library: DaemonProcess) -> None:
    ran = ctl(library, "docs", "add", ".", cwd=papers(library))
    assert ran.out.startswith("3 unchanged in ")


def test_docs_add_names_unreadable_files_and_adds_the_others(shared_daemon: DaemonProcess, tmp_path: Path) -> None:
    (tmp_path / "bad.pdf").write_bytes(pdf("x", password="y"))
    (tmp_path / "good.txt").write_text("good")
    ran = ctl(shared_daemon, "docs", "add", str(tmp_path / "bad.pdf"), str(tmp_path / "good.txt"))
    assert ran.code == 4
    assert "1 stored, 1 failed" in ran.out
    assert f"{tmp_path}/bad.pdf: it is encrypted: remove its password first\n" in ran.err
    result = ctl(shared_daemon, "docs", "add", str(tmp_path), "--json")
    assert result.code == 4
    assert result.json["result"]["unchanged"] == 1


def test_docs_add_shows_progress_on_a_terminal(shared_daemon: DaemonProcess, tmp_path: Path) -> None:
    mixed(tmp_path / "many", 100)
    written = on_a_terminal(shared_daemon, "docs", "add", str(tmp_path / "many"), COLUMNS="80")
    assert "━" in written
    assert "100 stored" in written


def test_docs_add_of_standard_input_uses_its_source(shared_daemon: DaemonProcess) -> None:
    url = "https://example.com/guide.html"
    words = ("docs", "add", "-", "--source", url, "--meta", "team=core", "--title", "Guide")
    ran = ctl(shared_daemon, *words, typed="<p>Piped words.</p>")
    assert ran.out == "Guide: stored, 1 chunk.\n"
    shown = ctl(shared_daemon, "docs", "show", url)
    assert "meta.team  core" in shown.out
    assert "Piped words." in shown.out
    assert ctl(shared_daemon, "docs", "add", "-", "--json", typed="plain").json["outcome"] == "stored"


def test_docs_show_accepts_id_prefix_and_path(library: DaemonProcess) -> None:
    path = papers(library) / "notes.md"
    by_path = ctl(library, "docs", "show", str(path), "--json").json
    assert ctl(library, "docs", "show", by_path["document"]["id"], "--json").json == by_path
    assert ctl(library, "docs", "show", "notes.md", "--json", cwd=papers(library)).json == by_path
    assert ctl(library, "docs", "show", str(path), "--text").out == path.read_text() + "\n"
    shown = ctl(library, "docs", "show", str(path))
    assert "markdown" in shown.out
    assert "# Notes" in shown.out
    missing = ctl(library, "docs", "show", "nothing")
    assert (missing.code, missing.err) == (1, "Error: document not found: nothing\n")


def test_docs_list_is_filtered_and_fits_the_terminal(library: DaemonProcess) -> None:
    assert [one["kind"] for one in ctl(library, "docs", "list", "--kind", "pdf", "--json").json["documents"]] == ["pdf"]
    below = ctl(library, "docs", "list", "--source", str(papers(library) / "deep"), "--all", "--json").json
    assert [one["title"] for one in below["documents"]] == ["Letter"]
    for words in (("docs", "list"), ("docs", "show", str(papers(library) / "notes.md"), "--chunks")):
        lines = ctl(library, *words, COLUMNS="60").out.splitlines()
        assert lines
        assert all(len(line) <= 60 for line in lines)
    assert "There are more" in ctl(library, "docs", "list", "--limit", "1").err


def test_search_shows_file_and_lines_of_hits_in_documents(library: DaemonProcess) -> None:
    ran = ctl(library, "search", "kingfisher", "--source", "documents", "--limit", "1")
    assert f"{papers(library)}/report.pdf:1" in ran.out


def test_graph_shows_links_walks_and_prunes(library: DaemonProcess) -> None:
    first, *_, last = chunk_ids(library)
    linked = ctl(library, "graph", "link", first, "elaborates", last, "--weight", "0.3", "--description", "at the end")
    assert linked.out == "Linked.\n"
    assert ctl(library, "graph", "link", first, "elaborates", last, "--weight", "0.1").out.startswith("Kept")
    edges = ctl(library, "graph", "edges", first, "--json").json
    assert {one["relation"] for one in edges["out"]} == {"sequence", "elaborates"}
    assert edges["in"] == []
    shown = ctl(library, "graph", "edges", first, COLUMNS="80").out
    assert "elaborates" in shown
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert ctl(library, "graph", "edges", first[:8], COLUMNS="80").out == shown  # by the ids as they are shown
    walked = ctl(library, "graph", "walk", first[:8], "--relation", "elaborates")
    assert "0.210" in walked.out
    assert "elaborates→" in walked.out
    assert (
        ctl(library, "graph", "walk", last, "--relation", "elaborates", "--direction", "out").err
        == "No other chunks can be reached.\n"
    )
    assert ctl(library, "graph", "prune", "--min-weight", "0.5", "--dry-run").out.startswith("Would remove 1 edge")
    assert ctl(library, "graph", "prune", "--min-weight", "0.5", "--json").json["weak"] == 1
    assert "no chunk" in ctl(library, "graph", "link", first, "elaborates", "nobody").err


def test_docs_rm_asks_for_confirmation(shared_daemon: DaemonProcess, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("something")
    ctl(shared_daemon, "docs", "add", str(file))
    assert "Would remove something (1 chunk, 0 edges)" in ctl(shared_daemon, "docs", "rm", str(file), "--dry-run").out
    assert ctl(shared_daemon, "docs", "rm", str(file), typed="n\n").code == 1
    assert ctl(shared_daemon, "docs", "show", str(file)).code == 0
    assert ctl(shared_daemon, "docs", "rm", str(file), "--yes").out.startswith("Removed something")
    assert ctl(shared_daemon, "docs", "show", str(file)).code == 1
    assert file.exists()


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("docs", "add"), 2, "Missing argument"),
        (("docs", "add", "/nowhere/at/all"), 1, "There is no /nowhere/at/all"),
        (("docs", "add", ".", "--source", "x"), 2, "--source"),
        (("docs", "add", ".", "--meta", "novalue"), 2, "KEY=VALUE"),
        (("docs", "add", ".", "--strategy", "magic"), 2, "magic"),
        (("graph", "link", "a", "likes", "b"), 2, "likes"),
        (("graph", "walk", "nobody"), 1, "no chunk"),
        (("graph", "edges", "nobody"), 1, "no chunk"),
    ],
)
def test_docs_and_graph_errors_say_what_is_wrong(
    library: DaemonProcess, words: tuple[str, ...], code: int, says: str
) -> None:
    ran = ctl(library, *words, cwd=papers(library))
    assert ran.code == code
    assert says in ran.err
