"""A session as Markdown and as HTML."""

from html.parser import HTMLParser

import pytest

from clankers.session_export import to_html, to_markdown
from clankers_protocol.sessions import Compaction, Message, Session, SessionError, TimelineEntry, Tool

HOSTILE = "</pre><script>alert(1)</script> \x1b]0;title\x07 \u202egnp.exe <img src=x onerror=y> [a](javascript:b)"


def entries() -> list[TimelineEntry]:
    return [
        TimelineEntry("message", 1, message=Message("m1", "s", role="user", text_content=f"Why? {HOSTILE}")),
        TimelineEntry(
            "tool", 2, tool=Tool("t1", "s", tool_name=HOSTILE, tool_input='{"command": "ls"}', tool_output="```\nx")
        ),
        TimelineEntry("error", 3, error=SessionError("e1", "s", error_type=HOSTILE, error_message=HOSTILE)),
        TimelineEntry(
            "compaction", 4, compaction=Compaction("c1", "s", tokens_before=9, tokens_after=3, summary=HOSTILE)
        ),
    ]


class Tags(HTMLParser):
    """Collects the elements and the text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert not [name for name, _ in attrs if name.startswith("on") or name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_html_holds_stored_text_as_text_only() -> None:
    page = "".join(to_html(Session("s", title=HOSTILE), entries()))
    parsed = Tags()
    parsed.feed(page)
    assert not parsed.tags & {"script", "img", "a", "iframe", "object", "link"}
    assert "alert(1)" in parsed.text
    assert "\x1b" not in page
    assert "\u202e" not in page


def test_html_shows_markdown_of_messages_without_anything_that_is_fetched() -> None:
    text = "Use **one** pass:\n\n```python\nx < 1\n```\n\n[docs](https://example.org/a) ![pixel](https://example.org/p.png)"
    message = TimelineEntry("message", 1, message=Message("m", "s", role="assistant", text_content=text))
    log = TimelineEntry("message", 2, message=Message("n", "s", role="user", text_content="**x** " * 20_000))
    page = "".join(to_html(Session("s"), [message, log]))
    assert "<strong>one</strong>" in page
    assert '<pre><code class="language-python">x &lt; 1\n</code></pre>' in page
    assert '<a href="https://example.org/a">docs</a>' in page
    assert "<img" not in page
    assert page.count("<strong>") == 1


def test_markdown_fences_are_longer_than_those_in_the_text() -> None:
    text = "".join(to_markdown(Session("s", title="Fix the login"), entries()))
    assert text.startswith("# Fix the login\n")
    assert "````\n```\nx\n````" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("render", [to_markdown, to_html])
def test_export_holds_every_kind_of_entry(render: type) -> None:
    text = "".join(render(Session("s"), entries()))
    for part in ("Why?", "ls", "Context compacted", "Error:"):
        assert part in text
