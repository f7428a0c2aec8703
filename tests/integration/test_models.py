"""Models: the list of embedders, changing between them, and pulling one from a hub that misbehaves."""

import hashlib
import json
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from helpers.ctl import Ran, command, ctl
from helpers.daemon import DaemonProcess, running_daemon
from helpers.embedding_service import Answer as Embedded
from helpers.embedding_service import Request, Service, embeddings, say, served
from helpers.waiting import eventually

from clankers import Client
from clankers.ctl.hub import PullFailed, plan_pull
from clankersd.embedders.base import PROBE_TEXT

REPOSITORY = "/Snowflake/snowflake-arctic-embed-s/resolve/main/"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "cat", "dog"]


def listed(daemon: DaemonProcess) -> dict[str, dict[str, Any]]:
    """What model.list says, by the embedder, or by the folder's name."""
    with daemon.connect() as connection:
        models = connection.call("model.list")
    return {Path(each["model"]).name if each["embedder"] == "onnx" else each["embedder"]: each for each in models}


def settings(daemon: DaemonProcess) -> dict[str, Any]:
    with daemon.connect() as connection:
        found = connection.call("daemon.config")["settings"]
    return {each["key"]: each["value"] for each in found if each["key"].startswith("embedder")}


def tiny_model() -> bytes:
    """An ONNX sentence encoder with six words and four dimensions."""
    onnx = pytest.importorskip("onnx")
    import numpy as np
    from onnx import helper, numpy_helper

    table = np.random.default_rng(7).normal(size=(len(WORDS), 4)).astype(np.float32)
    names = ("input_ids", "attention_mask")
    inputs = [helper.make_tensor_value_info(name, onnx.TensorProto.INT64, ["batch", "length"]) for name in names]
    outputs = [helper.make_tensor_value_info("last_hidden_state", onnx.TensorProto.FLOAT, None)]
    node = helper.make_node("Gather", ["table", "input_ids"], ["last_hidden_state"])
    graph = helper.make_graph([node], "tiny", inputs, outputs, [numpy_helper.from_array(table, "table")])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(made.SerializeToString())


def tiny_tokenizer() -> bytes:
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return str(tokenizer.to_str()).encode()


def put_model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(tiny_model())
    (folder / "tokenizer.json").write_bytes(tiny_tokenizer())
    (folder / "config.json").write_text('{"hidden_size": 4}')
    return folder


def say_something(daemon: DaemonProcess) -> None:
    with Client(daemon.socket_path, timeout=30) as client:
        client.events.session("s1", title="Pets")
        for number, text in enumerate(["a cat", "a dog", "cat and dog"]):
            client.events.message(f"m{number}", "s1", role="user", text_content=text)
    deadline = time.monotonic() + 30
    with daemon.connect() as connection:
        while (report := connection.call("index.status"))["backlog"] or report["live"]["pending"]:
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.fixture
def pets(shared_daemon: DaemonProcess) -> Iterator[DaemonProcess]:
    """A daemon that was told something; it has its own model alone again afterwards."""
    say_something(shared_daemon)
    yield shared_daemon
    back = ctl(shared_daemon, "model", "use", "static", "--yes")
    assert back.code == 0, back.err
    shutil.rmtree(shared_daemon.data / "models", ignore_errors=True)


# model.list


def test_model_list_names_every_embedder_and_what_it_lacks(home: Path) -> None:
    with running_daemon(home, OPENAI_API_KEY="", GEMINI_API_KEY="", GOOGLE_API_KEY="") as daemon:
        models = listed(daemon)

    assert list(models) == ["static", "", "openai", "ollama", "gemini", "none"]
    assert models["static"]["inUse"]
    assert (models["static"]["available"], models["static"]["dims"]) == (True, 256)
    assert not models[""]["available"]
    assert "clankers-ctl model pull" in models[""]["note"]
    assert "OPENAI_API_KEY" in models["openai"]["note"]
    assert not models["gemini"]["available"]
    assert models["ollama"]["available"]
    assert [name for name, model in models.items() if model["inUse"]] == ["static"]


