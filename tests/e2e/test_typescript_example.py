"""docs/examples/client.ts, type-checked by the real compiler and run by node against a real daemon."""

import shutil
import subprocess
from pathlib import Path

import pytest
from e2e.harnesses import typescript_compiler
from helpers.daemon import DaemonProcess

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "client.ts"
USE = """
import { Client } from "./client.js";
const client = await Client.connect();
client.onNotification = (method, params) => console.log(method, params.kind, params.action);
await client.call("subscribe", { kinds: ["message"] });
await client.call("upsertMessage", {message: { id: "ts1", sessionId: "ts", role: "user", textContent: "typed words" }});
const { hits } = await client.call("search", { query: "typed words" });
console.log(hits[0].snippet);
await client.call("upsertMessage", { message: {} }).catch((error) => console.log(error.message));
client.close();
"""
NODE_TYPES = """
declare module "node:net" { export type Socket = any; export function connect(path: string, done: () => void): Socket; }
declare module "node:os" { export function homedir(): string; }
declare module "node:path" { export function join(...parts: string[]): string; }
declare const process: { env: Record<string, string | undefined> };
declare const Buffer: any;
declare type Buffer = any;
"""


@pytest.mark.timeout(500)
def test_typescript_example_compiles_and_talks_to_a_daemon(shared_daemon: DaemonProcess, tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    shutil.copy(EXAMPLE, tmp_path)
    (tmp_path / "node.d.ts").write_text(NODE_TYPES)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "use.js").write_text(USE)
    flags = ["--strict", "--target", "es2022", "--module", "nodenext", "--skipLibCheck", "client.ts", "node.d.ts"]
    subprocess.run([node, str(typescript_compiler()), *flags], cwd=tmp_path, check=True, timeout=200)
    done = subprocess.run(
        [node, "use.js"],
        cwd=tmp_path,
        env=shared_daemon.environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "subscription.changed message stored" in done.stdout
    assert "«typed» «words»" in done.stdout
    assert "invalid message payload (4001)" in done.stdout
