"""Build the sdist and the wheel, install the wheel into a fresh virtualenv, and run the README's commands with it.

python -m tests.release_check
"""

import os
import re
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
SECTIONS = ("Connect a harness", "First result", "Try it without installing anything")
NOT_HERE = ("make run", "clankers-ctl service install", "pip install")
"""Commands of the README that would change this machine, or that this script replaces by its own steps."""


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="clk-") as scratch:
        check(Path(scratch))
    print("release check passed")


def check(scratch: Path) -> None:
    run([sys.executable, "-m", "hatchling", "build", "-d", str(scratch / "dist")], cwd=ROOT)
    [wheel] = (scratch / "dist").glob("*.whl")
    [sdist] = (scratch / "dist").glob("*.tar.gz")
    print(f"built {sdist.name} and {wheel.name} ({wheel.stat().st_size / 1e6:.1f} MB)")
    venv.create(scratch / "venv", with_pip=True)
    bin_folder = scratch / "venv" / "bin"
    run([str(bin_folder / "pip"), "install", "--quiet", "--disable-pip-version-check", str(wheel)])
    environ = {
        "HOME": str(scratch / "home"),
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "CLANKERS_DATA_PATH": str(scratch / "home" / "data"),
    }
    (scratch / "home").mkdir()
    daemon = subprocess.Popen([str(bin_folder / "clankersd")], env=environ, stderr=subprocess.DEVNULL)
    try:
        wait_until_healthy(environ)
        for command in readme_commands():
            print(f"$ {command}")
            run(["sh", "-c", command], env=environ, cwd=scratch / "home")
    finally:
        daemon.terminate()
        daemon.wait(30)


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


def wait_until_healthy(environ: dict[str, str]) -> None:
    for _ in range(300):
        if subprocess.run(["clankers-ctl", "health"], env=environ, capture_output=True, check=False).returncode == 0:
            return
        time.sleep(0.1)
    raise SystemExit("the daemon did not become healthy")


def run(command: list[str], env: dict[str, str] | None = None, cwd: Path | None = None) -> None:
    done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} exited with {done.returncode}:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main()
