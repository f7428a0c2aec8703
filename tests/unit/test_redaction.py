"""Secrets are found and marked; what only looks like one is left alone. Both rates are measured on a made corpus."""

import base64
import itertools
import json
import random
import string
import uuid
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clankersd.redaction import assignments, contexts, engine
from clankersd.redaction.anchors import Anchors
from clankersd.redaction.engine import redact, redact_all, truncate
from clankersd.redaction.secret import Secret

LETTERS = string.ascii_letters + string.digits
SEED = 20_260
A_KIND = 60
"""So many of each kind are made."""


def pick(dice: random.Random, length: int, among: str = LETTERS) -> str:
    return "".join(dice.choice(among) for _ in range(length))


def pem(dice: random.Random) -> str:
    body = "\n".join(pick(dice, 64, LETTERS + "+/") for _ in range(6))
    return f"-----BEGIN RSA PRIVATE KEY-----\n{body}\n-----END RSA PRIVATE KEY-----"


def password(dice: random.Random) -> str:
    word = dice.choice(["hunter", "Tr0ub4dor", "correct", "sommer", "qwertz", "dragon"])
    return f"{word}{dice.randint(10, 9999)}{dice.choice(['!', '', '#', '_x', '%'])}"


def jwt(dice: random.Random) -> str:
    parts = (json.dumps({"alg": "HS256"}), json.dumps({"sub": dice.randint(1, 10**9)}))
    encoded = [base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in parts]
    return ".".join([*encoded, pick(dice, 43, LETTERS + "_-")])


SECRETS: dict[str, Callable[[random.Random], str]] = {
    "openai": lambda d: f"sk-proj-{pick(d, 48)}",
    "anthropic": lambda d: f"sk-ant-api03-{pick(d, 80, LETTERS + '_-')}",
    "github": lambda d: f"{d.choice(['ghp', 'gho', 'ghs'])}_{pick(d, 36)}",
    "github-pat": lambda d: f"github_pat_{pick(d, 22)}_{pick(d, 59)}",
    "gitlab": lambda d: f"glpat-{pick(d, 20, LETTERS)}",
    "slack": lambda d: f"xoxb-{pick(d, 12, '0123456789')}-{pick(d, 12, '0123456789')}-{pick(d, 24)}",
    "aws-id": lambda d: f"AKIA{pick(d, 16, string.ascii_uppercase + string.digits)}",
    "google": lambda d: f"AIza{pick(d, 35, LETTERS + '_-')}",
    "stripe": lambda d: f"sk_live_{pick(d, 24)}",
    "npm": lambda d: f"npm_{pick(d, 36)}",
    "hugging-face": lambda d: f"hf_{pick(d, 34)}",
    "sendgrid": lambda d: f"SG.{pick(d, 22)}.{pick(d, 43)}",
    "jwt": jwt,
    "private-key": pem,
}
"""The secret itself: whatever stands around it, nothing of it may be left."""

AROUND = (
    "{}",
    "use {} from now on",
    'export KEY="{}"',
    '{{"command": "curl -H \'x-api-key: {}\' localhost"}}',
    "the output was:\n{}\nand that is all",
    "client = Client(api_key='{}')",
)

