"""The table of redaction rules, measured on texts made from it, on texts it was not made from, and on hostile ones."""

import random
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.hostile_texts import HOSTILE, repeated

from clankersd.redaction.engine import redact
from clankersd.redaction.rules import CONTEXTS, NAMES, TOKENS, Context, Token, fill

SEED = 4711
EXAMPLES = 12
"""Random secrets made of each example."""

AROUND = {
    "alone": "{}",
    "prose": "use {} from now on",
    "environment": 'export KEY="{}"',
    "json": '{{"command": "curl -H \'x-api-key: {}\' localhost"}}',
    "yaml": "upstream:\n  value: {}\n",
    "code": "client = Client('{}')",
    "address": "https://example.org/a?b={}&c=1",
    "log": "2026-01-01T00:00:00Z ERROR auth failed for {}: 401",
    "escaped": '{{"body": "first\\n{}\\nlast"}}',
    "markdown": "1. `{}`",
}

NAMED = (
    "{name}={value}",
    "export {name}={value}",
    '{name}="{value}"',
    "{name}: {value}",
    '"{name}": "{value}"',
    "'{name}': '{value}',",
    '{name} = "{value}"',
    "{name} => '{value}'",
    '{{\\"{name}\\":\\"{value}\\"}}',
    "x --set {name}={value} y",
    'os.environ["{name}"] = "{value}"',
    '{name}: str = "{value}"',
)
PASSWORD_NAMES = (
    "DB_PASSWORD",
    "password",
    "dbPassword",
    "smtp_pass",
    "db.pwd",
    "MYSQL_PWD",
    "passphrase",
    "POSTGRES_PASSWORD_PROD",
)
SECRET_NAMES = (
    "API_KEY",
    "apiKey",
    "client_secret",
    "SECRET_KEY",
    "auth_token",
    "accessToken",
    "aws_secret_access_key",
    "private_key",
    "SESSION_SECRET",
    "x-api-key",
    "AccountKey",
    "signing_key",
    "SHARED_ACCESS_KEY",
    "JWT_SECRET",
    "secret_key_base",
    "stripe_key",
    "HEROKU_API_KEY",
)

