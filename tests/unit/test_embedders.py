"""Embedders: comparable vectors or a reason; local models, keys and retries."""

import json
import os
import stat
import sys
import threading
from dataclasses import replace
from email.utils import formatdate
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numpy")

import numpy as np

from clankersd.embedders import (
    Embedder,
    EmbedderSettings,
    EmbedderUnavailable,
    Identity,
    ItemFailed,
    make_embedder,
    static,
)
from clankersd.embedders.local import LocalEmbedder
from clankersd.embedders.normalize import unit_vector
from clankersd.embedders.onnx import fingerprint
from clankersd.embedders.profiles import ModelProfile, find_profile
from clankersd.embedders.remote import split_batches
from clankersd.http.api_keys import find_key
from clankersd.http.responses import ServiceUnavailable
from clankersd.http.retry import RetryPolicy

pytestmark = pytest.mark.anyio


def made(provider: str, **other: Any) -> Embedder:
    embedder = make_embedder(EmbedderSettings(provider, **other))
    assert embedder is not None
    return embedder


def assert_unit(vector: Any, dims: int) -> None:
    assert isinstance(vector, np.ndarray)
    assert (vector.dtype, vector.shape) == (np.float32, (dims,))
    assert abs(float(np.linalg.norm(vector)) - 1) < 1e-5


# --- Making one


def test_provider_none_makes_no_embedder() -> None:
    assert make_embedder(EmbedderSettings("none")) is None


def test_unknown_provider_error_lists_those_that_exist() -> None:
    with pytest.raises(EmbedderUnavailable, match=r"'magic'.*static, onnx, openai, ollama, gemini, none") as caught:
        make_embedder(EmbedderSettings("magic"))
    assert caught.value.permanent


def test_weight_can_be_configured() -> None:
    assert (made("ollama").weight, made("ollama").agreed_weight) == (0.4, 0.85)
    assert (made("ollama", weight=0.1).weight, made("ollama", weight=0.1).agreed_weight) == (0.1, 0.1)


def test_identity_changes_only_with_what_makes_vectors_incomparable() -> None:
    def identity(**other: Any) -> Identity:
        return made("openai", **{"url": "http://127.0.0.1:9/v1", "model": "m", **other}).identity

    for other in (
        {"url": "http://127.0.0.1:8/v1"},
        {"model": "n"},
        {"dims": 8},
        {"document_prefix": "passage: "},
    ):
        assert identity(**other) != identity()
    for same in ({"url": "http://127.0.0.1:9/v1/"}, {"timeout": 1.0}, {"weight": 0.1}, {"key_file": "/k"}):
        assert identity(**same) == identity()


@pytest.mark.parametrize("url", ["example.org", "ftp://example.org", "http://", "http://host:port", "file:///etc"])
def test_url_that_is_invalid_is_refused(url: str) -> None:
    with pytest.raises(EmbedderUnavailable, match="http:// or https://"):
        made("openai", url=url)


@pytest.mark.parametrize("url", ["https://me:secret@example.org", "https://example.org/?key=secret"])
def test_secret_in_the_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(EmbedderUnavailable, match="key_file") as caught:
        made("openai", url=url)
    assert "secret@" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        (
            "snowflake-arctic-embed-s",
            ModelProfile("Represent this sentence for searching relevant passages: ", "", "cls"),
        ),
        ("snowflake-arctic-embed-m-v2.0", ModelProfile("query: ", "", "cls")),
        (
            "BAAI/bge-small-en-v1.5",
            ModelProfile("Represent this sentence for searching relevant passages: ", "", "cls"),
        ),
        ("bge-m3", ModelProfile("", "", "cls")),
        ("multilingual-e5-small", ModelProfile("query: ", "passage: ")),
        ("e5-base-v2", ModelProfile("query: ", "passage: ")),
        ("nomic-embed-text:latest", ModelProfile("search_query: ", "search_document: ")),
        ("all-MiniLM-L6-v2", ModelProfile()),
        ("text-embedding-3-small", ModelProfile()),
        ("gte5-large", ModelProfile()),
    ],
)
def test_profile_is_found_by_the_model_name(name: str, model: ModelProfile) -> None:
    assert find_profile(name) == model


