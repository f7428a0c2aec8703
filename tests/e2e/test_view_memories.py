"""Memories in the web view, as a person changes and compares them."""

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.browser import CHROMIUM, Watched, chromium, opened
from helpers.daemon import DaemonProcess, RawConnection, running_daemon
from helpers.view import RunningView, running_view
from helpers.waiting import eventually
from playwright.sync_api import Browser, Page, expect

pytestmark = pytest.mark.skipif(
    CHROMIUM is None and os.environ.get("CLANKERS_E2E") != "required", reason="Chromium is not installed"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def view(shared_daemon: DaemonProcess) -> Iterator[RunningView]:
    """A view of the daemon of this file."""
    with running_view(shared_daemon) as running:
        yield running


@pytest.fixture
def page(browser: Browser, view: RunningView, rpc: RawConnection) -> Iterator[Watched]:
    """A page of the view; what the test stores is deleted afterwards."""
    with opened(browser, view) as watched:
        yield watched


def add(rpc: RawConnection, content: str, **fields: Any) -> str:
    return str(rpc.call("memory.add", content=content, force=True, **fields)["memory"]["id"])


def choose(shown: Page, *texts: str) -> None:
    for text in texts:
        shown.locator(".card.memory", has_text=text).get_by_label("Choose this memory").check()


def contents(rpc: RawConnection) -> set[str]:
    return {memory["content"] for memory in rpc.call("memory.list", scopes=["*"])["memories"]}


def later_than(moment: int) -> None:
    eventually(lambda: int(time.time() * 1000) > moment, "a millisecond passes")


def test_two_times_are_compared(browser: Browser) -> None:
    with tempfile.TemporaryDirectory(prefix="clk-") as home, running_daemon(Path(home)) as daemon:
        with daemon.connect() as rpc:
            start = int(time.time() * 1000) - 9 * 86_400_000
            old = {"id": "old-memory-1", "content": "The port is 8080", "createdAt": start, "scope": "global"}
            rpc.call("memory.import", memories=[old, old | {"id": "old-memory-2", "content": "Mondays are free"}])
            decided = int(time.time() * 1000)
            later_than(decided)
            rpc.call("memory.update", id="old-memory-1", content="The port is 9090")
            rpc.call("memory.delete", id="old-memory-2")
            add(rpc, "Alice owns billing")
        with running_view(daemon) as view, opened(browser, view) as page:
            shown = page.visit("/memories")
            shown.get_by_role("button", name="Compare with another time").click()
            compared = shown.locator(".comparison")
            expect(compared.locator("h2")).to_contain_text("1 added, 1 changed, 1 no longer held")
            expect(compared.locator("ins")).to_have_text("9090")
            expect(compared.locator("del")).to_have_text("8080")
            expect(compared).to_contain_text("Alice owns billing")
            expect(compared).to_contain_text("Mondays are free")

            slider = shown.get_by_label("Compare with what was known at this time")
            slider.focus()
            slider.press("Home")
            shown.wait_for_url(f"**compare={start}**")
            shown = page.visit(f"/memories?compare={start}&asof={decided}")
            expect(shown.locator(".card.memory")).to_have_count(2)
            expect(shown.locator(".card.memory", has_text="The port is 8080")).to_be_visible()
            expect(shown.get_by_label("Choose this memory")).to_have_count(0)
            shown.get_by_role("button", name="End the comparison").click()
            expect(compared).to_have_count(0)
            shown.get_by_role("button", name="Back to now").click()
            expect(shown.locator(".card.memory", has_text="The port is 9090")).to_be_visible()


def test_memories_are_merged_with_undo(page: Watched, rpc: RawConnection) -> None:
    texts = {"We deploy on Tuesdays", "Deploys happen each Tuesday", "Tuesday is the day of the deploy"}
    for text in sorted(texts):
        add(rpc, text)
    add(rpc, "A fact of somebody", scope="user:ada")
    shown = page.visit("/memories")
    choose(shown, "We deploy on Tuesdays", "A fact of somebody")
    bar = shown.get_by_label("Change the chosen memories")
    expect(bar).to_contain_text("Only memories of one scope can be merged")
    expect(bar.get_by_role("button", name="Merge")).to_have_count(0)
    shown.reload()
    choose(shown, *texts)
    bar.get_by_role("button", name="Merge").click()
    dialog = shown.get_by_role("dialog")
    dialog.get_by_label("Deploys happen each Tuesday").check()
    expect(dialog.get_by_label("Text of the memory that stays")).to_have_value("Deploys happen each Tuesday")
    dialog.get_by_role("button", name="Cancel").click()
    assert contents(rpc) >= texts

    bar.get_by_role("button", name="Merge").click()
    dialog.get_by_label("Deploys happen each Tuesday").check()
    dialog.get_by_label("Text of the memory that stays").fill("We deploy on Tuesdays, each week")
    dialog.get_by_role("button", name="Merge").click()
    expect(shown.locator(".card.memory")).to_have_count(2)
    assert contents(rpc) == {"We deploy on Tuesdays, each week", "A fact of somebody"}
    shown.locator(".card.memory", has_text="each week").locator("a").click()
    expect(shown.locator(".worddiff").first).to_be_visible()
    expect(shown.locator("li", has_text="this one")).to_have_count(2)
    shown.go_back()
    shown.get_by_role("button", name="Undo").click()
    expect(shown.locator(".card.memory")).to_have_count(4)
    assert contents(rpc) == texts | {"A fact of somebody"}


def test_memories_are_pinned_and_restored_in_bulk_with_undo(page: Watched, rpc: RawConnection) -> None:
    add(rpc, "Fact one", pinned=True)
    gone = add(rpc, "Fact two")
    shown = page.visit("/memories")
    bar = shown.get_by_label("Change the chosen memories")
    pinned = shown.locator(".card.memory .badge", has_text="pinned")
    shown.get_by_label("Choose all shown").check()
    expect(bar).to_contain_text("2 chosen")
    bar.get_by_role("button", name="Pin", exact=True).click()
    expect(pinned).to_have_count(2)
    shown.get_by_role("button", name="Undo").click()
    expect(pinned).to_have_count(1)  # as before: one was pinned already

    rpc.call("memory.delete", id=gone)
    shown = page.visit("/memories")
    shown.locator(".facet button", has_text="deleted").click()
    expect(shown.locator(".card.memory")).to_have_count(1)
    choose(shown, "Fact two")
    bar.get_by_role("button", name="Restore").click()
    expect(shown.locator(".card.memory")).to_have_count(0)
    assert contents(rpc) == {"Fact one", "Fact two"}
    shown.get_by_role("button", name="Undo").last.click()
    expect(shown.locator(".card.memory")).to_have_count(1)
    assert contents(rpc) == {"Fact one"}


def test_superseded_memory_names_its_successor_and_is_restored(page: Watched, rpc: RawConnection) -> None:
    old = add(rpc, "The API listens on port 8080")
    add(rpc, "The API listens on port 9090", supersedes=old)
    shown = page.visit(f"/memory?id={old}")
    expect(shown.locator(".hint")).to_contain_text("It was replaced by")
    shown.get_by_role("link", name="a newer memory").click()
    expect(shown.locator(".big")).to_have_text("The API listens on port 9090")
    expect(shown.locator(".worddiff ins")).to_have_text("9090")
    shown.go_back()
    shown.get_by_role("button", name="Restore").click()
    expect(shown.locator(".hint")).to_have_count(0)
    assert contents(rpc) == {"The API listens on port 8080", "The API listens on port 9090"}


def test_item_that_was_contradicted_is_marked_in_recall(page: Watched, rpc: RawConnection) -> None:
    rpc.call("daemon.configure", key="recall_seconds", value=60)
    fact = "The invoice exporter rounds cents with Decimal quantize in rounding.py since the incident."
    memory = add(rpc, fact, importance=0.9)
    prompt = "How does the invoice exporter round cents?"
    asked = {"id": "asked", "sessionId": "corrected", "role": "user", "textContent": prompt}
    rpc.call("upsertMessage", message=asked)
    event = {"hook_event_name": "UserPromptSubmit", "session_id": "corrected", "cwd": "/p", "prompt": prompt}
    eventually(lambda: rpc.call("recall.hook", harness="codex", event=event)["output"], "it is told")
    answer = {"id": "answer", "sessionId": "corrected", "role": "assistant", "textContent": "It truncates them now."}
    rpc.call("upsertMessage", message=answer)
    newer = "The invoice exporter truncates the amounts."
    rpc.call("memory.add", content=newer, supersedes=memory, sessionId="corrected")

    shown = page.visit("/recall")
    item = shown.locator(".told li", has_text="Decimal quantize")
    expect(item.locator(".badge.bad")).to_have_text("contradicted")
    shown.get_by_label("Views of recall").get_by_text("By item").click()
    row = shown.locator(".ledger tr", has_text="Decimal quantize")
    expect(row).to_be_visible()
    headings = shown.locator(".ledger thead th").all_inner_texts()
    expect(row.locator("td").nth(headings.index("Contradicted"))).to_have_text("1")
    shown.get_by_label("Views of recall").get_by_text("Injections").click()
    item.locator("a").click()
    expect(shown.locator("td .badge.bad")).to_have_text("contradicted")
    expect(shown.locator(".hint")).to_contain_text("It was replaced by")
