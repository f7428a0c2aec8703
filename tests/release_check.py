"""Build the sdist and the wheel, install the wheel with uv, pipx or pip, and run the README's commands with it.

python -m tests.release_check
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
SECTIONS = ("Install", "First result", "Step by step", "Try it without installing anything")
NOT_HERE = ("make ", "clankers-ctl service install", "uv tool install")
"""Commands of the README that need a checkout, would change this machine, or are replaced here by other steps."""


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="clk-") as scratch:
        check(Path(scratch))
    print("release check passed")


def check(scratch: Path) -> None:
    run([sys.executable, "-m", "hatchling", "build", "-d", str(scratch / "dist")], cwd=ROOT)
    [wheel] = (scratch / "dist").glob("*.whl")
    [sdist] = (scratch / "dist").glob("*.tar.gz")
    print(f"built {sdist.name} and {wheel.name} ({wheel.stat().st_size / 1e6:.1f} MB)")
    bin_folder = install(scratch, wheel)
    environ = {
        "HOME": str(scratch / "home"),
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "CLANKERS_DATA_PATH": str(scratch / "home" / "data"),
    }
    (scratch / "home" / ".claude").mkdir(parents=True)  # a harness to connect
    try:
        for command in readme_commands():
            print(f"$ {command}")
            run(
                ["sh", "-c", command.replace("clankers-ctl setup", "clankers-ctl setup --yes")],
                environ,
                scratch / "home",
            )
    finally:
        run(["clankers-ctl", "daemon", "stop"], environ)


def install(scratch: Path, wheel: Path) -> Path:
    """Install the wheel as the README says, with uv or pipx; without them, into a virtualenv. Return its bin folder."""
    bin_folder = scratch / "bin"
    if shutil.which("uv"):
        environ = {**os.environ, "UV_TOOL_DIR": str(scratch / "tools"), "UV_TOOL_BIN_DIR": str(bin_folder)}
        run(["uv", "tool", "install", "--quiet", "--python", sys.executable, str(wheel)], environ)
    elif shutil.which("pipx"):
        environ = {**os.environ, "PIPX_HOME": str(scratch / "tools"), "PIPX_BIN_DIR": str(bin_folder)}
        run(["pipx", "install", "--quiet", str(wheel)], environ)
    else:
        venv.create(scratch / "venv", with_pip=True)
        bin_folder = scratch / "venv" / "bin"
        run([str(bin_folder / "pip"), "install", "--quiet", "--disable-pip-version-check", str(wheel)])
    return bin_folder


def readme_commands() -> list[str]:
    """Collect the shell commands of the README's sections for newcomers, one logical line each."""
    commands = []
    text = (ROOT / "README.md").read_text()
    for section in SECTIONS:
        body = text.split(f"## {section}\n")[1].split("\n## ")[0]
        for block in re.findall(r"```sh\n(.*?)```", body, re.DOTALL):
            lines = block.replace("|\n  ", "| ").splitlines()
            commands += [line.replace(".venv/bin/", "").split("  #")[0].strip() for line in lines]
    return [command for command in commands if not command.startswith(("export ", *NOT_HERE))]


def run(command: list[str], env: dict[str, str] | None = None, cwd: Path | None = None) -> None:
    done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} exited with {done.returncode}:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main()