NAMED: dict[str, Callable[[random.Random], tuple[str, str]]] = {
    "env-password": lambda d: ("DB_PASSWORD={}", password(d)),
    "env-secret": lambda d: ("export SESSION_SECRET={}", pick(d, 32)),
    "env-file": lambda d: ("PORT=80\nJWT_SECRET='{}'\nDEBUG=1", pick(d, 24)),
    "aws-secret": lambda d: ("aws_secret_access_key = {}", pick(d, 40, LETTERS + "+/")),
    "yaml": lambda d: ("database:\n  user: me\n  password: {}\n", password(d)),
    "json": lambda d: ('{{"user": "me", "password": "{}"}}', password(d)),
    "escaped-json": lambda d: (r'{{"body": "{{\"apiKey\": \"{}\"}}"}}', pick(d, 24)),
    "python": lambda d: ('API_KEY = "{}"', pick(d, 32, string.hexdigits.lower())),
    "option": lambda d: ("mysql --user me --password={} shop", password(d)),
    "option-apart": lambda d: ("deploy --token {} now", pick(d, 32)),
    "bearer": lambda d: ("Authorization: Bearer {}", pick(d, 30, LETTERS + "._-")),
    "basic": lambda d: ('-H "Authorization: Basic {}"', base64.b64encode(f"me:{password(d)}".encode()).decode()),
    "postgres": lambda d: ("postgres://me:{}@db.local:5432/shop", password(d).replace("#", "").replace("%", "")),
    "redis": lambda d: ("REDIS_URL=redis://:{}@cache:6379/0", pick(d, 20)),
    "entropy": lambda d: ("SIGNING_SALT={}", pick(d, 40)),
    "entropy-yaml": lambda d: ('  upstream_credential_value: "{}"', pick(d, 32)),
    "said": lambda d: ("my password is {} by the way", password(d)),
    "private": lambda d: ("before <private>{}</private> after", pick(d, 12)),
}
"""A text with a secret that its surroundings tell of."""


def corpus() -> list[tuple[str, str, str]]:
    """Kind, text and the secret in it."""
    dice = random.Random(SEED)
    made = []
    for kind, secret in SECRETS.items():
        for number in range(A_KIND):
            value = secret(dice)
            made.append((kind, AROUND[number % len(AROUND)].format(value), value))
    for kind, make in NAMED.items():
        for _ in range(A_KIND):
            form, value = make(dice)
            made.append((kind, form.format(value), value))
    return made


HARMLESS: dict[str, Callable[[random.Random], str]] = {
    "sha": lambda d: f"commit {pick(d, 40, '0123456789abcdef')}\nAuthor: me",
    "short-sha": lambda d: f"fixed in {pick(d, 9, '0123456789abcdef')}",
    "sha256": lambda d: f"sha256:{pick(d, 64, '0123456789abcdef')}",
    "checksum": lambda d: f"checksum = {pick(d, 32, '0123456789abcdef')}",
    "uuid": lambda d: f'"id": "{uuid.UUID(int=d.getrandbits(128))}"',
    "session-id": lambda d: f"session_id={uuid.UUID(int=d.getrandbits(128))}",
    "tool-id": lambda d: f'"tool_use_id": "toolu_{pick(d, 24)}"',
    "integrity": lambda d: f'"integrity": "sha512-{base64.b64encode(d.randbytes(64)).decode()}"',
    "image": lambda d: f"![x](data:image/png;base64,{base64.b64encode(d.randbytes(400)).decode()})",
    "image-json": lambda d: json.dumps({"type": "image", "data": base64.b64encode(d.randbytes(300)).decode()}),
    "camel": lambda d: f"handler: {''.join(pick(d, 6, string.ascii_lowercase).title() for _ in range(5))}2",
    "path": lambda d: (
        f"see /home/me/{pick(d, 9, string.ascii_lowercase)}/src/{pick(d, 12, string.ascii_lowercase)}.py:12"
    ),
    "url": lambda d: f"https://example.org/{pick(d, 12)}/page?id={d.randint(1, 10**9)}",
    "port": lambda d: f"listening on http://127.0.0.1:{d.randint(1024, 65535)}/v1",
    "code-token": lambda d: f"token = next(tokens); max_tokens={d.randint(1, 9999)}; key = row['key']",
    "code-call": lambda d: 'password = getpass.getpass("Password: ")\nsecret = os.environ["APP_SECRET"]',
    "annotation": lambda d: "def login(user: str, password: str, token: str | None = None) -> Token: ...",
    "reference": lambda d: 'API_KEY=$OPENAI_API_KEY PASSWORD="${DB_PASSWORD}" run --token "$(cat token)"',
    "placeholder": lambda d: 'api_key="your-api-key-here" password=<password> postgres://user:${PASS}@host/db',
    "prose": lambda d: "The password is required, and the token must be refreshed: a key question of authentication.",
    "question": lambda d: "Why does the test of the secret store fail? Its key is not found.",
    "date": lambda d: f"2026-11-{d.randint(1, 28):02}T08:{d.randint(0, 59):02}:12.{d.randint(100, 999)}Z key=value",
    "yaml-secret": lambda d: "secretName: my-app-tls\nsecretKeyRef:\n  name: db\n  key: password",
    "lock": lambda d: f'name = "attrs"\nversion = "25.{d.randint(1, 9)}.0"\nfiles = ["attrs-25.whl"]',
    "base64-body": lambda d: f"content: {base64.b64encode(d.randbytes(90)).decode()}",
    "snake": lambda d: f"def test_{'_'.join(pick(d, 7, string.ascii_lowercase) for _ in range(6))}(): pass",
}


