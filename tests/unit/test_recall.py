"""Recall: trivial prompts, and the block that is put into a prompt."""

from dataclasses import replace
from typing import Any, cast

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clankers_protocol.errors import DeadlineExceeded
from clankersd.capture.harnesses import find_occasion
from clankersd.capture.harnesses.base import Occasion
from clankersd.config import Config
from clankersd.recall.answers import Answer
from clankersd.recall.block import CLOSING, OPENING, Block, Item, shorten
from clankersd.recall.recall import Target, _recall, fill_block
from clankersd.recall.skip import names_no_subject, why_trivial
from clankersd.recall.sources import PASSAGES, PromptMatches
from clankersd.search.engine import SearchEngine


@pytest.mark.parametrize(
    ("prompt", "why"),
    [
        ("", "no words"),
        ("   \n", "no words"),
        ("???", "no words"),
        ("👍", "no words"),
        ("/clear", "a slash command"),
        ("/compact keep the plan", "a slash command"),
        ("/clankers:recall the retry budget", "a slash command"),
        ("<command-name>/model</command-name>", "the harness's own message"),
        ("<local-command-stdout>Set model</local-command-stdout>", "the harness's own message"),
        ("<task-notification>agent done</task-notification>", "the harness's own message"),
        ("hi", "a greeting"),
        ("Hello there!", "a greeting"),
        ("good morning", "a greeting"),
        ("Guten Tag", "a greeting"),
        ("你好", "a greeting"),
        ("yes", "an affirmation"),
        ("Yes, please do it.", "an affirmation"),
        ("ok go ahead", "an affirmation"),
        ("LGTM, thanks!", "an affirmation"),
        ("continue", "an affirmation"),
        ("no, stop", "an affirmation"),
        ("好的", "an affirmation"),
        ("да, дальше", "an affirmation"),
        ("that looks great", "an affirmation"),
        ("y", "an affirmation"),
        ("fix it", "too short"),
        ("why CI?", "too short"),
        ("1", "too short"),
    ],
)
def test_trivial_prompts_are_skipped_with_a_reason(prompt: str, why: str) -> None:
    assert why_trivial(prompt) == why


@pytest.mark.parametrize(
    "prompt",
    [
        "why does the spool replay twice?",
        "fix the parser",
        "when do we deploy",
        "/home/me/app/server.py crashes on start",
        "yes, and also rename the retry budget to attempts",
        "hello, can you look at the login page",
        "修复登录页面",
        "ログインを直して",
        "refactor",
        "<div> is not closed in the header template",
        "what did we decide about sqlite-vec",
    ],
)
def test_other_prompts_are_not_skipped(prompt: str) -> None:
    assert why_trivial(prompt) is None


def item(id_: str = "m1", text: str = "Use pnpm here.", heading: str = "Memories", longest: int = 300) -> Item:
    return Item(heading, id_, "preference", text, longest)


def test_block_is_labelled_and_lists_its_ids() -> None:
    block = Block(1000)
    assert block.text == ""
    assert block.add(item())
    assert block.add(item("s1", "Fixed the spool.", "Recent sessions"))
    assert block.text == "\n".join(
        [
            OPENING,
            "\nMemories:\n- [m1] preference: Use pnpm here.",
            "\nRecent sessions:\n- [s1] preference: Fixed the spool.",
            CLOSING,
        ]
    )
    assert block.ids == ["m1", "s1"]


def test_block_contains_an_id_once() -> None:
    block = Block(1000)
    assert block.add(item())
    assert not block.add(item())
    assert block.text.count("pnpm") == 1


@given(
    st.integers(500, 9000),
    st.lists(st.tuples(st.text(min_size=1, max_size=20), st.text(max_size=2000)), max_size=30),
)
def test_block_stays_within_its_limit_and_cannot_be_closed_from_inside(most: int, texts: list[tuple[str, str]]) -> None:
    block = Block(most)
    for number, (heading, text) in enumerate(texts):
        block.add(Item(heading.replace("<", ""), f"id{number}", "about", text, 500))
    assert len(block.text) <= most
    assert block.text.count(CLOSING) == (1 if block.ids else 0)


def test_block_without_headings_leaves_out_items_that_may_not_be_shortened() -> None:
    block = Block(60, "<memories>", "</memories>")
    assert not block.add(Item("", "m1", "fact", "long " * 20, 500, may_shorten=False))
    assert block.add(Item("", "m2", "fact", "It is short.", 500, may_shorten=False))
    assert block.text == "<memories>\n- [m2] fact: It is short.\n</memories>"


def test_shorten_cuts_between_words() -> None:
    assert shorten("one two three four", 12) == "one two …"
    assert shorten("short", 12) == "short"
    assert len(shorten("x" * 100, 30)) <= 30


