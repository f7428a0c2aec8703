"""The folders that clients compute are those that platformdirs finds for the daemon."""

import platformdirs
import pytest

from clankers_protocol.paths import user_folders


@pytest.mark.parametrize(
    "variables", [{}, {"XDG_DATA_HOME": "/elsewhere/data", "XDG_CONFIG_HOME": "/elsewhere/config"}]
)
def test_user_folders_are_those_of_platformdirs(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    folders = user_folders()
    assert (folders.data, folders.config) == (platformdirs.user_data_path(), platformdirs.user_config_path())