def test_model_list_shows_a_service_with_a_key_as_available_without_the_key(home: Path) -> None:
    with running_daemon(home, OPENAI_API_KEY="sk-secret") as daemon:
        openai = listed(daemon)["openai"]

    assert openai["available"]
    assert openai["note"] == "sends your texts to api.openai.com"


def test_model_list_shows_a_service_as_configured(home: Path) -> None:
    key = home / "key"
    key.write_text("sk-secret")
    key.chmod(0o644)
    configured = {"CLANKERS_EMBEDDER_MODEL": "mine", "CLANKERS_EMBEDDER_KEY_FILE": str(key)}
    with running_daemon(home, CLANKERS_EMBEDDER="openai", **configured) as daemon:
        openai = listed(daemon)["openai"]
        key.chmod(0o600)
        corrected = listed(daemon)["openai"]

    assert (openai["model"], openai["inUse"], openai["available"]) == ("mine", True, False)
    assert "chmod 600" in openai["note"]
    assert corrected["available"]


def test_model_list_finds_folders_and_reports_their_problems(pets: DaemonProcess) -> None:
    models = pets.data / "models"
    put_model(models / "good")
    (put_model(models / "bad") / "tokenizer.json").unlink()
    put_model(models / ".half.unfinished")
    (models / "a-file").write_text("")
    found = listed(pets)

    assert (found["good"]["available"], found["good"]["dims"]) == (True, 4)
    assert found["good"]["model"] == str(models / "good")
    assert not found["bad"]["available"]
    assert "tokenizer.json" in found["bad"]["note"]
    assert not found.keys() & {"", ".half.unfinished", "a-file"}


def test_model_list_includes_the_configured_folder(home: Path) -> None:
    folder = put_model(home / "elsewhere")
    with running_daemon(home, CLANKERS_EMBEDDER="onnx", CLANKERS_EMBEDDER_MODEL=str(folder)) as daemon:
        model = listed(daemon)["elsewhere"]

    assert (model["inUse"], model["available"]) == (True, True)


def test_model_list_shows_a_failing_embedder_as_unavailable(home: Path) -> None:
    with running_daemon(home, CLANKERS_EMBEDDER="onnx", CLANKERS_EMBEDDER_MODEL="/no/such/folder") as daemon:
        model = listed(daemon)["folder"]

    assert (model["inUse"], model["available"]) == (True, False)
    assert "/no/such/folder" in model["note"]


def test_ctl_model_list_is_readable(pets: DaemonProcess) -> None:
    put_model(pets.data / "models" / "tiny")
    lines = ctl(pets, "model", "list").out.splitlines()

    assert lines[0].split() == ["Embedder", "Model", "Dims", "Note"]
    assert lines[1].split()[:4] == ["●", "static", "l2_supercat_256", "256"]
    assert lines[2].split()[:4] == ["○", "onnx", "tiny", "4"]


# model use


def test_ctl_model_use_takes_a_name(pets: DaemonProcess) -> None:
    folder = put_model(pets.data / "models" / "tiny")
    done = ctl(pets, "model", "use", "tiny", typed="y\n")

    assert done.code == 0, done.err
    assert "4 chunks will be embedded again" in done.err
    assert done.out.startswith("Now in use: onnx tiny.\nReindexed 4 chunks")
    assert settings(pets)["embedder_model"] == str(folder)
    assert listed(pets)["tiny"]["inUse"]
    with pets.connect() as connection:
        assert connection.call("search", query="cat")["mode"] == "hybrid"


def test_ctl_model_use_takes_a_path(pets: DaemonProcess, home: Path) -> None:
    folder = put_model(home / "models" / "own")

    assert ctl(pets, "model", "use", "models/own", "--yes", cwd=home).code == 0
    assert settings(pets)["embedder_model"] == str(folder)


def test_ctl_model_use_can_be_declined(pets: DaemonProcess) -> None:
    done = ctl(pets, "model", "use", "none", typed="n\n")

    assert done.code == 1
    assert settings(pets)["embedder"] == "static"