@pytest.mark.parametrize(
    ("harness", "event"),
    [
        ("claude-code", {}),
        ("claude-code", {"hook_event_name": "Stop", "session_id": "s"}),
        ("claude-code", {"hook_event_name": "UserPromptSubmit", "prompt": "no session"}),
        ("claude-code", {"hook_event_name": "SessionStart", "source": "fork", "session_id": "s"}),
        ("claude-code", {"hook_event_name": 5, "session_id": ["s"]}),
        ("opencode", {"hook_event_name": "chat.message"}),
        ("generic", {"kind": "message", "sessionId": "s"}),
        ("of another world", {"hook_event_name": "SessionStart", "session_id": "s"}),
    ],
)
def test_at_other_events_nothing_is_told(harness: str, event: dict[str, object]) -> None:
    assert find_occasion(harness, event) is None


class FailingEngine:
    """A search engine whose reads take too long."""

    def build_filter(self, *_: Any) -> None:
        pass

    async def run(self, _: Any) -> None:
        raise DeadlineExceeded("the answer took longer than 30 s: ask for less")


@pytest.mark.anyio
async def test_recall_states_why_the_search_failed() -> None:
    target = Target("s", None, ["global"], frozenset(), ["prompt"], is_subagent=False)
    occasion = Occasion(None, "prompt", "s", None, "why does the exporter round?", "prompt")
    recall = await _recall(Config(), cast(Any, None), cast(SearchEngine, FailingEngine()), occasion, target)
    assert recall.degraded == "the search failed: the answer took longer than 30 s: ask for less"
    assert (recall.text, recall.reason) == ("", recall.degraded)


class StuckStore:
    """A store whose reads never return."""

    async def read(self, _: Any) -> None:
        await anyio.sleep_forever()


@pytest.mark.anyio
async def test_recall_has_the_passages_if_their_answers_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def matching_items(*_: Any) -> PromptMatches:
        return PromptMatches([passage("q", "Why does the exporter round?")], questions=["q"])

    monkeypatch.setattr("clankersd.recall.recall.matching_items", matching_items)
    target = Target("s", None, ["global"], frozenset(), ["prompt"], is_subagent=False)
    occasion = Occasion(None, "prompt", "s", None, "why does the exporter round?", "prompt")
    config = Config(recall_seconds=0.1)
    recall = await _recall(config, cast(Any, StuckStore()), cast(Any, None), occasion, target)
    assert (recall.ids, recall.degraded) == (["q"], "answers are missing: reading them took too long")


def passage(id_: str, text: str) -> Item:
    return Item(PASSAGES, id_, "user in a session", text, 180)


def test_answer_is_told_beside_its_question_if_there_is_no_room_for_it_as_a_passage() -> None:
    items = [passage("q", "Why does it crash? " * 6), passage("b", "It is blue. " * 12), passage("a", "Closed. " * 20)]
    answers = {"q": Answer("a", "The pool is closed now.")}
    roomy, beside = fill_block(2_000, items, answers)
    assert (roomy.ids, beside) == (["q", "b", "a"], set())
    assert "→" not in roomy.text
    tight, beside = fill_block(len(roomy.text) - 150, items, answers)
    assert (tight.ids, beside) == (["q", "b"], {"a"})
    assert "→ The pool is closed now.\n" in tight.text


def test_text_is_shortened_before_its_answer() -> None:
    asked = replace(passage("q", "Why does the renderer crash? " * 6), answer="The pool is closed now. " * 10)
    complete = asked.line(1_000)
    assert complete is not None
    assert 300 < len(complete) < 360
    start = len("- [q] user in a session: ")
    short = asked.line(start + 200)
    assert short is not None
    assert len(short) <= start + 200
    assert "Why does" in short
    assert len(short.split(" → ")[1]) > 100
    shorter = asked.line(start + 110)
    assert shorter is not None
    assert "→ The pool is closed now." in shorter
    assert "→" not in str(asked.line(start + 60))
    assert asked.line(start + 30) is None


@pytest.mark.parametrize(
    "prompt",
    [
        "run the tests again",
        "commit and push",
        "Run it again and show me the output",
        "explain that in more detail",
        "keep going until all tests pass",
        "yes, option 2 please",
        "can you summarise what you did?",
    ],
)
def test_routine_of_any_session_names_no_subject(prompt: str) -> None:
    assert names_no_subject(prompt)


@pytest.mark.parametrize(
    "prompt",
    [
        "how do we run the tests?",
        "why do the tests fail?",
        "where are the log files?",
        "fix issue 4711",
        "run the tests of the parser",
        "deploy it to staging",
        "revert the change of the retry budget",
    ],
)
def test_questions_and_other_words_name_a_subject(prompt: str) -> None:
    assert not names_no_subject(prompt)


@pytest.mark.parametrize("prompt", ["why was the LBVH rejected?", "why not OptiX?", "do we use JWT", "is TC52 done"])
def test_short_question_about_a_name_is_not_trivial(prompt: str) -> None:
    assert why_trivial(prompt) is None
