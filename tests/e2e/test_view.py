"""The web view in a real Chromium, as a person uses it."""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.harnesses import axe_script
from helpers.browser import CHROMIUM, NARROW, WIDE, Watched, chromium, opened
from helpers.ctl import ctl
from helpers.daemon import DaemonProcess, running_daemon
from helpers.fake_daemon import altered
from helpers.store import message
from helpers.view import RunningView, running_view
from helpers.waiting import eventually
from playwright.sync_api import Browser, expect
from tests.demo.week import fill, long_session

pytestmark = pytest.mark.skipif(
    CHROMIUM is None and os.environ.get("CLANKERS_E2E") != "required", reason="Chromium is not installed"
)

MESSAGES = 20_000
MAX_NODES = 4_500
SCREENSHOTS = Path(__file__).parents[2] / ".scratch" / "screenshots"
"""Screenshots of every page are kept here."""

PAGES = {
    "search": "/search?q=flush+before+close",
    "search-calls": "/search?q=passed&source=calls",
    "sessions": "/sessions",
    "recall": "/recall",
    "recall-searches": "/recall?show=searches",
    "recall-silent": "/recall?show=silent",
    "recall-items": "/recall?show=memories",
    "recall-sessions": "/recall?show=sessions",
    "memories": "/memories",
    "files": "/files",
    "file": "/file?path=/home/ada/src/shop/shop/export.py",
    "graph": "/graph",
    "overview": "/overview",
    "documents": "/documents",
    "skills": "/skills",
    "schedules": "/schedules",
    "index": "/index",
    "live": "/live",
}
HOSTILE = (
    "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'> [click](javascript:window.hacked=1) "
    "![image](http://127.0.0.1:9/x.png) </script><!-- \x1b[31mred `<b>` **<i>bold</i>** <svg onload=window.hacked=1> "
    "[a](data:text/html,<script>window.hacked=1</script>) ![b](data:image/svg+xml,<svg onload=window.hacked=1>) "
    "[c](JaVaScRiPt:window.hacked=1) [d](//127.0.0.1:9/d) <http://127.0.0.1:9/e> \u202eexe.fdp "
    "<link rel=stylesheet href=http://127.0.0.1:9/f.css> <style>@import 'http://127.0.0.1:9/g.css'</style> "
    "[h]: http://127.0.0.1:9/h\n\n![i][h] <iframe src=http://127.0.0.1:9/j></iframe> <base href=http://127.0.0.1:9/>"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def demo() -> Iterator[DaemonProcess]:
    """A daemon with the demo week and one session of 20,000 messages."""
    with tempfile.TemporaryDirectory(prefix="clk-") as path:
        home = Path(path)
        (home / "user").mkdir()
        with running_daemon(home, HOME=str(home / "user"), XDG_DATA_HOME=str(home / "user" / "share")) as daemon:
            with daemon.connect(timeout=120) as connection:
                fill(connection)
                long_session(connection, MESSAGES)
            yield daemon


@pytest.fixture(scope="module")
def demo_view(demo: DaemonProcess) -> Iterator[RunningView]:
    with running_view(demo) as view:
        yield view


@pytest.fixture
def page(browser: Browser, demo_view: RunningView) -> Iterator[Watched]:
    with opened(browser, demo_view) as watched:
        yield watched


def test_first_start_says_what_to_do_next(browser: Browser, fresh_daemon: DaemonProcess) -> None:
    with running_view(fresh_daemon) as view, opened(browser, view) as page:
        for path in (
            "/",
            "/search?q=anything",
            "/sessions",
            "/memories",
            "/recall",
            "/recall?show=memories",
            "/files",
            "/graph",
            "/documents",
            "/skills",
            "/schedules",
        ):
            shown = page.visit(path)
            expect(shown.locator(".empty h2")).to_be_visible()
            expect(shown.locator(".empty code").first).to_contain_text("clankers-ctl")


def test_capture_arrives_live_without_moving_the_page(browser: Browser, fresh_daemon: DaemonProcess) -> None:
    with running_view(fresh_daemon) as view, opened(browser, view) as page, fresh_daemon.connect() as connection:
        live = page.visit("/live")
        expect(live.locator("#state")).to_have_text("Live")
        session = {"id": "arriving", "title": "Arriving now", "projectPath": "/p", "source": "codex"}
        connection.call("upsertSession", session=session)
        connection.call("upsertMessage", message=message("m1", "arriving", "Hello"))
        expect(live.locator(".events tr", has_text="message").first).to_be_visible()

        reading = page.visit("/session?id=arriving")
        expect(reading.locator(".entry")).to_have_count(1)
        for number in range(40):
            connection.call("upsertMessage", message=message(f"n{number}", "arriving", f"line {number}\n\n" * 8))
        expect(reading.locator(".fresh button")).to_contain_text("40 new below")
        assert reading.evaluate("scrollY") == 0
        reading.locator(".fresh button").click()
        expect(reading.locator("#entry-n39")).to_be_in_viewport()


def test_many_tabs_share_one_stream(browser: Browser, fresh_daemon: DaemonProcess) -> None:
    with running_view(fresh_daemon) as view, opened(browser, view) as page, fresh_daemon.connect() as connection:
        tabs = [page.visit("/live"), *(page.page.context.new_page() for _ in range(8))]
        for tab in tabs[1:]:
            tab.goto(f"{view.origin}/live")
        for tab in tabs:
            expect(tab.locator("#state")).to_have_text("Live")
        connection.call("upsertSession", session={"id": "first-1", "projectPath": "/p"})
        for tab in tabs:
            expect(tab.locator(".events tr", has_text="first-1").first).to_be_visible()

        closed = tabs.pop(1)
        closed.goto("about:blank")
        tabs.pop(0).goto("about:blank")  # it held the stream
        connection.call("upsertSession", session={"id": "second-1", "projectPath": "/p"})
        for tab in tabs:
            expect(tab.locator(".events tr", has_text="second-1")).to_have_count(1)
            expect(tab.locator("#state")).to_have_text("Live")


def test_search_opens_the_exact_hit_highlighted(page: Watched) -> None:
    shown = page.visit("/sessions")
    shown.keyboard.press("/")
    shown.keyboard.type("closed before its buffer is flushed")
    shown.wait_for_url("**/search?q=*")
    hit = shown.locator(".hit-link", has_text="The writer is").first
    expect(hit).to_be_visible()
    expect(hit.locator("mark").first).to_be_visible()
    role = shown.locator(".facet button", has_text="assistant")
    counted = int(role.locator(".count").inner_text())
    role.click()
    shown.wait_for_url("**role=assistant**")
    expect(shown.locator(".facet button[aria-pressed=true] .count")).to_have_text(str(counted))
    expect(shown.locator("aside")).to_contain_text("Counts are of all stored texts")
    shown.go_back()
    hit.click()
    target = shown.locator(".entry.target")
    expect(target).to_be_in_viewport()
    expect(target).to_contain_text("before its buffer is flushed")
    expect(target.locator("mark").first).to_be_visible()
    shown.go_back()
    expect(shown.locator("#find-text")).to_have_value("closed before its buffer is flushed")
    expect(shown.locator(".hit-link").first).to_be_visible()


def test_tool_output_is_found_and_opened_at_the_word(page: Watched) -> None:
    shown = page.visit("/search?q=219+passed")
    shown.locator(".facet button", has_text="Tool input and output").click()
    shown.wait_for_url("**source=calls**")
    expect(shown.locator(".hint")).to_contain_text("Searched all")
    hit = shown.locator(".hit-link", has_text="219 passed in")
    expect(hit.locator("mark")).to_have_count(2)
    hit.click()
    target = shown.locator("details.entry.target[open]")
    expect(target.locator("pre mark", has_text="passed").first).to_be_in_viewport()
    shown.get_by_label("Find in this session").fill("219")
    shown.locator(".outline.found button", has_text="passed in").click()
    expect(target.locator("pre mark").first).to_be_in_viewport()


def test_keys_move_through_rows(page: Watched) -> None:
    shown = page.visit("/sessions")
    title = shown.get_by_label("Title contains")
    title.focus()
    for letter in "lexer":  # typing goes on while the list is read again
        shown.keyboard.type(letter, delay=120)
    shown.wait_for_url("**title=lexer**")
    expect(shown.locator(".session-row")).to_have_count(1)
    expect(title).to_be_focused()
    expect(title).to_have_value("lexer")
    shown.keyboard.press("Control+a")
    shown.keyboard.press("Delete")
    expect(shown.locator(".session-row").nth(3)).to_be_visible()
    shown.get_by_label("One turn").focus()
    shown.keyboard.press("Space")
    shown.wait_for_url("**short=show**")
    expect(shown.get_by_label("One turn")).to_be_focused()
    shown = page.visit("/sessions")
    shown.keyboard.press("j")
    shown.keyboard.press("j")
    titles = shown.locator(".session-row .title")
    second = titles.nth(1).inner_text()
    shown.keyboard.press("Enter")
    expect(shown.locator("h1")).to_have_text(second)
    expect(shown.locator("#main")).to_be_focused()
    shown.keyboard.press("?")
    expect(shown.locator("dialog")).to_contain_text("Search everything")


def test_long_session_opens_at_any_place_with_a_bounded_page(page: Watched) -> None:
    shown = page.visit("/session?id=long-session-0001")
    expect(shown.locator("#entry-long-m000000")).to_be_visible()
    assert page.node_count() < MAX_NODES
    last = f"long-m{MESSAGES - 1:06}"
    shown = page.visit(f"/session?id=long-session-0001&at={last}")
    expect(shown.locator(f"#entry-{last}")).to_be_in_viewport()
    assert page.node_count() < MAX_NODES
    shown.locator(".outline button").nth(40).click()
    expect(shown.locator("#entry-long-m000320")).to_be_in_viewport()
    for _ in range(30):
        shown.mouse.wheel(0, 3_000)
        shown.wait_for_timeout(20)
    eventually(lambda: page.node_count() < MAX_NODES, "windows far away are dropped")


def test_folded_call_is_built_when_it_is_opened_and_stays_open(page: Watched) -> None:
    shown = page.visit("/sessions")
    shown.get_by_text("CSV export drops the last row").click()
    edit = shown.locator("details.tool", has_text="Edit")
    expect(edit).to_be_visible()
    assert edit.locator(".diff").count() == 0
    edit.locator("summary").click()
    expect(edit.locator(".diff .added")).to_contain_text("flushes the last block")
    shown.wait_for_timeout(400)
    shown.reload()
    expect(shown.locator("details.tool", has_text="Edit").locator(".diff .added")).to_be_visible()
    shown.get_by_role("button", name="Show raw").click()
    expect(shown.locator("pre.plain").first).to_be_visible()
    assert "raw=1" in shown.url


def test_record_of_an_unknown_kind_is_a_neutral_card(browser: Browser, fresh_daemon: DaemonProcess) -> None:
    def with_unknown_kind(method: str, result: Any) -> Any:
        if method == "session.timeline":
            result["entries"][1] = {"kind": "hologram", "at": 1, "hologram": {"depth": ["<b>3</b>"]}}
        return result

    path = fresh_daemon.home / "newer.sock"
    with fresh_daemon.connect() as connection:
        for number in range(3):
            connection.call("upsertMessage", message=message(f"m{number}", "s", f"Text {number}"))
    with (
        altered(fresh_daemon.socket_path, path, with_unknown_kind),
        running_view(fresh_daemon, "--socket", str(path)) as view,
        opened(browser, view) as page,
    ):
        shown = page.visit("/session?id=s")
        card = shown.locator(".card.unknown")
        expect(card.locator("h3")).to_have_text("Unknown record: hologram")
        expect(card.locator("pre")).to_contain_text('"<b>3</b>"')
        expect(shown.locator(".entry.message")).to_have_count(2)


def test_memory_is_edited_forgotten_and_restored(page: Watched, demo: DaemonProcess) -> None:
    with demo.connect() as connection:
        added = connection.call("memory.add", content="The lamp is on the left.", force=True)["memory"]["id"]

        def stored() -> Any:
            return connection.call("memory.get", id=added, scopes=["*"])

        shown = page.visit(f"/memory?id={added}")
        shown.get_by_role("button", name="Edit").click()
        shown.get_by_label("Text of the memory").fill("The lamp is on the right.")
        shown.get_by_role("button", name="Save").click()
        expect(shown.locator(".big")).to_have_text("The lamp is on the right.")
        expect(shown.locator(".worddiff ins")).to_have_text("right")
        shown.get_by_role("button", name="Undo").click()
        expect(shown.locator(".big")).to_have_text("The lamp is on the left.")

        shown.get_by_role("button", name="Forget").click()
        shown.locator("dialog").get_by_role("button", name="Cancel").click()
        assert stored()["state"] == "current"
        shown.get_by_role("button", name="Forget").click()
        shown.locator("dialog").get_by_role("button", name="Forget").click()
        expect(shown.get_by_role("button", name="Restore")).to_be_visible()
        assert stored()["state"] == "deleted"
        shown.get_by_role("button", name="Undo").last.click()
        expect(shown.get_by_role("button", name="Forget")).to_be_visible()
        assert stored()["state"] == "current"
        assert stored()["accessCount"] == 0
        connection.call("memory.purge", id=added)


def test_memories_are_forgotten_in_bulk_with_undo(page: Watched, demo: DaemonProcess) -> None:
    with demo.connect() as connection:
        ids = [connection.call("memory.add", content=f"Bulk fact {n}", force=True)["memory"]["id"] for n in range(3)]
        shown = page.visit("/memories?query=Bulk")
        for box in shown.get_by_label("Choose this memory").all():
            box.check()
        shown.locator(".bulk").get_by_role("button", name="Forget").click()
        shown.locator("dialog").get_by_role("button", name="Forget").click()
        expect(shown.locator(".empty")).to_be_visible()
        shown.get_by_role("button", name="Undo").click()
        expect(shown.locator(".card.memory")).to_have_count(3)
        for one in ids:
            connection.call("memory.purge", id=one)


def test_graph_shows_the_neighbourhood_of_an_entity(page: Watched) -> None:
    shown = page.visit("/graph")
    shown.get_by_label("Find an entity").fill("invoi")
    shown.locator(".row", has_text="invoice").click()
    expect(shown.locator(".node.start")).to_contain_text("invoice")
    assert shown.locator(".edge.closed").count() == 1
    shown.get_by_label("Show what was known at this time").focus()
    shown.keyboard.press("Home")
    shown.wait_for_url("**asof=**")
    expect(shown.locator(".asof output")).to_contain_text("as it was on")
    shown.get_by_role("button", name="Back to now").click()
    shown.locator(".node", has_text="Decimal").last.click()
    shown.wait_for_url("**/graph?id=*")


def test_recall_shows_candidates_and_outcomes(page: Watched) -> None:
    shown = page.visit("/recall")
    expect(shown.locator(".recall-entry").first).to_be_visible()
    shown.locator("summary", has_text="candidates").first.click()
    expect(shown.locator(".candidates .gate").first).to_be_visible()
    shown.get_by_label("Prompt to try").fill("how do the exporters flush the BlockWriter?")
    shown.get_by_role("button", name="Try").click()
    expect(shown.locator(".try-card")).to_contain_text("It would be told")


def test_recall_shows_searches_silent_prompts_and_totals(page: Watched) -> None:
    shown = page.visit("/recall")
    tabs = shown.get_by_label("Views of recall")
    tabs.get_by_text("Searches").click()
    search = shown.locator(".recall-entry", has_text="tax rounding per line")
    search.locator("summary").click()
    expect(search.locator("td", has_text="keyword").first).to_be_visible()
    expect(search).to_contain_text("cut off after 8")
    tabs.get_by_text("Not told").click()
    silent = shown.locator(".recall-entry", has_text="Translate the column headings")
    silent.locator("summary").click()
    expect(silent.locator(".dropped .gate").first).to_be_visible()
    tabs.get_by_text("By item").click()
    row = shown.locator(".ledger tr", has_text="close the BlockWriter")
    expect(row.locator("td.num").nth(1)).to_have_text("1")  # used
    row.locator("a").click()
    expect(shown.locator(".recall-entry")).to_have_count(1)
    shown.go_back()
    tabs.get_by_text("By session").click()
    shown.locator(".ledger a", has_text="XML export").click()
    shown.wait_for_url("**/recall?session=*")
    tabs.get_by_text("Searches").click()
    expect(shown.locator(".recall-entry")).to_have_count(3)
    search.get_by_text("XML export for the accountant").click()
    expect(shown.locator(".entry.target")).to_contain_text("mcp__clankers__search")


def test_short_and_automated_sessions_are_listed_on_request(page: Watched) -> None:
    shown = page.visit("/sessions")
    rows = shown.locator(".session-row")
    expect(shown.get_by_text("not listed")).to_be_visible()
    hidden = shown.locator(".session-row", has_text="Name three good test names")
    expect(hidden).to_have_count(0)
    count = rows.count()
    shown.get_by_label("One turn").check()
    shown.wait_for_url("**short=show**")
    expect(rows.nth(count)).to_be_visible()
    expect(hidden).to_have_count(0)
    shown.get_by_label("Automated").check()
    expect(hidden.first).to_contain_text("likely automated")
    expect(shown.get_by_text("not listed")).to_have_count(0)


def test_key_goes_to_each_failure_in_turn(page: Watched) -> None:
    shown = page.visit("/session?id=long-session-0001")
    for expected in ("long-t000002", "long-t000066", "long-t000130"):
        shown.keyboard.press("e")
        expect(shown.locator(f"#entry-{expected}.target")).to_be_in_viewport()


def test_one_long_session_does_not_hide_other_hits(page: Watched) -> None:
    shown = page.visit("/search?q=flush+before+close")
    group = shown.locator(".group", has_text="A very long refactoring")
    expect(group.locator(".hit")).to_have_count(5)
    more = group.get_by_role("button", name="more hits here")
    expect(more).to_be_visible()
    more.click()
    assert group.locator(".hit").count() > 20


def test_cost_of_each_turn_is_visible(page: Watched) -> None:
    shown = page.visit("/sessions")
    shown.get_by_text("Rewrite the lexer with one").click()
    expect(shown.locator(".strip .turn.expensive")).to_have_count(1)
    expect(shown.locator(".strip .legend")).to_contain_text("most expensive")
    rows = shown.locator(".outline li")
    shares = rows.get_by_title("Its share of the session's cost").all_inner_texts()
    costs = [float(share.lstrip("~$")) for share in shares]
    assert len(costs) == rows.count()
    expensive = rows.filter(has_text="most expensive")
    expect(expensive).to_contain_text(f"{max(costs):.2f}")
    assert abs(sum(costs) - 2.91) < 0.05


def test_told_passage_leads_to_its_message(page: Watched) -> None:
    shown = page.visit("/recall")
    shown.locator(".told a", has_text="The same mistake as in the CSV export").first.click()
    expect(shown.locator(".entry.target")).to_contain_text("The same mistake as in the CSV export")
    assert "id=" in shown.url


def test_checks_repairs_and_backups_run_from_the_page(browser: Browser, fresh_daemon: DaemonProcess) -> None:
    with running_view(fresh_daemon) as view, opened(browser, view) as page, fresh_daemon.connect() as connection:
        connection.call("upsertMessage", message=message("m", "s", "Something to back up"))
        shown = page.visit("/index")
        shown.get_by_role("button", name="Run all checks").click()
        expect(shown.locator(".attention li").first).to_be_visible()
        if shown.get_by_role("button", name="Repair").count():
            shown.get_by_role("button", name="Repair").click()
            shown.locator("dialog").get_by_role("button", name="Repair").click()
            expect(shown.locator(".attention li").first).to_be_visible()
        shown.get_by_role("button", name="Back up now").click()
        shown.locator("dialog").get_by_role("button", name="Back up").click()
        expect(shown.get_by_text("verified")).to_be_visible()
        assert ctl(fresh_daemon, "backup", "list", "--json").json


def test_theme_is_switched_and_remembered(page: Watched) -> None:
    shown = page.visit("/overview")
    light = shown.evaluate("getComputedStyle(document.body).backgroundColor")
    shown.locator("#theme").click()
    dark = shown.evaluate("getComputedStyle(document.body).backgroundColor")
    assert light != dark
    shown.reload()
    page.wait()
    assert shown.evaluate("getComputedStyle(document.body).backgroundColor") == dark


def test_daemon_that_goes_away_shows_as_an_error_and_comes_back(browser: Browser, fresh_daemon: DaemonProcess) -> None:
    with running_view(fresh_daemon) as view, opened(browser, view) as page:
        shown = page.visit("/sessions")
        fresh_daemon.stop()
        expect(shown.locator("#state")).to_have_text("The daemon is away")
        shown.goto(f"{view.origin}/memories")
        expect(shown.locator(".error-box")).to_contain_text("clankersd")
        assert shown.locator(".empty").count() == 0
        fresh_daemon.close()
        fresh_daemon.start()
        expect(shown.locator("#state")).to_have_text("Live")
        shown.get_by_role("button", name="Try again").click()
        expect(shown.locator(".empty")).to_be_visible()
        page.problems = [one for one in page.problems if "503" not in one]


def test_stored_markup_never_runs(browser: Browser, fresh_daemon: DaemonProcess) -> None:
    with fresh_daemon.connect() as connection, running_view(fresh_daemon) as view, opened(browser, view) as page:
        session = {
            "id": "evil",
            "title": HOSTILE,
            "summary": HOSTILE,
            "projectPath": f"/tmp/{HOSTILE[:30]}",
            "source": HOSTILE,
        }
        connection.call("upsertSession", session=session | {"model": HOSTILE, "userPrompt": HOSTILE})
        connection.call("upsertMessage", message=message("m", "evil", HOSTILE) | {"role": HOSTILE})
        for number, role in enumerate(("user", "assistant", "assistant")):
            connection.call("upsertMessage", message=message(f"r{number}", "evil", HOSTILE) | {"role": role})
        tool = {"id": "t", "sessionId": "evil", "toolName": HOSTILE, "filePath": HOSTILE, "toolOutput": HOSTILE}
        edit = json.dumps({"file_path": HOSTILE, "old_string": HOSTILE, "new_string": HOSTILE + "x"})
        connection.call("upsertTool", tool=tool | {"toolInput": edit, "success": True})
        connection.call("upsertSessionError", sessionError={"id": "e", "sessionId": "evil", "errorMessage": HOSTILE})
        memory = connection.call("memory.add", content=HOSTILE, tags=["<script>"], force=True)["memory"]["id"]
        connection.call("entity.upsert", name="<img src=x onerror=window.hacked=1>", type="concept")
        connection.call("document.ingest", text=HOSTILE, title=HOSTILE, source="x", kind="markdown")
        connection.call("skill.create", name="evil", description=HOSTILE, instructions=HOSTILE)
        paths = [
            *PAGES.values(),
            "/session?id=evil",
            "/session?id=evil&raw=1",
            f"/memory?id={memory}",
            "/search?q=script",
            "/search?q=script&source=calls",
        ]
        for path in paths:
            shown = page.visit(path)
            for summary in shown.locator("main details:not([open]) > summary").all()[:6]:
                summary.click()
            assert shown.evaluate("window.hacked") is None, path
            assert shown.evaluate("document.querySelectorAll('main script, main img, main iframe').length") == 0, path
            links = shown.evaluate("[...document.querySelectorAll('a[href]')].map((one) => one.getAttribute('href'))")
            assert [one for one in links if not one.startswith(("/", "#", "http://", "https://"))] == []
            assert [one for one in links if one.startswith("//")] == []
            assert "\u202e" not in shown.locator("body").inner_text()
        for name in ("html", "markdown", "json"):
            exported = view.open().send("GET", f"/api/export?id=evil&format={name}").body
            assert "\u202e" not in exported.decode()
            if name == "html":
                file = fresh_daemon.home / "export.html"
                file.write_bytes(exported)
                check_exported(browser, file)


def check_exported(browser: Browser, file: Path) -> None:
    """Open an exported file from the disk, where no server sends a policy for it: nothing runs or is fetched."""
    context = browser.new_context()
    requested: list[str] = []
    shown = context.new_page()
    shown.on("request", lambda request: requested.append(request.url))
    shown.goto(file.as_uri())
    for summary in shown.locator("summary").all():
        summary.click()
    expect(shown.locator("h1").first).to_contain_text("<script>")
    assert requested == [file.as_uri()]
    assert shown.evaluate("window.hacked") is None
    assert shown.evaluate("document.querySelectorAll('script, img, svg, iframe, link, base').length") == 0
    links = shown.evaluate("[...document.querySelectorAll('a[href]')].map((one) => one.href)")
    assert [one for one in links if not one.startswith(("http://", "https://"))] == []
    context.close()


@pytest.mark.parametrize(("theme", "size"), [("light", WIDE), ("dark", WIDE), ("light", NARROW)])
def test_every_page_is_accessible_and_fits_the_window(
    browser: Browser, demo_view: RunningView, demo: DaemonProcess, theme: str, size: tuple[int, int]
) -> None:
    axe = axe_script().read_text()
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    with demo.connect() as connection:
        session = connection.call("session.list", query="Rewrite the lexer")["sessions"][0]["id"]
        memory = connection.call("memory.list", query="BlockWriter", scopes=["*"])["memories"][0]["id"]
        entity = connection.call("entity.list", query="invoice", scopes=["*"])["entities"][0]["id"]
    paths = PAGES | {
        "session": f"/session?id={session}",
        "memory": f"/memory?id={memory}",
        "graph-of-one": f"/graph?id={entity}",
    }
    with opened(browser, demo_view, size, theme) as page:
        for name, path in paths.items():
            shown = page.visit(path)
            assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} is too wide"
            shown.screenshot(path=SCREENSHOTS / f"{name}-{theme}-{size[0]}.png")
            shown.evaluate(axe)
            found = shown.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
            serious = [
                (one["id"], one["nodes"][0]["html"][:200]) for one in found if one["impact"] in ("serious", "critical")
            ]
            assert serious == [], name