def test_ctl_model_use_of_the_model_in_use_changes_nothing(pets: DaemonProcess) -> None:
    with pets.connect() as connection:
        before = connection.call("job.list")
        done = ctl(pets, "model", "use", "static")

        assert done.code == 0
        assert "already in use" in done.err
        assert connection.call("job.list") == before


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["bge-small"], 1, "clankers-ctl model pull bge-small"),
        (["magic"], 1, "'magic' is not an embedder"),
        (["/"], 1, "no *.onnx"),
        (["onnx"], 2, "Specify a model"),
        (["static", "--url", "http://127.0.0.1:1"], 2, "--url"),
        (["openai", "--key-file", "/no/such/file"], 2, "/no/such/file"),
    ],
    ids=str,
)
def test_ctl_model_use_refuses_an_unusable_model(pets: DaemonProcess, words: list[str], code: int, said: str) -> None:
    done = ctl(pets, "model", "use", *words, "--yes")

    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert settings(pets)["embedder"] == "static"


def test_ctl_model_use_refuses_a_service_without_a_key(home: Path) -> None:
    with running_daemon(home, OPENAI_API_KEY="") as daemon:
        done = ctl(daemon, "model", "use", "openai", "--yes")

    assert done.code == 1
    assert "OPENAI_API_KEY" in done.err


def test_ctl_model_use_does_not_change_an_embedder_set_by_the_environment(home: Path) -> None:
    with running_daemon(home, CLANKERS_EMBEDDER="none") as daemon:
        done = ctl(daemon, "model", "use", "static", "--yes")

    assert done.code == 1
    assert "environment" in done.err
    assert not (home / "clankers.toml").exists()


def test_ctl_model_use_clears_the_previous_url_and_key(pets: DaemonProcess, home: Path) -> None:
    for key, value in {"embedder_url": "http://127.0.0.1:9", "embedder_key_file": "/a", "embedder_dims": 5}.items():
        with pets.connect() as connection:
            connection.call("daemon.configure", key=key, value=value)
    put_model(pets.data / "models" / "tiny")

    assert ctl(pets, "model", "use", "tiny", "--yes").code == 0
    assert settings(pets)["embedder_url"] == ""
    assert settings(pets)["embedder_key_file"] == ""
    assert settings(pets)["embedder_dims"] == 0


@contextmanager
def stalled_service() -> Iterator[Service]:
    """Serve a model that answers the first try, and then no more."""
    go_on = threading.Event()

    def answer(request: Request) -> Embedded:
        if request.texts != [PROBE_TEXT]:
            go_on.wait(60)
        return embeddings(request)

    with served(answer) as service:
        try:
            yield service
        finally:
            go_on.set()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctl_model_use_that_is_interrupted_changes_nothing(pets: DaemonProcess, number: signal.Signals) -> None:
    before = settings(pets)
    with stalled_service() as service:
        words = command("model", "use", "ollama", "--url", service.url, "--model", "mine", "--yes")
        process = subprocess.Popen(words, env=pets.environ, stderr=subprocess.PIPE, text=True)
        try:
            eventually(lambda: settings(pets)["embedder_model"] == "mine", "the switch")
            process.send_signal(number)  # it watches the job
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
            process.communicate()
        assert process.returncode == 1

    assert "Still in use: static" in said
    assert settings(pets) == before
    with pets.connect() as connection:
        assert connection.call("index.status")["vectors"] == "ready"


def test_ctl_model_use_of_an_unreachable_service_changes_nothing(pets: DaemonProcess) -> None:
    before = settings(pets)
    ran = ctl(pets, "model", "use", "ollama", "--url", "http://127.0.0.1:9", "--model", "mine", "--yes")

    assert ran.code == 1
    assert "nothing was changed" in ran.err
    assert settings(pets) == before
    with pets.connect() as connection:
        assert connection.call("index.status")["vectors"] == "ready"
        assert connection.call("job.list")[0]["state"] == "failed"