OTHERS = (
    ("ansible_become_pass: bDBUxGEslqqy", "bDBUxGEslqqy"),
    ('"Server=s;User Id=sa;Password=LlZMkuiFDore;Encrypt=true"', "LlZMkuiFDore"),
    ('{"routing_key": "fe9295591b9f451ff3656bb26a226ae0"}', "fe9295591b9f451ff3656bb26a226ae0"),
    ("https://api.telegram.org/bot6566881710:AA7oEf0p1PwkAYck6PLmwqbyJHKjBHyUhXI/getMe", "7oEf0p1PwkAYck6PLmwqbyJHK"),
    ("analytics = Analytics('Up1FO8KTBiUpcNLEWCCO94cAD1NfnYZ6')", "Up1FO8KTBiUpcNLEWCCO94cAD1NfnYZ6"),
    ("app.keys = ['XUwocd9CWP4jYpLjOCTSSWQOb4PW8l65'];", "XUwocd9CWP4jYpLjOCTSSWQOb4PW8l65"),
    ("# the token xui4rNwRsFqxJw8dRRSLS4V6nxl5VKtM8TTeMvOJNiZ8JLrC4yx7ihPZK055baKL", "xui4rNwRsFqxJw8dRRSLS4V6"),
    ("user: deploy pw: 3ZokYwtmEVx9", "3ZokYwtmEVx9"),
    ("le mot de passe est YIgIwz4jaV8o", "YIgIwz4jaV8o"),
    ("contraseña: bLrYVkT8G853", "bLrYVkT8G853"),
    ('DriverManager.getConnection(url, "root", "K1uimJSmSruc")', "K1uimJSmSruc"),
    ("xcrun notarytool submit a.zip --apple-id me --password ctkn-azbm-kepw-ojru", "ctkn-azbm-kepw-ojru"),
    ("snyk auth 7af89236-9e87-3fa8-3411-0fb1e652ef75", "7af89236-9e87-3fa8-3411-0fb1e652ef75"),
    ("mysql -u root -p hunter2", "hunter2"),
    ("curl -u admin:letmein http://x", "letmein"),
    ("sshpass -p hunter2 ssh a@b", "hunter2"),
    ("Cookie: sessionid=38afes7a8; csrftoken=abc123def456", "38afes7a8"),
    ("    client-key-data: LS0tLS1CRUdJTiBSU0EgUFJJVkFURSBLRVktLS0tLQpNSUlFb3dJQkFBS0NBUUVB", "LS0tLS1CRUdJTiBSU0Eg"),
    ("apiVersion: v1\nkind: Secret\ndata:\n  username: YWRtaW4=\n  tls.key: LS0tLS1CRUdJTiBQUk\n", "YWRtaW4="),
    ("https://a.blob.core.windows.net/c?sv=2020-08-04&sp=r&sig=abcDEF123%2Fghi456JKL789mno%3D", "abcDEF123%2Fghi"),
    ("PRIVATE_KEY=0x4c0883a69102937d6231471b5dbb6204fe5129617082792ae468d01a3f362318", "4c0883a69102937d"),
    ("cast send --private-key 0x4c0883a69102937d6231471b5dbb6204fe5129617082792ae468d01a3f362318", "4c0883a69102937d"),
    ("AccountName=x;AccountKey=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq==;", "Eby8vdM02"),
    ("Server=db;Database=x;User Id=sa;Password=Str0ng!Pass;", "Str0ng!Pass"),
    ("password = hunter2x", "hunter2x"),
    ('"auths": {"https://index.docker.io/v1/": {"auth": "dXNlcjpwYXNzd29yZA=="}}', "dXNlcjpwYXNzd29yZA"),
    ("//npm.pkg/:_authToken=3b8f7a1c-1234-4a5b-9c8d-abcdef012345", "3b8f7a1c-1234"),
    ("Authorization: Basic dXNlcjpwYXNzd29yZA==", "dXNlcjpwYXNzd29yZA"),
    ('"key": "-----BEGIN PRIVATE KEY-----\\nMIIEvQIBADANBgkqhkiG9w0BAQ\\n-----END PRIVATE KEY-----"', "MIIEvQIBADAN"),
    ("PGPASSWORD=swordfish psql -h x", "swordfish"),
    ("rails master key: 0123456789abcdef0123456789abcdef", "0123456789abcdef"),
    ("user=admin&password=hunter2&x=1", "hunter2"),
    ("PrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=", "yAnz5TF"),
    ("token:\nghp_abcdefghijKLMNOP12\n34567890qrstuvWXYZ12\n", "34567890qrstuvWXYZ12"),
    (
        "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9\n.eyJzdWIiOiIxMjM0NTY3ODkwIn0\n.SflKxwRJSMeKKF2QT4fwpMeJf36POk6y",
        "SflKxwRJSMeKKF2QT4",
    ),
    ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalrXUtnFEMI"),
    ("MYSQL_ROOT_PASSWORD=sword-fish", "sword-fish"),
    ("kubectl config set-credentials bob --token=abcDEF123.ghiJKL456", "abcDEF123"),
    ("COOKIE_SECRET=keyboard-cat-9000", "keyboard-cat-9000"),
    ("SENTRY_DSN=https://0123456789abcdef0123456789abcdef@o1.ingest.sentry.io/67", "0123456789abcdef"),
    ("APP_KEY=base64:Zm9vYmFyYmF6cXV4MTIzNDU2Nzg5MGFiY2RlZjEyMzQ=", "Zm9vYmFyYmF6"),
    ("conn = connect(host='x', user='y', password='Pa55word!')", "Pa55word!"),
    ("use the key sk-abcdefghijklmnopqrstuvwx for the tests", "sk-abcdef"),
    ("the acme key acme_live_16C7e42F292c6912E7710c838347 works", "16C7e42F292c69"),
)
"""Texts that no rule's example was made for."""