# --- Small parts


@given(st.lists(st.text(max_size=20)), st.integers(1, 7), st.integers(1, 60))
def test_batches_hold_every_text_once_in_order_and_keep_their_limits(
    texts: list[str], most_texts: int, most_bytes: int
) -> None:
    batches = list(split_batches(texts, most_texts, most_bytes))
    assert [position for batch in batches for position in batch] == list(range(len(texts)))
    for batch in batches:
        assert 1 <= len(batch) <= most_texts
        assert len(batch) == 1 or sum(len(texts[position].encode()) for position in batch) <= most_bytes


@given(st.lists(st.floats() | st.integers(), max_size=8))
def test_unit_vector_of_any_numbers_has_length_one_or_fails(numbers: list[float]) -> None:
    try:
        vector = unit_vector(numbers)
    except ItemFailed:
        return
    assert_unit(vector, len(numbers))


def test_retry_after_is_parsed_in_seconds_and_as_a_date() -> None:
    patience = RetryPolicy(now=lambda: 1_700_000_000)
    assert patience.retry_after("12") == 12
    assert patience.retry_after("1.5") == 1.5
    assert patience.retry_after(formatdate(1_700_000_090, usegmt=True)) == 90
    assert patience.retry_after(formatdate(1_600_000_000, usegmt=True)) == 0
    for senseless in (None, "", "soon", "nan", "inf", "Fri, 99 Foo 2023 00:00:00 GMT"):
        assert patience.retry_after(senseless) is None


def test_retry_waits_grow_to_a_limit_and_respect_retry_after() -> None:
    patience = RetryPolicy(first_wait_seconds=1, max_wait_seconds=4)
    for attempt, least in enumerate((1, 2, 4, 4, 4)):
        assert least <= patience.wait(attempt, None) <= least * 1.2
    assert patience.wait(0, 30) == 30


def test_fingerprint_of_an_unreadable_file_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(EmbedderUnavailable, match="cannot be read"):
        fingerprint(tmp_path / "missing")


def test_fingerprint_differs_wherever_files_differ(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    content = bytearray(3_000_000)
    one.write_bytes(content)
    two.write_bytes(content)
    assert fingerprint(one) == fingerprint(two)
    two.write_bytes(content[:-1])
    assert fingerprint(one) != fingerprint(two)
    two.write_bytes(content[:-1] + b"x")
    assert fingerprint(one) != fingerprint(two)


# --- Keys


def test_key_comes_from_the_file_then_our_variable_then_the_providers(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(" from-file \n")
    file.chmod(0o600)
    environ = {"CLANKERS_EMBEDDER_KEY": "ours", "OPENAI_API_KEY": "theirs"}
    chosen = [
        find_key(str(file), ("OPENAI_API_KEY",), environ),
        find_key("", ("OPENAI_API_KEY",), environ),
        find_key("", ("OPENAI_API_KEY",), {"OPENAI_API_KEY": "theirs"}),
    ]
    assert [key.secret for key in chosen if key] == ["from-file", "ours", "theirs"]
    assert find_key("", (), {"OPENAI_API_KEY": "theirs"}) is None


def test_key_is_not_in_its_repr() -> None:
    key = find_key("", (), {"CLANKERS_EMBEDDER_KEY": "sk-secret"})
    assert "sk-secret" not in repr(key)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o666])
def test_key_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "key"
    file.write_text("sk-secret")
    file.chmod(mode)
    with pytest.raises(ServiceUnavailable, match="chmod 600") as caught:
        find_key(str(file), ())
    assert caught.value.permanent
    assert "sk-secret" not in str(caught.value)


def test_key_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "key"
    file.write_text("sk-secret")
    file.chmod(0o600)
    monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)
    with pytest.raises(ServiceUnavailable, match="another user"):
        find_key(str(file), ())


def test_key_file_that_is_missing_or_not_regular_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    for name in ("missing", "pipe", "."):
        with pytest.raises(ServiceUnavailable, match="key file"):
            find_key(str(tmp_path / name), ())