def harmless() -> list[tuple[str, str]]:
    dice = random.Random(SEED)
    made = [(kind, make(dice)) for kind, make in HARMLESS.items() for _ in range(A_KIND)]
    for path in sorted((Path(__file__).parents[2] / "daemon").rglob("*.py")):  # code as it is written
        lines = path.read_text("utf-8").splitlines()
        made += [(path.name, "\n".join(lines[at : at + 20])) for at in range(0, len(lines), 20)]
    return made


def test_secrets_are_caught() -> None:
    missed = [(kind, text) for kind, text, secret in corpus() if secret in redact(text)[0]]
    caught = 1 - len(missed) / len(corpus())
    assert caught >= 0.98, f"{caught:.1%} caught; missed {missed[:10]}"


def test_what_is_no_secret_is_left_alone() -> None:
    alarms = [(kind, redact(text)[0]) for kind, text in harmless() if redact(text)[1]]
    rate = len(alarms) / len(harmless())
    assert rate <= 0.01, f"{rate:.1%} false alarms: {alarms[:10]}"


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("spring.datasource.password=ApjbrK1svZkq\n", "spring.datasource.password=[redacted:password]\n"),
        ("Config::password = 'Xy7kfLw02aa'", "Config::password = '[redacted:password]'"),
        ("DB_PASSWORD=hunter2x", "DB_PASSWORD=[redacted:password]"),
        ("a\n<private>never mind</private>\nb", "a\n[redacted:private]\nb"),
        ("<PRIVATE>until the end", "[redacted:private]"),
        ('a <private reason="mine">b</private > c', "a [redacted:private] c"),
        ("run it with --key <private key> and <private/>", "run it with --key <private key> and <private/>"),
        ("redis://:p4ssw0rd@cache/0", "redis://:[redacted:url-password]@cache/0"),
        ('{"a":"export TOKEN=abc123def456ghi7\\nls"}', '{"a":"export TOKEN=[redacted:secret]\\nls"}'),
        ("Größe: ü PASSWORT_PASSWORD=geheim99ß ok", "Größe: ü PASSWORT_PASSWORD=[redacted:password] ok"),
        (f"TOKEN={'aB3x' * 100} end", "TOKEN=[redacted:secret] end"),
        ("nothing to see", "nothing to see"),
        ("", ""),
    ],
)
def test_mark_stands_where_the_secret_was(text: str, redacted: str) -> None:
    assert redact(text)[0] == redacted


@pytest.mark.parametrize(
    "line",
    [
        '"AWS::IAM::AccessKey": "62d91b17309e76c8",',
        '"AWS::Config::AggregationAuthorization": "af318b77aaceeeaa",',
        'model="meta-llama/Meta-Llama-3-8B-Instruct",',
        'client = InferenceClient("meta-llama/Meta-Llama-3-8B-Instruct")',
        '"depth": "lllyasviel/control_v11f1p_sd15_depth",',
        "obj.dtype = _float8_e4m3b11fnuz_dtype",
        "obj._machar = _Float8E4m3b11fnuzMachArLike()",
        "in `https://user:pass@host:port/path?query#fragment`",
        "'hdfs://username:pwd@node:123/mnt/datasets/test.csv'",
        "user.password=newPassword123",
    ],
)
def test_lines_of_published_code_are_left_alone(line: str) -> None:
    assert redact(line) == (line, {})