HARMLESS = (
    "password: getUserPWDFromHTTPSURL",
    "hash the password Argon2id with a salt",
    'cache_key("d41d8cd98f00b204e9800998ecf8427e")',
    "| token | string | required | the token of the user |",
    "git rebase --onto 9775a026f1ca7d1c6c5af9d94d9595a49775a026 main",
    'expect(render("componentWithManyWords2")).toBe("componentWithManyWords3")',
    'const token = process.env.API_TOKEN || ""',
    "github.com/a/b v1.2.3 h1:Up1FO8KTBiUpcNLEWCCO94cAD1NfnYZ6Zx9qLw8Rt5P=",
    "background: url(data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk)",
    "request 7af89236-9e87-3fa8-3411-0fb1e652ef75 took 12 ms",
    "github.com/pkg/errors v0.9.1 h1:FEBLx1zS214owpjy7qsBeixbURkuhQAwrK5UwLGTwt4=",
    "url: dpl_7Gw5ZMBvsPeKfE8Q4nKbYcXJz3aT",
    "password = get_password()",
    "password: Optional[str] = None",
    "api_key: <your-key>",
    "token: ${{ secrets.NPM_TOKEN }}",
    "token = $TOKEN",
    '"integrity": "sha512-abcDEF123ghiJKL456mnoPQR789stuVWX012yzaBCD345efgHIJ678klmNOP901qrsTUV234wxyZAB567cde=="',
    "commit 9775a026f1ca7d1c6c5af9d94d9595a49775a026",
    "self.token = token",
    "const token = await getToken(user1)",
    "password_hash = hash_password(password1)",
    "docker run -p 8080:80 nginx",
    "mkdir -p src/foo2",
    "ssh -p 2222 host",
    "docker run -u 1000:1000 x",
    "docker exec -u node:node x",
    "git push -u origin feature2",
    "pytest -p no:cacheprovider -x",
    "unzip -p archive2.zip",
    "Set-Cookie: name=value",
    "primary_key=True",
    "Bearer authentication is required",
    "the token is invalid",
    "password is required",
    "password is stored as sha256",
    "max_tokens=1000000",
    '<label for="password">Password</label>',
    "<password>string</password>",
    "txHash: 0x4c0883a69102937d6231471b5dbb6204fe5129617082792ae468d01a3f362318",
    'public_key = "MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAu1SU1LfVLPHCozMxH2Mo"',
    "password = request.form['password']",
    "secret = base64.b64decode(x)",
    'resolved "https://registry.yarnpkg.com/a/-/a-1.0.0.tgz#9775a026f1ca7d1c6c5af9d94d9595a49775a026"',
    "-----BEGIN PRIVATE KEY-----",
    "if '-----BEGIN RSA PRIVATE KEY-----' in text:",
    "api_key = settings.API_KEY_2",
    "API_KEY=your_api_key_here",
    "sk-...",
    "ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "session_id: 01234567-89ab-cdef-0123-456789abcdef",
    "compass: north12",
    "bypass=true1",
    '"minipass": "^7.0.3",',
    'password: "********"',
    "Tag: cp310-abi3-manylinux_2_17_x86_64",
    "private_key: ed25519.Ed25519PrivateKey, x: int",
    "password = password[:127]",
    "group_order = 0x8CB91E82A3386D280F5D6F7E50E641DF152F7109ED5456B31F166E6CAC0425A7",
    "exports.bigIntAndBufferInt64Check = bigIntAndBufferInt64Check;",
    "msbuild x.vcxproj /m /p:OutDir=lib",
    "sk-fading-circle-delay-animation-container",
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl me@host",
    "image: registry/app@sha256:9775a026f1ca7d1c6c5af9d94d9595a4",
)