def test_ctl_jobs_shows_and_cancels_a_job(pets: DaemonProcess) -> None:
    before = settings(pets)
    with stalled_service() as service, pets.connect() as connection:
        params = {"embedder": "ollama", "model": "mine", "settings": {"embedder_url": service.url}}
        job_id = connection.call("reindex", **params)["jobId"]
        eventually(lambda: settings(pets)["embedder_model"] == "mine", "the switch")
        assert ctl(pets, "jobs", "show", job_id[:30], "--json").json["state"] == "running"
        assert ctl(pets, "jobs", "cancel", job_id).code == 0
        assert "cancelled" in ctl(pets, "jobs", "show", job_id).out
    assert "cancelled" in ctl(pets, "jobs", "list", "--limit", "1").out
    assert ctl(pets, "jobs", "show", "nonsense").code == 1
    assert settings(pets) == before


def test_reindex_with_a_model_that_makes_no_vectors_ends_with_the_reason(pets: DaemonProcess) -> None:
    before = settings(pets)

    def answer(request: Request) -> Embedded:
        return embeddings(request) if request.texts == [PROBE_TEXT] else say({"error": "no such text"}, 400)

    with served(answer) as service, pets.connect() as connection:
        params = {"embedder": "ollama", "model": "mine", "settings": {"embedder_url": service.url}}
        job_id = connection.call("reindex", **params)["jobId"]
        job = eventually(
            lambda: (found := connection.call("job.status", id=job_id))["state"] != "running" and found, "the end"
        )
        assert job["state"] == "failed"
        assert "no such text" in job["error"]
        assert settings(pets) == before
        assert connection.call("index.status")["vectors"] == "ready"


# model pull


