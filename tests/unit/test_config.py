"""Settings: each source over the one before, every mistake named."""

import re
from pathlib import Path

import pytest

from clankersd.config import Config, ConfigError, load, write_setting


def test_without_anything_the_defaults_stand(tmp_path: Path) -> None:
    loaded = load(tmp_path / "none.toml", {}, {})
    assert loaded.config == Config()
    assert {setting.origin for setting in loaded.describe().settings} == {"default"}


def test_flags_beat_the_environment_beats_the_file(tmp_path: Path) -> None:
    path = tmp_path / "clankers.toml"
    path.write_text('log_level = "error"\nquery_rows = 5\nlog_retention_days = 3\n')
    environ = {"CLANKERS_LOG_LEVEL": "warn", "CLANKERS_QUERY_ROWS": "6"}
    loaded = load(path, {"log_level": "debug"}, environ)
    assert (loaded.config.log_level, loaded.config.query_rows, loaded.config.log_retention_days) == (
        "debug",
        6,
        3,
    )
    origins = {setting.key: setting.origin for setting in loaded.describe().settings}
    assert (origins["log_level"], origins["query_rows"], origins["log_retention_days"]) == (
        "flag",
        "environment",
        "file",
    )
    assert origins["durability"] == "default"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("log_levl = 'info'", "log_levl"),
        ("log_level = 'loud'", "one of debug, info, warn, error"),
        ("query_rows = 0", "query_rows"),
        ("query_rows = 'many'", "query_rows"),
        ("durability = true", "durability"),
        ("not toml", "clankers.toml"),
    ],
)
def test_wrong_key_or_value_in_the_file_is_named(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "clankers.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=named):
        load(path, {}, {})


def test_wrong_variable_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="CLANKERS_QUERY_SECONDS"):
        load(tmp_path / "none.toml", {}, {"CLANKERS_QUERY_SECONDS": "soon"})


def test_writing_a_setting_keeps_the_rest_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "clankers.toml"
    write_setting(path, "query_rows", 7)
    path.write_text(f"# mine\n{path.read_text()}log_level = 'warn' # loud enough\n")
    write_setting(path, "query_rows", "9")
    assert path.read_text() == "# mine\nquery_rows = 9\nlog_level = 'warn' # loud enough\n"
    write_setting(path, "query_rows", None)
    assert path.read_text() == "# mine\nlog_level = 'warn' # loud enough\n"


def test_writing_a_wrong_setting_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "clankers.toml"
    for key, value in (("nonsense", 1), ("query_rows", -1), ("log_level", "loud"), ("nonsense", None)):
        with pytest.raises(ConfigError):
            write_setting(path, key, value)
    assert not path.exists()


def test_password_of_the_database_is_not_shown(tmp_path: Path) -> None:
    for url in (
        "postgresql://me:hush@host/db",
        "postgresql://host/db?user=me&password=hush&sslmode=require",
        "postgresql://me:hu:sh@host:5432/db",
        "postgres://:hush@/db?host=/run",
    ):
        shown = load(tmp_path / "none.toml", {}, {"CLANKERS_DATABASE_URL": url}).describe()
        [setting] = [one for one in shown.settings if one.key == "database_url"]
        assert not {"hush", "hu", "sh"} & set(re.split(r"\W", setting.value))
        assert "***" in setting.value