@pytest.mark.parametrize("text", [" ", "two words", "sk-\nsecond line", "sk-ünï", "sk-\x00"])
def test_key_that_cannot_be_a_header_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(ServiceUnavailable, match="CLANKERS_EMBEDDER_KEY") as caught:
        find_key("", (), {"CLANKERS_EMBEDDER_KEY": text})
    assert "sk-" not in str(caught.value)


# --- Whatever computes here


def one_number(texts: list[str]) -> list[Any]:
    return [unit_vector([float(len(text)), 1.0]) for text in texts]


def local(load: Any, query_prefix: str = "", document_prefix: str = "") -> LocalEmbedder:
    model = ModelProfile(query_prefix, document_prefix)
    return LocalEmbedder(Identity("static", "m", "k", None), model, load, batch_size=2)


async def test_local_model_is_loaded_once_and_runs_outside_the_event_loop() -> None:
    threads = []

    def load() -> Any:
        threads.append(threading.get_ident())

        def encode(texts: list[str]) -> list[Any]:
            threads.append(threading.get_ident())
            assert len(texts) <= 2
            return one_number(texts)

        return encode

    embedder = local(load)
    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(embedder.embed, ["a"] * 5)
            group.start_soon(embedder.embed_query, "b")
    assert threading.get_ident() not in threads
    assert len(threads) == 1 + 4 * 3 + 4
    assert embedder.identity.dims == 2


async def test_cancelled_query_does_not_wait_for_the_model_to_load() -> None:
    loading, go_on, loaded = threading.Event(), threading.Event(), threading.Event()

    def load() -> Any:
        loading.set()
        go_on.wait(10)
        loaded.set()
        return one_number

    embedder = local(load)
    async with anyio.create_task_group() as searching:
        searching.start_soon(embedder.embed_query, "x")
        assert await anyio.to_thread.run_sync(loading.wait, 10)
        searching.cancel_scope.cancel()
    assert not loaded.is_set()
    go_on.set()
    assert_unit(await embedder.embed_query("x"), 2)


async def test_prefixes_are_not_added_to_empty_texts() -> None:
    seen: list[str] = []

    def encode(texts: list[str]) -> list[Any]:
        seen.extend(texts)
        return one_number(texts)

    embedder = local(lambda: encode, "Q: ", "D: ")
    outcomes = await embedder.embed(["a", " ", "b"])
    await embedder.embed_query("c")
    assert seen == ["D: a", "D: b", "Q: c"]
    assert isinstance(outcomes[1], ItemFailed)
    with pytest.raises(ItemFailed):
        await embedder.embed_query("\n")


async def test_local_model_that_could_not_be_loaded_is_retried() -> None:
    attempts = []

    def load() -> Any:
        attempts.append(1)
        if len(attempts) == 1:
            raise EmbedderUnavailable("not yet", permanent=True)
        return one_number

    embedder = local(load)
    with pytest.raises(EmbedderUnavailable):
        await embedder.embed(["x"])
    assert_unit((await embedder.embed(["x"]))[0], 2)


class Panic(BaseException):
    """Like the panics of native libraries, which are no Exception."""


async def test_local_model_that_panics_while_loading_is_unavailable() -> None:
    def load() -> Any:
        raise Panic("thread pool")

    with pytest.raises(EmbedderUnavailable, match="Panic: thread pool"):
        await local(load).embed(["x"])
    with pytest.raises(EmbedderUnavailable, match="Panic: thread pool"):
        await local(load).embed_query("x")


async def test_local_model_that_panics_on_a_text_fails_that_text_alone() -> None:
    def encode(texts: list[str]) -> list[Any]:
        if "bad" in texts:
            raise Panic("index out of bounds")
        return one_number(texts)

    embedder = local(lambda: encode)
    good, bad, last = await embedder.embed(["good", "bad", "last"])
    assert_unit(good, 2)
    assert_unit(last, 2)
    assert isinstance(bad, ItemFailed)
    assert "index out of bounds" in bad.reason
    with pytest.raises(ItemFailed):
        await embedder.embed_query("bad")