def test_what_was_taken_out_is_counted_by_kind() -> None:
    _, counts = redact("PASSWORD=hunter2x\nSECRET_TOKEN=hunter2xhunter2xh\n<private>x</private>\nDB_PASSWORD=hunter3x")
    assert counts == {"password": 2, "secret": 1, "private": 1}


def test_redacting_twice_changes_nothing() -> None:
    for _, text, _ in corpus():
        once, _ = redact(text)
        assert redact(once) == (once, {}), text


def test_redacted_tool_input_is_still_json() -> None:
    dice = random.Random(SEED)
    for make in NAMED.values():
        form, value = make(dice)
        text = json.dumps({"command": form.format(value), "description": 'it\'s "so"'})
        json.loads(redact(text)[0])


def test_objects_are_redacted_by_key_and_by_value() -> None:
    value = {"password": "hunter2", "nested": [{"note": "TOKEN=abc123def456ghi7"}], "count": 3, "title": "a plan"}
    cleaned, counts = redact_all(value)
    assert cleaned == {
        "password": "[redacted:password]",
        "nested": [{"note": "TOKEN=[redacted:secret]"}],
        "count": 3,
        "title": "a plan",
    }
    assert counts == {"password": 1, "secret": 1}


@given(st.text())
def test_any_text_is_survived(text: str) -> None:
    cleaned, counts = redact(text)
    assert counts or cleaned == text


@given(st.text(alphabet="pasword=:\"' \\\nkeytoken<>/@[]{}$x1é", max_size=200))
def test_texts_full_of_names_are_survived(text: str) -> None:
    cleaned, counts = redact(text)
    assert counts or cleaned == text
    assert redact(cleaned)[0] == cleaned


def test_long_text_is_cut_with_a_mark_and_one_that_fits_is_not() -> None:
    assert truncate("x" * 50, 100, slack=0) == "x" * 50
    assert truncate("x" * 1000, 100, slack=0) == "x" * 100 + "\n… [truncated]"
    assert truncate(None, 100) is None


def test_keys_of_objects_and_pairs_of_name_and_value_are_redacted() -> None:
    token = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"
    cleaned, counts = redact_all({token: 1, "env": [{"name": "DB_PASSWORD", "value": "hunter2"}]})
    assert cleaned == {"[redacted:api-key]": 1, "env": [{"name": "DB_PASSWORD", "value": "[redacted:password]"}]}
    assert counts == {"api-key": 1, "password": 1}


TOKEN = "ghp_frwhFjGH4l9YOgHNj3yitnLWvEf7EvYzn9Xw"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("\x1b[1m{}\x1b[0m done", "\x1b[1m[redacted:api-key]\x1b[0m done"),
        ("\x1b[32mtoken\x1b[0m{}", "\x1b[32mtoken\x1b[0m[redacted:api-key]"),
        ("\\u001b[33m{}\\u001b[0m", "\\u001b[33m[redacted:api-key]\\u001b[0m"),
        ("\\033[1;31m{}\\033[0m", "\\033[1;31m[redacted:api-key]\\033[0m"),
        ("see \u200b{}\u200b", "see \u200b[redacted:api-key]\u200b"),
    ],
)
def test_coloured_token_is_found(text: str, kept: str) -> None:
    assert redact(text.format(TOKEN))[0] == kept


@pytest.mark.parametrize("between", ["\x1b[31m", "\x1b[m\x1b[K", "\u200b", "\u00ad", "\ufeff"])
def test_token_with_something_invisible_in_it_is_found(between: str) -> None:
    assert redact(f"a {TOKEN[:14]}{between}{TOKEN[14:]} b")[0] == "a [redacted:api-key] b"


