"""The registry of harnesses: the daemon's modules and the clients' list agree."""

from pathlib import Path

from clankers.ctl.plugin import HARNESSES as PLUGINS
from clankers_protocol import harnesses
from clankersd.capture.harnesses import HARNESSES


def test_every_listed_harness_has_a_module() -> None:
    assert {*harnesses.NAMES, "generic"} == set(HARNESSES)


def test_importable_harnesses_have_a_history_to_read() -> None:
    with_history = {name for name, harness in HARNESSES.items() if harness.find_history}
    assert with_history == set(harnesses.IMPORTABLE)
    for name in with_history:
        assert HARNESSES[name].transcript_reader or HARNESSES[name].read_history


def test_harnesses_with_a_plugin_are_those_that_ctl_can_install() -> None:
    assert set(PLUGINS) == set(harnesses.WITH_PLUGIN)


def test_page_of_harnesses_is_generated_from_the_registry() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "harnesses.md"
    assert page.read_text("utf-8") == harnesses.conformance_page(), "run make docs"


def test_harnesses_whose_files_tell_more_have_a_reader_of_them() -> None:
    for name in ("claude-code", "codex", "copilot", "gemini", "pi", "qwen"):
        assert HARNESSES[name].transcript_reader
        assert HARNESSES[name].list_activity_files
