"""The wheel: what it depends on where, and what it carries."""

import importlib.util
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

HOOK = Path(__file__).parents[2] / "hatch_build.py"


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip("hatchling")
    monkeypatch.delenv("CLANKERS_WHEEL_PLATFORM", raising=False)
    spec = importlib.util.spec_from_file_location("hatch_build", HOOK)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def dependencies(hook: ModuleType) -> list[str]:
    config = {"dependencies": ["anyio"], "not-on-musl": ["sqlite-vec"]}
    metadata: dict[str, list[str]] = {}
    hook.Dependencies(str(HOOK.parent), config).update(metadata)
    return metadata["dependencies"]


def tag(hook: ModuleType, version: str = "standard") -> str | None:
    build_data: dict[str, str] = {}
    hook.PlatformTag.initialize(hook.PlatformTag.__new__(hook.PlatformTag), version, build_data)
    return build_data.get("tag")


def test_wheel_for_glibc_or_macos_depends_on_everything(hook: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    for platforms in (["manylinux_2_36_x86_64", "linux_x86_64"], ["macosx_14_0_arm64"]):
        monkeypatch.setattr(hook, "platform_tags", lambda platforms=platforms: iter(platforms))
        assert dependencies(hook) == ["anyio", "sqlite-vec"]
        assert tag(hook) is None


def test_wheel_for_musl_leaves_out_what_has_no_wheels(hook: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook, "platform_tags", lambda: iter(["musllinux_1_2_x86_64", "linux_x86_64"]))
    monkeypatch.setattr(hook.sys, "platform", "linux")
    assert dependencies(hook) == ["anyio"]
    assert tag(hook) == "py3-none-musllinux_1_2_x86_64"
    assert tag(hook, "editable") is None


def test_wheel_for_musl_can_be_built_elsewhere(hook: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLANKERS_WHEEL_PLATFORM", "musllinux_1_2_aarch64")
    assert dependencies(hook) == ["anyio"]
    assert tag(hook) == "py3-none-musllinux_1_2_aarch64"


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_run_installs_only_what_running_needs_and_says_what_it_does(tmp_path: Path) -> None:
    command = ["make", "-n", "run", f"VENV={tmp_path}/venv"]
    planned = subprocess.run(command, cwd=HOOK.parent, capture_output=True, text=True, check=True).stdout
    assert "[dev]" not in planned
    assert "-e ." in planned
    assert "without the development tools" in planned
    assert "--quiet" not in planned