def test_value_of_a_coloured_name_is_found() -> None:
    grepped = "\x1b[35m.env\x1b[m\x1b[K\x1b[36m:\x1b[m\x1b[K\x1b[01;31mDB_PASSWORD\x1b[m\x1b[K=hunter2x"
    assert redact(grepped)[0] == grepped.replace("hunter2x", "[redacted:password]")


def test_secret_in_a_link_of_a_terminal_is_found() -> None:
    link = "\x1b]8;;https://ada:{}@example.org/\x1b\\the page\x1b]8;;\x1b\\"
    assert redact(link.format("hunter2x"))[0] == link.format("[redacted:url-password]")


@given(st.text(st.sampled_from(["\x1b", "[", "]", "8", ";", "1", "m", "\\", "\u200b", "a", "\x07"]), max_size=60))
def test_invisible_characters_without_secrets_stay(text: str) -> None:
    assert redact(text) == (text, {})


def test_value_in_json_that_was_encoded_again_and_again_is_found() -> None:
    text = json.dumps({"password": "hunter2x"})
    for _ in range(3):
        assert "hunter2x" not in redact(text)[0]
        text = json.dumps(text)


def test_percent_encoded_private_key_is_found() -> None:
    key = pem(random.Random(SEED))
    assert redact(f"curl -d key={quote(key)}&x=1")[0].endswith("[redacted:private-key]&x=1")


def test_private_parts_may_be_nested() -> None:
    assert redact("a <private>b <private>c</private> d</private> e")[0] == "a [redacted:private] e"


def test_private_key_that_was_cut_off_hides_nothing_after_it() -> None:
    text = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7v1x2y3z4w5v6u7t8s9r\nnot part of it"
    assert redact(text)[0] == "[redacted:private-key]\nnot part of it"


def test_clean_text_is_remembered_and_a_text_with_a_secret_is_not() -> None:
    clean = "a plain sentence about the weather " * 20
    secret = clean + "password=Tr0ub4dor99x"
    for _ in range(2):
        assert redact(clean) == (clean, {})
        text, counts = redact(secret)
        assert "Tr0ub4dor99x" not in text
        assert counts == {"password": 1}


def test_text_with_secrets_is_searched_once_if_it_comes_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[bytes] = []

    def find_no_tokens(data: bytes) -> list[Secret]:
        searched.append(data)
        return []

    monkeypatch.setattr(engine, "find_tokens", find_no_tokens)
    text = "a prompt is a message, and names its session\n" * 20 + "password=Tr0ub4dor77y"
    first, second = redact(text), redact(text)
    assert first == second == (text.replace("Tr0ub4dor77y", "[redacted:password]"), {"password": 1})
    assert len(searched) == 1


def test_anchors_are_found_by_the_automaton_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    literals = [*contexts.ANCHORS, *assignments.ANCHORS, b"s.", b"SK"]
    anchors = Anchors(literals)
    assert anchors._automaton is not None
    texts = [anchor + b"x" + other for anchor, other in itertools.pairwise(literals)]
    texts += [b"", b"nothing", b"\xff\xfepass\x00word: ", b"".join(literals), b"passpasspass"]
    by_automaton = [anchors.find(text) for text in texts]
    monkeypatch.setattr(anchors, "_automaton", None)
    assert by_automaton == [anchors.find(text) for text in texts]
    assert by_automaton[-1][b"pass"] == [0, 4, 8]
    assert by_automaton[-2].keys() == {*literals}


def test_what_ends_a_value_assigns_no_other() -> None:
    value, other = "c3VtbWVyIGFuZCB3aW50ZXIgYXJl", "kJ8sLq20Zx7VbN4mP1wRtYu6"
    assert redact(f"integrity={value}== {other}") == (f"integrity={value}== {other}", {})
    assert redact(f"x={other} y={other}")[1] == {"entropy": 2}