async def test_local_model_that_panics_on_every_text_is_unavailable_and_loaded_again() -> None:
    loaded: list[int] = []

    def load() -> Any:
        loaded.append(1)

        def encode(texts: list[str]) -> list[Any]:
            if len(loaded) == 1:
                raise Panic("poisoned")
            return one_number(texts)

        return encode

    embedder = local(load)
    with pytest.raises(EmbedderUnavailable, match="poisoned"):
        await embedder.embed(["x", "y"])
    assert_unit(await embedder.embed_query("x"), 2)


async def test_local_model_without_memory_is_unavailable_for_a_while() -> None:
    def encode(texts: list[str]) -> list[Any]:
        raise MemoryError("less than 64 MiB of memory are left")

    with pytest.raises(EmbedderUnavailable, match=r"too little memory .* 64 MiB") as caught:
        await local(lambda: encode).embed(["x"])
    assert not caught.value.permanent
    assert caught.value.retry_after


async def test_local_model_without_a_thread_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("clankersd.embedders.local.to_thread.run_sync", refuse)
    with pytest.raises(EmbedderUnavailable, match="can't start new thread"):
        await local(lambda: one_number).embed_query("x")


# --- The static model

ORIGINAL_VECTORS = {
    "ship it": [-0.1284, -0.022, -0.0987, 0.0345, -0.0398, -0.0366],
    "the database is locked": [0.1203, 0.0234, -0.0782, 0.075, 0.1413, 0.0943],
    "漢字と仮名 🐢": [-0.1441, 0.1364, 0.0692, -0.1229, 0.1289, -0.0111],
}


@pytest.fixture(scope="module")
def static_embedder() -> Embedder:
    return made("static")


async def test_static_vectors_have_length_one_and_keep_the_order(static_embedder: Embedder) -> None:
    texts = [f"sentence number {number} about ships" for number in range(150)]
    together = await static_embedder.embed(texts)
    for text, vector in zip(texts, together, strict=True):
        assert_unit(vector, 256)
        [alone] = await static_embedder.embed([text])
        np.testing.assert_array_equal(vector, alone)


async def test_static_model_ranks_similar_texts_higher(static_embedder: Embedder) -> None:
    pairs = [
        ("how do I delete a branch in git", "removing git branches", "a recipe for apple pie"),
        ("the database is locked", "SQLite reports a lock on the db", "we went hiking in the mountains"),
        ("my cat is ill", "the kitten is sick", "configure the network proxy"),
        ("unit tests fail on CI", "the test suite breaks in continuous integration", "a dress for the wedding"),
    ]
    for query, near, far in pairs:
        wanted = await static_embedder.embed_query(query)
        close, distant = await static_embedder.embed([near, far])
        assert not isinstance(close, ItemFailed)
        assert not isinstance(distant, ItemFailed)
        assert float(wanted @ close) > float(wanted @ distant) + 0.1


async def test_static_vector_is_the_mean_of_its_tokens(static_embedder: Embedder) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    codes, scales = static._parse_weights((static.FOLDER / static.WEIGHTS).read_bytes())
    text = "the cat, the dog, the cat and the turtle"
    tokenizer = tokenizers.Tokenizer.from_file(str(static.FOLDER / static.TOKENIZER))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    [vector] = await static_embedder.embed([text])
    mean = (codes[ids].astype(np.float64) * scales[ids][:, None]).mean(axis=0)
    np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=1e-5)  # type: ignore[arg-type]


async def test_static_vectors_are_the_same_in_another_embedder(static_embedder: Embedder) -> None:
    another = made("static")
    assert another.identity == static_embedder.identity
    texts = ["ship it", "漢字と仮名", "Привет, мир", "🐢🚀", "naïve café", "\u202eright to left"]
    for one, two in zip(await static_embedder.embed(texts), await another.embed(texts), strict=True):
        assert_unit(one, 256)
        np.testing.assert_array_equal(one, two)


async def test_static_model_fails_texts_without_words_alone(static_embedder: Embedder) -> None:
    outcomes = await static_embedder.embed(["", "word", " \n", "\u3000", "word"])
    assert [isinstance(outcome, ItemFailed) for outcome in outcomes] == [True, False, True, True, False]


async def test_static_model_embeds_a_very_long_text(static_embedder: Embedder) -> None:
    [vector] = await static_embedder.embed(["turtles all the way down " * 50_000])
    assert_unit(vector, 256)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(st.characters(), max_size=50), max_size=4))