def made_secrets() -> Iterator[tuple[str, str, str]]:
    """Rule, text and the secret in it."""
    dice = random.Random(SEED)
    for token in TOKENS:
        for example in token.examples:
            for place, form in AROUND.items():
                secret = fill(example, dice)
                yield f"{token.name} ({place})", form.format(secret), secret
    for context in CONTEXTS:
        for form, example in context.examples:
            for _ in range(EXAMPLES):
                secret = fill(example, dice)
                yield context.name, fill(form.replace("{}", "\0"), dice).replace("\0", secret), secret
    kinds = [(name, "{p}") for name in PASSWORD_NAMES]
    kinds += [(name, example) for name in SECRET_NAMES for example in ("{a32}", "{h40}", "{b39}=")]
    for name, example in kinds:
        for form in NAMED:
            secret = fill(example, dice)
            yield f"{name} in {form}", form.format(name=name, value=secret), secret
    yield from (("other", text, secret) for text, secret in OTHERS)


def real_lines() -> Iterator[str]:
    """Lines of this repository, and of the packages it depends on: code, metadata, records of hashes."""
    here = Path(__file__).resolve().parents[2]
    for folder, pattern in (("daemon", "*.py"), ("client", "*.py"), ("docs", "*.md"), ("migrations", "*.sql")):
        for path in sorted((here / folder).rglob(pattern)):
            if path.name != "rules.py":
                yield from path.read_text("utf-8").splitlines()
    packages = [Path(entry) for entry in sys.path if entry.endswith("site-packages")]
    paths = sorted(
        path for folder in packages for path in folder.rglob("*") if path.name in ("METADATA", "RECORD", "WHEEL")
    )
    for path in paths:
        yield from path.read_text("utf-8", "ignore").splitlines()[:400]


def test_rules_catch_what_they_were_made_for() -> None:
    made = list(made_secrets())
    missed = [(rule, text) for rule, text, secret in made if secret in redact(text)[0]]
    caught = 1 - len(missed) / len(made)
    assert caught >= 0.985, f"{caught:.1%} of {len(made)} caught; missed {missed[:10]}"


@pytest.mark.parametrize(("text", "secret"), OTHERS)
def test_secrets_that_no_example_was_made_for_are_caught(text: str, secret: str) -> None:
    assert secret not in redact(text)[0]


@pytest.mark.parametrize("text", HARMLESS)
def test_lookalikes_are_left_alone(text: str) -> None:
    assert redact(text) == (text, {})


def test_real_lines_are_left_alone() -> None:
    lines = [line for line in real_lines() if "<private>" not in line]
    alarms = [line for line in lines if redact(line)[1]]
    assert len(lines) > 2500
    assert len(alarms) <= len(lines) / 10_000, f"{len(alarms)} of {len(lines)}: {alarms[:10]}"


def test_rules_are_complete() -> None:
    rules: list[Token | Context] = [*TOKENS, *CONTEXTS]
    names = [rule.name for rule in rules]
    assert len(names) == len(set(names)), "each rule has a name of its own"
    for rule in rules:
        assert rule.source, rule.name
        assert rule.examples, rule.name
        assert re.fullmatch("[a-z-]+", rule.kind), rule.name
    assert len({name.word for name in NAMES}) == len(NAMES)


@pytest.mark.parametrize("piece", HOSTILE)
def test_time_grows_linearly_with_the_text(piece: str) -> None:
    """Four times the text takes about four times as long; of a quadratic search it would be sixteen times."""

    def seconds(characters: int) -> float:
        text = repeated(piece, characters)
        best = float("inf")
        for _ in range(3):
            began = time.process_time()
            redact(text)
            best = min(best, time.process_time() - began)
        return best

    assert seconds(64_000) < 9 * max(seconds(16_000), 0.0005)