@dataclass
class Answer:
    """What a hub answers with; `cut` promises so many more bytes than it sends, `silent` names no length."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    cut: int = 0
    silent: bool = False


class Hub(ThreadingHTTPServer):
    """Serves files under REPOSITORY, and knows what it was asked for."""

    def __init__(self, files: dict[str, Answer]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:  # the name it must have
        name = self.path.removeprefix(REPOSITORY)
        self.server.asked.append(name)
        answer = self.server.files.get(name, Answer(b"Entry not found", 404))
        self.send_response(answer.status)
        if not answer.silent:
            self.send_header("Content-Length", str(len(answer.body) + answer.cut))
        for header, value in answer.headers.items():
            self.send_header(header, value)
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, *_: Any) -> None:
        pass


def arctic(**other: Answer) -> dict[str, Answer]:
    """The files of a good repository."""
    return {
        "config.json": Answer(b'{"hidden_size": 4}'),
        "tokenizer.json": Answer(tiny_tokenizer()),
        "1_Pooling/config.json": Answer(b'{"pooling_mode_cls_token": true, "word_embedding_dimension": 4}'),
        "onnx/model.onnx": Answer(tiny_model()),
    } | other


@contextmanager
def serving(files: dict[str, Answer]) -> Iterator[Hub]:
    hub = Hub(files)
    thread = threading.Thread(target=hub.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        thread.join()
        hub.server_close()


@pytest.fixture
def down(home: Path) -> DaemonProcess:
    """A daemon that was never started: fetching a model needs none."""
    return DaemonProcess(home)


def pull(daemon: DaemonProcess, hub: Hub, *words: str, typed: str = "") -> Ran:
    return ctl(daemon, "model", "pull", "arctic-embed-s", "--from", hub.url, *words, typed=typed)


def test_ctl_model_pull_asks_for_confirmation(down: DaemonProcess) -> None:
    folder = down.data / "models" / "arctic-embed-s"
    with serving(arctic()) as hub:
        refused = pull(down, hub, typed="n\n")
        assert (refused.code, hub.asked, folder.exists()) == (1, [], False)
        assert f"{hub.url}{REPOSITORY}" in refused.err
        assert str(folder) in refused.err
        done = pull(down, hub, typed="y\n")

    assert done.code == 0, done.err
    assert (folder / "model.onnx").read_bytes() == tiny_model()
    assert (folder / "1_Pooling" / "config.json").is_file()
    assert not (folder / "tokenizer_config.json").exists()
    assert hashlib.sha256(tiny_model()).hexdigest() in done.out
    assert "clankers-ctl model use arctic-embed-s" in done.out
    assert [path.name for path in folder.parent.iterdir()] == ["arctic-embed-s"]
    assert folder.parent.stat().st_mode & 0o077 == 0


def test_ctl_model_pull_requests_only_the_announced_files(down: DaemonProcess) -> None:
    with serving(arctic()) as hub:
        said = pull(down, hub, "--yes").err

    assert all(f"  {name}" in said for name in hub.asked)


def test_pulled_model_can_be_used(pets: DaemonProcess) -> None:
    with serving(arctic()) as hub:
        assert pull(pets, hub, "--yes").code == 0

    assert listed(pets)["arctic-embed-s"]["note"].startswith("snowflake-arctic-embed-s,")
    assert ctl(pets, "model", "use", "arctic-embed-s", "--yes").code == 0


def test_pulled_model_has_its_full_name_in_a_short_folder(down: DaemonProcess) -> None:
    with serving(arctic()) as hub:
        pull(down, hub, "--yes")
    facts = json.loads((down.data / "models" / "arctic-embed-s" / "clankers.json").read_text())

    assert facts["name"] == "snowflake-arctic-embed-s"
    assert facts["source"].endswith(REPOSITORY)
    assert facts["sha256"]["model.onnx"] == hashlib.sha256(tiny_model()).hexdigest()


def test_ctl_model_pull_fetches_external_and_8_bit_weights(down: DaemonProcess) -> None:
    weights = {"onnx/model_int8.onnx": Answer(tiny_model()), "onnx/model_int8.onnx_data": Answer(b"numbers")}
    with serving(arctic(**weights)) as hub:
        done = pull(down, hub, "--yes", "--quantized", "--json")

    assert done.code == 0, done.err
    assert "onnx/model.onnx" not in hub.asked
    told = {file["path"]: file["size"] for file in done.json["files"]}
    assert told["model_int8.onnx_data"] == 7
    assert told["model.onnx"] == len(tiny_model())


def test_ctl_model_pull_does_not_fetch_an_existing_model(down: DaemonProcess) -> None:
    with serving(arctic()) as hub:
        pull(down, hub, "--yes")
        before = len(hub.asked)
        done = pull(down, hub, "--yes")

    assert done.code == 0
    assert len(hub.asked) == before
    assert "clankers-ctl model use arctic-embed-s" in done.out


def test_ctl_model_pull_follows_large_files_and_checks_their_hash(down: DaemonProcess) -> None:
    def moved(sha256: str) -> dict[str, Answer]:
        headers = {"Location": f"{REPOSITORY}stored", "X-Linked-Etag": f'"{sha256}"'}
        return arctic(**{"onnx/model.onnx": Answer(b"", 302, headers), "stored": Answer(tiny_model())})

    with serving(moved("0" * 64)) as hub:
        refused = pull(down, hub, "--yes")
    with serving(moved(hashlib.sha256(tiny_model()).hexdigest())) as hub:
        done = pull(down, hub, "--yes")

    assert refused.code == 1
    assert "not what the hub announced" in refused.err
    assert done.code == 0, done.err


LARGE = b"\x08" + bytes(3 * 2**20)


@pytest.mark.parametrize(
    ("other", "words", "said"),
    [
        ({"onnx/model.onnx": Answer(LARGE[: 2**20], cut=2**20)}, [], "interrupted after 1.0 MiB"),
        ({"onnx/model.onnx": Answer(status=404)}, [], "has no onnx/model.onnx and no model.onnx"),
        ({"tokenizer.json": Answer(status=404)}, [], "has no tokenizer.json"),
        ({"tokenizer_config.json": Answer(status=500)}, [], "500"),
        ({"config.json": Answer(status=401)}, [], "private"),
        ({"onnx/model.onnx": Answer(LARGE)}, ["--max-size", "1"], "--max-size"),
        ({"onnx/model.onnx": Answer(tiny_model(), silent=True)}, [], "announce its length"),
        ({"onnx/model.onnx": Answer(tiny_model(), cut=-3)}, [], ""),
        ({"onnx/model.onnx": Answer(b"<html>Please log in</html>")}, [], "is not an ONNX model"),
        ({"onnx/model.onnx": Answer(b"version https://git-lfs.github.com/spec/v1")}, [], "is not an ONNX model"),
        ({"tokenizer.json": Answer(b"<html>")}, [], "is not JSON"),
        ({"config.json": Answer(b"", 302, {"Location": f"{REPOSITORY}config.json"})}, [], "redirect"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_ctl_model_pull_from_a_misbehaving_hub_leaves_nothing(
    down: DaemonProcess, other: dict[str, Answer], words: list[str], said: str
) -> None:
    if any(answer.cut < 0 for answer in other.values()):  # it sends more than it said: known by the promised size
        other["onnx/model.onnx"].headers["X-Linked-Size"] = str(len(tiny_model()))
        said = "not what the hub announced"
    with serving(arctic(**other)) as hub:
        done = pull(down, hub, "--yes", *words)

    assert (done.code, done.out) == (1, "")
    assert said.lower() in done.err.lower()
    assert list((down.data / "models").iterdir()) == []


def test_ctl_model_pull_reports_an_unreachable_hub(down: DaemonProcess) -> None:
    done = ctl(down, "model", "pull", "minilm", "--from", "http://127.0.0.1:9", "--yes", "--json")

    assert done.code == 1
    assert "127.0.0.1 cannot be reached" in done.json["error"]["message"]


def test_ctl_model_pull_clears_the_leftovers_of_a_killed_process(down: DaemonProcess) -> None:
    left = down.data / "models" / ".arctic-embed-s.unfinished"
    (left / "1_Pooling").mkdir(parents=True)
    (left / "model.onnx").write_bytes(b"half")
    with serving(arctic()) as hub:
        done = pull(down, hub, "--yes")

    assert done.code == 0, done.err
    assert not left.exists()


def test_ctl_model_pull_that_is_interrupted_leaves_nothing(down: DaemonProcess) -> None:
    begun, over = threading.Event(), threading.Event()

    class Slow(dict[str, Answer]):
        def get(self, name: str, default: Any = None) -> Any:
            if name == "onnx/model.onnx":
                begun.set()
                over.wait(30)
            return super().get(name, default)

    with serving(Slow(arctic())) as hub:
        words = command("model", "pull", "arctic-embed-s", "--from", hub.url, "--yes")
        with subprocess.Popen(words, env=down.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert begun.wait(30)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)
            assert process.returncode == 1
        over.set()

    assert list((down.data / "models").iterdir()) == []


@pytest.mark.parametrize("name", ["nonsense", "../x", "a/../b", "/etc/passwd", "a/.hidden", "a/b/c", "", "ä/b"])
def test_ctl_model_pull_refuses_a_name_outside_the_models_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(PullFailed):
        plan_pull(name, tmp_path, "https://hub.example.org", False, 1)


@pytest.mark.parametrize("base", ["", "hub.example.org", "file:///etc", "ftp://hub.example.org"])
def test_ctl_model_pull_requires_a_web_address_for_the_hub(base: str, tmp_path: Path) -> None:
    with pytest.raises(PullFailed):
        plan_pull("minilm", tmp_path, base, False, 1)


# A model that is away for a while


def test_onnx_folder_that_comes_back_is_used_again(home: Path) -> None:
    folder = put_model(home / "tiny")
    chosen = {"CLANKERS_EMBEDDER": "onnx", "CLANKERS_EMBEDDER_MODEL": str(folder)}
    with running_daemon(home, **chosen) as daemon:
        say_something(daemon)
        daemon.stop()
    folder.rename(home / "away")
    with running_daemon(home, **chosen) as daemon, daemon.connect() as connection:
        connection.call("upsertMessage", message={"id": "m9", "sessionId": "s1", "role": "user", "textContent": "dog"})
        assert str(folder) in connection.call("health")["degraded"]
        found = connection.call("search", query="dog")
        assert (found["mode"], "m9" in [hit["ref"]["messageId"] for hit in found["hits"]]) == ("keyword", True)
        (home / "away").rename(folder)
        connection.call("daemon.reload")
        deadline = time.monotonic() + 30
        while (report := connection.call("index.status"))["vectors"] != "ready" or report["live"]["pending"]:
            assert time.monotonic() < deadline, report
            time.sleep(0.02)
        assert connection.call("search", query="dog", mode="vector")["degraded"] is None
        assert connection.call("health")["degraded"] is None