def test_static_model_returns_one_outcome_per_text(static_embedder: Embedder, texts: list[str]) -> None:
    outcomes = anyio.run(static_embedder.embed, texts)
    assert len(outcomes) == len(texts)
    for outcome in outcomes:
        if not isinstance(outcome, ItemFailed):
            assert_unit(outcome, 256)


def test_static_identity_is_known_before_loading(static_embedder: Embedder) -> None:
    identity = made("static").identity
    assert (identity.provider, identity.model, identity.dims) == ("static", "l2_supercat_256", 256)
    assert identity != made("static", document_prefix="passage: ").identity
    assert made("static").weight == 0.48


def test_static_identity_is_that_of_indexes_made_with_the_original_weights() -> None:
    assert made("static").identity.provider_key == "38dab8b7a1952c32"


async def test_static_vectors_agree_with_those_of_the_original_weights(static_embedder: Embedder) -> None:
    """The first numbers of vectors that float16 weights gave, recorded from the package they come from."""
    for text, recorded in ORIGINAL_VECTORS.items():
        [vector] = await static_embedder.embed([text])
        np.testing.assert_allclose(vector[: len(recorded)], recorded, atol=2e-3)  # type: ignore[index]


@pytest.mark.parametrize("package", ["tokenizers", "numpy"])
def test_static_model_without_a_package_says_what_to_install(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static, "find_spec", lambda name: None if name == package else find_spec(name))
    with pytest.raises(EmbedderUnavailable, match=f"pip install {package}") as caught:
        made("static").preflight()
    assert caught.value.permanent


@pytest.mark.parametrize("name", [static.WEIGHTS, static.TOKENIZER])
async def test_static_model_with_a_damaged_file_says_so(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in static.SHA256:
        (tmp_path / each).write_bytes((static.FOLDER / each).read_bytes())
    monkeypatch.setattr(static, "FOLDER", tmp_path)
    good = (tmp_path / name).read_bytes()
    for content in (b"", b"\xff" * 100, good[:5000], good[:-1] + b"~"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(EmbedderUnavailable, match=f"{name} is damaged: reinstall") as caught:
            await made("static").embed(["x"])
        assert caught.value.permanent


@pytest.mark.parametrize("name", [static.WEIGHTS, static.TOKENIZER])
@pytest.mark.parametrize("kind", ["missing", "folder", "fifo", "dangling link"])
async def test_static_model_without_a_file_neither_waits_nor_fails_otherwise(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in static.SHA256:
        (tmp_path / each).symlink_to(static.FOLDER / each)
    (tmp_path / name).unlink()
    if kind == "folder":
        (tmp_path / name).mkdir()
    elif kind == "fifo":
        os.mkfifo(tmp_path / name)
    elif kind == "dangling link":
        (tmp_path / name).symlink_to(tmp_path / "nowhere")
    monkeypatch.setattr(static, "FOLDER", tmp_path)
    embedder = made("static")
    with pytest.raises(EmbedderUnavailable, match=name):
        embedder.preflight()
    with pytest.raises(EmbedderUnavailable, match=name):
        await embedder.embed(["x"])


@pytest.mark.parametrize("other", [{"model": "l3_supercat_256"}, {"dims": 100}])
def test_static_embedder_has_one_model(other: dict[str, Any]) -> None:
    with pytest.raises(EmbedderUnavailable, match="l2_supercat_256"):
        made("static", **other)


# --- An ONNX model in a folder

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "cat", "dog", "query", ":", "passage", "zero"]
TABLE = np.random.default_rng(7).normal(size=(len(WORDS), 6)).astype(np.float32)
TABLE[WORDS.index("zero")] = 0


def write_model(path: Path, *, kind: str = "INT64", output: str = "last_hidden_state") -> None:
    """A model whose hidden states are the rows of TABLE; `sentence_embedding` is the second of them."""
    onnx = pytest.importorskip("onnx")
    from onnx import helper, numpy_helper

    integer = getattr(onnx.TensorProto, kind)
    inputs = [
        helper.make_tensor_value_info(name, integer, ["batch", "length"])
        for name in ("input_ids", "attention_mask", "token_type_ids")
    ]
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["last_hidden_state"])]
    constants = [numpy_helper.from_array(TABLE, "table")]
    if output == "sentence_embedding":
        constants.append(numpy_helper.from_array(np.array(1), "second"))
        nodes.append(helper.make_node("Gather", ["last_hidden_state", "second"], [output], axis=1))
    outputs = [helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "tiny", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())


def write_tokenizer(path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.enable_padding(length=64)
    tokenizer.save(str(path))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pytest.importorskip("onnxruntime")
    found = tmp_path / "tiny"
    write_model(found / "model.onnx")
    write_tokenizer(found / "tokenizer.json")
    return found


def unit(rows: Any) -> Any:
    return rows / np.linalg.norm(rows)


def rows(*words: str) -> Any:
    return TABLE[[WORDS.index(word) for word in words]]


async def only(embedder: Embedder, text: str) -> Any:
    [outcome] = await embedder.embed([text])
    return outcome


async def test_onnx_takes_the_mean_of_all_tokens_and_no_padding(folder: Path) -> None:
    embedder = made("onnx", model=str(folder))
    before = embedder.identity
    vector = await only(embedder, "cat dog")
    np.testing.assert_allclose(vector, unit(rows("[CLS]", "cat", "dog", "[SEP]").mean(axis=0)), rtol=1e-5)
    assert_unit(vector, 6)
    assert (before.dims, embedder.identity) == (None, replace(before, dims=6))


@pytest.mark.parametrize(
    ("file", "content", "first"),
    [
        ("clankers.json", {"pooling": "cls"}, "[CLS]"),
        ("clankers.json", {"pooling": "last"}, "[SEP]"),
        ("clankers.json", {"name": "snowflake-arctic-embed-s"}, "[CLS]"),
        ("config.json", {"_name_or_path": "BAAI/bge-m3"}, "[CLS]"),
        ("1_Pooling/config.json", {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "[CLS]"),
        ("1_Pooling/config.json", {"pooling_mode": "cls"}, "[CLS]"),
    ],
)
async def test_onnx_pooling_is_read_from_the_models_folder(folder: Path, file: str, content: Any, first: str) -> None:
    (folder / "1_Pooling").mkdir()
    (folder / file).write_text(json.dumps(content))
    vector = await only(made("onnx", model=str(folder), document_prefix=""), "cat dog")
    np.testing.assert_allclose(vector, unit(rows(first)[0]), rtol=1e-5)


async def test_onnx_pooling_folder_is_read_from_modules_json(folder: Path) -> None:
    (folder / "modules.json").write_text(json.dumps([{"type": "st.models.Pooling", "path": "9_Pool"}]))
    (folder / "9_Pool").mkdir()
    (folder / "9_Pool" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    vector = await only(made("onnx", model=str(folder)), "cat")
    np.testing.assert_allclose(vector, unit(rows("[CLS]")[0]), rtol=1e-5)


async def test_onnx_model_that_pools_itself_is_not_pooled_again(folder: Path) -> None:
    write_model(folder / "model.onnx", output="sentence_embedding")
    vector = await only(made("onnx", model=str(folder)), "cat dog")
    np.testing.assert_allclose(vector, unit(rows("cat")[0]), rtol=1e-5)


async def test_onnx_model_may_take_int32_and_be_in_a_subfolder(folder: Path) -> None:
    (folder / "model.onnx").unlink()
    write_model(folder / "onnx" / "model_int8.onnx", kind="INT32")
    assert_unit((await made("onnx", model=str(folder)).embed(["cat"]))[0], 6)


async def test_onnx_uses_the_prefixes_of_known_models(folder: Path) -> None:
    (folder / "clankers.json").write_text('{"name": "e5-small"}')
    embedder = made("onnx", model=str(folder))
    document = await only(embedder, "cat")
    query = await embedder.embed_query("cat")
    wanted = rows("[CLS]", "passage", ":", "cat", "[SEP]").mean(axis=0)
    np.testing.assert_allclose(document, unit(wanted), rtol=1e-5)
    np.testing.assert_allclose(query, unit(rows("[CLS]", "query", ":", "cat", "[SEP]").mean(axis=0)), rtol=1e-5)
    plain = made("onnx", model=str(folder), document_prefix="")
    assert plain.identity != embedder.identity


@pytest.mark.parametrize(
    ("file", "content", "longest"),
    [
        ("sentence_bert_config.json", {"max_seq_length": 5}, 5),
        ("tokenizer_config.json", {"model_max_length": 4}, 4),
        ("config.json", {"max_position_embeddings": 10**30}, 512),
    ],
)
async def test_onnx_truncates_long_texts_at_the_models_limit(
    folder: Path, file: str, content: Any, longest: int
) -> None:
    (folder / file).write_text(json.dumps(content))
    long = await only(made("onnx", model=str(folder)), "cat " * 2000)
    wanted = rows("[CLS]", *["cat"] * (longest - 2), "[SEP]").mean(axis=0)
    np.testing.assert_allclose(long, unit(wanted), rtol=1e-4)


async def test_onnx_fails_texts_without_words_or_direction_alone(folder: Path) -> None:
    (folder / "clankers.json").write_text('{"pooling": "mean"}')
    outcomes = await made("onnx", model=str(folder)).embed(["", "cat", "\n", "\x1c", "dog"])
    assert [isinstance(outcome, ItemFailed) for outcome in outcomes] == [True, False, True, True, False]
    write_model(folder / "model.onnx", output="sentence_embedding")
    zero, cat = await made("onnx", model=str(folder)).embed(["zero", "cat"])
    assert isinstance(zero, ItemFailed)
    assert_unit(cat, 6)


async def test_onnx_model_with_other_dims_than_configured_is_unavailable(folder: Path) -> None:
    with pytest.raises(EmbedderUnavailable, match="6 numbers, not 5") as caught:
        await made("onnx", model=str(folder), dims=5).embed(["cat"])
    assert caught.value.permanent


def test_onnx_identity_survives_a_move_but_not_a_change(folder: Path, tmp_path: Path) -> None:
    before = made("onnx", model=str(folder)).identity
    (tmp_path / "elsewhere").mkdir()
    moved = folder.rename(tmp_path / "elsewhere" / "tiny")
    assert made("onnx", model=str(moved)).identity == before
    write_model(moved / "model.onnx", output="sentence_embedding")
    assert made("onnx", model=str(moved)).identity != before


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json"),
        (lambda folder: (folder / "model.onnx").unlink(), "model.onnx"),
        (lambda folder: (folder / "clankers.json").write_text("{"), "clankers.json"),
        (lambda folder: (folder / "clankers.json").write_text("[]"), "clankers.json"),
        (lambda folder: (folder / "clankers.json").write_text('{"pooling": "max"}'), "mean, cls or last"),
        (lambda folder: (folder / "model.onnx").write_bytes(b"junk"), "cannot be loaded"),
        (lambda folder: (folder / "tokenizer.json").write_text("junk"), "cannot be loaded"),
    ],
)
async def test_onnx_folder_error_says_what_is_wrong(folder: Path, spoil: Any, named: str) -> None:
    spoil(folder)
    with pytest.raises(EmbedderUnavailable, match=named) as caught:
        await made("onnx", model=str(folder)).embed(["cat"])
    assert caught.value.permanent


def test_onnx_folder_with_several_models_is_refused(folder: Path) -> None:
    (folder / "model.onnx").rename(folder / "model_int8.onnx")
    write_model(folder / "model_fp16.onnx")
    with pytest.raises(EmbedderUnavailable, match=r"model_fp16.onnx, model_int8.onnx"):
        made("onnx", model=str(folder))


@pytest.mark.parametrize("model", ["", "/nowhere/at/all"])
def test_onnx_without_a_folder_says_what_to_set(model: str) -> None:
    with pytest.raises(EmbedderUnavailable, match=r"model\.onnx"):
        made("onnx", model=model)


async def test_onnx_without_its_package_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(EmbedderUnavailable, match=r"pip install 'clankers\[onnx\]'") as caught:
        await made("onnx", model=str(folder)).embed(["cat"])
    assert caught.value.permanent
