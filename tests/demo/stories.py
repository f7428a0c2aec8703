"""The sessions of the demo week: what was asked, answered, read, changed and run. All of it is invented."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Call:
    """A tool call of a turn."""

    name: str
    input: dict[str, Any]
    output: str = ""
    path: str | None = None
    failed: bool = False
    seconds: float = 0.4


@dataclass(frozen=True)
class Exchange:
    """A prompt, the calls that followed and the answer."""

    prompt: str
    answer: str
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True)
class Story:
    """A session: where it ran, when (days before now and hour), and what was said."""

    title: str
    project: str
    harness: str
    model: str
    days_ago: int
    hour: float
    exchanges: tuple[Exchange, ...]
    summary: str | None = None
    cost: float | None = None
    is_compacted: bool = False
    error: str | None = None
    subagents: tuple[str, ...] = field(default=())


def bash(command: str, output: str, failed: bool = False, seconds: float = 2.1) -> Call:
    return Call("Bash", {"command": command}, output, None, failed, seconds)


def read(path: str, output: str) -> Call:
    return Call("Read", {"file_path": path}, output, path, seconds=0.05)


def edit(path: str, old: str, new: str) -> Call:
    return Call("Edit", {"file_path": path, "old_string": old, "new_string": new}, "The file was updated.", path)


SHOP, PARSER, INFRA = "/home/ada/src/shop", "/home/ada/src/parser", "/home/ada/src/infra"

_EXPORT = f"{SHOP}/shop/export.py"
_LEXER = f"{PARSER}/parser/lexer.py"

STORIES = (
    Story(
        "CSV export drops the last row", SHOP, "claude-code", "claude-opus-5", 6, 9.2,
        (
            Exchange(
                "The CSV export drops the last row. Why?",
                "The writer is closed **before its buffer is flushed**, so the last partial block is lost.\n\n"
                "- `export_rows` opens the file with a 64 KB buffer\n- `close()` of the wrapped stream runs first\n\n"
                "I changed the order and added a test with an odd number of rows.",
                (
                    read(_EXPORT, "def export_rows(rows, path):\n    stream = open(path, 'wb', buffering=65536)\n    writer = BlockWriter(stream)\n    for row in rows:\n        writer.write(row)\n    stream.close()\n    writer.close()\n"),
                    bash("pytest tests/test_export.py -q", "F\nFAILED tests/test_export.py::test_odd_rows - assert 100 == 101\n1 failed in 0.42s", failed=True),
                    edit(_EXPORT, "    stream.close()\n    writer.close()\n", "    writer.close()  # flushes the last block\n    stream.close()\n"),
                    bash("pytest tests/test_export.py -q", ".\n1 passed in 0.31s"),
                ),
            ),
            Exchange("Remember this: always flush before close in the exporters.", "Noted. All exporters share `BlockWriter`, so the rule holds for JSON and XML, too."),
        ),
        summary="Fixed the CSV export: BlockWriter is closed before the stream, so the last block is flushed.", cost=0.42,
    ),
    Story(
        "JSON export loses data", SHOP, "codex", "gpt-6-codex", 3, 10.4,
        (
            Exchange(
                "Now the JSON export loses data when the cart has more than 1,000 lines.",
                "The same mistake as in the CSV export: the stream is closed before the writer. "
                "`BlockWriter` must be flushed before close. Fixed in `shop/json_export.py`.",
                (
                    read(f"{SHOP}/shop/json_export.py", "stream.close()\nwriter.close()\n"),
                    Call("apply_patch", {"file_path": f"{SHOP}/shop/json_export.py", "old_string": "stream.close()\nwriter.close()", "new_string": "writer.close()\nstream.close()"}, "Success", f"{SHOP}/shop/json_export.py"),
                    bash("pytest tests -q -k export", "...\n3 passed in 0.88s"),
                ),
            ),
        ),
        cost=0.18,
    ),
    Story(
        "Invoice totals are off by one cent", SHOP, "claude-code", "claude-opus-5", 5, 14.0,
        (
            Exchange(
                "Customers report invoices that are off by one cent. Find the cause.",
                "Totals are summed as floats and rounded at the end. With 3 × 0.335 the sum is 1.0049999.\n\n"
                "| Input | float | Decimal |\n|---|---|---|\n| 3 × 0.335 | 1.00 | 1.01 |\n| 7 × 0.145 | 1.01 | 1.02 |\n\n"
                "I suggest `Decimal` with `ROUND_HALF_UP` per line, as the tax office requires.",
                (
                    Call("Grep", {"pattern": "round\\(", "path": f"{SHOP}/shop"}, "shop/invoice.py:41: return round(sum(...), 2)", seconds=0.2),
                    read(f"{SHOP}/shop/invoice.py", "def total(lines):\n    return round(sum(line.price * line.count for line in lines), 2)\n"),
                ),
            ),
            Exchange(
                "Do it, and cover the table with tests.",
                "Done. `total` sums `Decimal` amounts that are rounded per line; 14 new cases pass.",
                (
                    edit(f"{SHOP}/shop/invoice.py", "    return round(sum(line.price * line.count for line in lines), 2)\n", "    return sum((rounded(line.price * line.count) for line in lines), Decimal(0))\n"),
                    Call("Write", {"file_path": f"{SHOP}/tests/test_invoice.py", "content": "CASES = [(3, '0.335', '1.02'), (7, '0.145', '1.05')]\n"}, "ok", f"{SHOP}/tests/test_invoice.py"),
                    bash("pytest tests/test_invoice.py -q", "..............\n14 passed in 0.51s"),
                ),
            ),
            Exchange("Which other places still use floats for money?", "Two: `shop/discounts.py:18` and the refund job. Both only *display* amounts, but I would change them, too."),
        ),
        summary="Invoice totals use Decimal with ROUND_HALF_UP per line. Floats are left in discounts and refunds.", cost=1.37,
        subagents=("Search for floats in money code",),
    ),
    Story(
        "Why is the watcher test flaky?", PARSER, "claude-code", "claude-sonnet-5", 4, 11.1,
        (
            Exchange(
                "tests/test_watcher.py fails about once in twenty runs on CI. Why?",
                "The test sleeps for 100 ms and then expects the event. On a busy machine inotify delivers later. "
                "It must wait for the event with a deadline instead of for a time.",
                (
                    read(f"{PARSER}/tests/test_watcher.py", "def test_event(tmp_path):\n    start(tmp_path)\n    (tmp_path / 'a').touch()\n    time.sleep(0.1)\n    assert events\n"),
                    bash("for i in $(seq 40); do pytest -q tests/test_watcher.py || break; done", "F\nE  assert []\n1 failed", failed=True, seconds=38),
                ),
            ),
            Exchange(
                "Fix it the way the other tests do.",
                "`eventually(condition)` polls until the deadline, as in `test_reload.py`. 200 runs pass.",
                (
                    edit(f"{PARSER}/tests/test_watcher.py", "    time.sleep(0.1)\n    assert events\n", "    eventually(lambda: events, 'the event arrived')\n"),
                    bash("for i in $(seq 200); do pytest -q tests/test_watcher.py || break; done", "200 × 1 passed", seconds=141),
                ),
            ),
        ),
        summary="The watcher test waited for a time instead of for the event; it now uses eventually().", cost=0.63,
    ),
    Story(
        "Rewrite the lexer with one regular expression", PARSER, "opencode", "claude-sonnet-5", 2, 13.5,
        (
            Exchange(
                "The lexer takes 40 % of the parse time. Profile it and suggest something.",
                "`next_token` calls `str.startswith` for each of 41 operators. One compiled alternation does the same in one pass:\n\n"
                "```python\nTOKEN = re.compile('|'.join(f'(?P<{name}>{pattern})' for name, pattern in RULES))\n```\n\n"
                "Expect about **3×** on the benchmark.",
                (
                    bash("python -m cProfile -s tottime bench.py | head -20", "   ncalls  tottime  filename:lineno(function)\n 8204113    4.812  lexer.py:77(next_token)\n 33121002   3.004  {method 'startswith' of 'str' objects}", seconds=14),
                    read(_LEXER, "def next_token(self):\n    for operator in OPERATORS:\n        if self.text.startswith(operator, self.at):\n            return self.take(operator)\n"),
                ),
            ),
            Exchange(
                "Go ahead. Keep the error positions exact.",
                "Done: 3.4× faster, and the 212 golden files are identical, positions included.",
                (
                    edit(_LEXER, "    for operator in OPERATORS:\n        if self.text.startswith(operator, self.at):\n            return self.take(operator)\n", "    found = TOKEN.match(self.text, self.at)\n    if found is None:\n        raise LexError(self.position)\n    return self.take(found)\n"),
                    bash("pytest -q", "212 passed in 9.14s", seconds=9.5),
                    bash("python bench.py", "lexer: 1.41 s (was 4.81 s)", seconds=3),
                ),
            ),
            Exchange(
                "And unicode identifiers?",
                "`str.isidentifier` semantics are kept: the pattern uses `[^\\W\\d]\\w*`. I added cases for `naïve` and `变量`.",
                (bash("pytest -q tests/test_unicode.py", "7 passed in 0.20s"),),
            ),
        ),
        summary="The lexer matches one compiled alternation: 3.4 times faster, golden files identical.", cost=2.91, is_compacted=True,
    ),
    Story(
        "Deploy fails with 'no space left on device'", INFRA, "gemini", "gemini-3-pro", 1, 16.2,
        (
            Exchange(
                "The deploy to staging fails: no space left on device. What fills the disk?",
                "Old container images: 61 GB in `/var/lib/containers`. Logs are fine. "
                "A weekly prune of images older than two weeks would keep it below 20 GB.",
                (
                    bash("ssh staging df -h /", "Filesystem  Size  Used Avail Use%\n/dev/sda1    98G   98G     0 100%"),
                    bash("ssh staging du -xsh /var/lib/* | sort -h | tail -3", "1.2G /var/lib/apt\n4.0G /var/lib/postgresql\n61G /var/lib/containers", seconds=22),
                ),
            ),
            Exchange(
                "Add the prune as a timer, not as cron.",
                "Added `prune-images.timer` (Sunday 04:00) to the staging role.",
                (
                    Call("write_file", {"file_path": f"{INFRA}/roles/staging/prune-images.timer", "content": "[Timer]\nOnCalendar=Sun 04:00\n"}, "ok", f"{INFRA}/roles/staging/prune-images.timer"),
                    bash("ansible-lint roles/staging", "ERROR: yaml[line-length] roles/staging/tasks/main.yml:12", failed=True),
                    bash("ansible-lint roles/staging", "Passed: 0 failures"),
                ),
            ),
        ),
        cost=0.09, error="The model's service was overloaded; the request was sent again.",
    ),
    Story(
        "Rotate the database password", INFRA, "claude-code", "claude-opus-5", 1, 9.0,
        (
            Exchange(
                "Rotate the password of the reporting user. We keep secrets in the vault, never in the repository.",
                "Rotated. The role reads `vault_reporting_password`; nothing is in the repository. The old password was revoked.",
                (
                    edit(f"{INFRA}/roles/db/vars.yml", "reporting_password: changeme\n", "reporting_password: '{{ vault_reporting_password }}'\n"),
                    bash("ansible-playbook db.yml --check", "changed=1 failed=0", seconds=31),
                ),
            ),
        ),
        summary="Rotated the reporting password; secrets are in the vault.", cost=0.25,
    ),
    Story(
        "Checkout: move to the payments service", SHOP, "claude-code", "claude-opus-5", 0, 9.3,
        (
            Exchange(
                "Plan the move of the checkout to the new payments service. Keep the invoice rounding as it is.",
                "1. Introduce `PaymentGateway` with the two calls the checkout needs\n2. Put the old provider behind it\n"
                "3. Add the new service, switched per shop\n4. Remove the old provider after two weeks\n\n"
                "The invoice totals stay `Decimal`, rounded per line.",
                (
                    Call("Grep", {"pattern": "charge\\(", "path": f"{SHOP}/shop"}, "shop/checkout.py:88\nshop/refunds.py:31", seconds=0.2),
                    read(f"{SHOP}/shop/checkout.py", "def pay(cart, card):\n    return provider.charge(card, total(cart.lines))\n"),
                ),
            ),
            Exchange(
                "Do steps 1 and 2.",
                "Both are done in two commits; all 340 tests pass.",
                (
                    Call("Write", {"file_path": f"{SHOP}/shop/gateway.py", "content": "class PaymentGateway(Protocol):\n    def charge(self, card: Card, amount: Decimal) -> Receipt: ...\n    def refund(self, receipt: Receipt) -> None: ...\n"}, "ok", f"{SHOP}/shop/gateway.py"),
                    edit(f"{SHOP}/shop/checkout.py", "    return provider.charge(card, total(cart.lines))\n", "    return gateway.charge(card, total(cart.lines))\n"),
                    bash("pytest -q", "340 passed in 21.72s", seconds=22),
                ),
            ),
            Exchange("What is left for tomorrow?", "Step 3: the adapter for the new service. Its sandbox needs the key from the vault."),
        ),
        cost=1.84, subagents=("Review the gateway interface", "Check the refund job"),
    ),
    Story(
        "Error messages name the expected token", PARSER, "codex", "gpt-6-codex", 0, 11.0,
        (
            Exchange(
                "Syntax errors should say what was expected, as rustc does.",
                "`expected ')' or ','` now follows the position. The expected set comes from the LL(1) table.",
                (
                    read(f"{PARSER}/parser/errors.py", "class SyntaxError_(Exception):\n    pass\n"),
                    Call("apply_patch", {"file_path": f"{PARSER}/parser/errors.py", "old_string": "    pass", "new_string": "    def __init__(self, at, expected):\n        super().__init__(f'{at}: expected {join(expected)}')"}, "Success", f"{PARSER}/parser/errors.py"),
                    bash("pytest -q", "219 passed in 9.20s", seconds=9.6),
                ),
            ),
        ),
        cost=0.31,
    ),
)  # fmt: skip

MEMORIES: tuple[dict[str, Any], ...] = (
    {"content": "In the exporters, close the BlockWriter before the stream: close() of the writer flushes the last block.", "category": "lesson", "importance": 0.9, "project": SHOP, "files": [_EXPORT], "tags": ["export"]},
    {"content": "Invoice totals are Decimal, rounded half up per line, as the tax office requires.", "category": "decision", "importance": 0.95, "pinned": True, "project": SHOP, "tags": ["money", "invoice"]},
    {"content": "Tests wait with eventually(condition), never with sleep.", "category": "convention", "importance": 0.8, "project": PARSER, "tags": ["tests"]},
    {"content": "The lexer matches one compiled alternation; the golden files in tests/golden must stay identical.", "category": "fact", "importance": 0.7, "project": PARSER},
    {"content": "Secrets are in the vault; the repository only names them (vault_…).", "category": "convention", "importance": 0.9, "project": INFRA, "tags": ["security"]},
    {"content": "Staging prunes container images older than two weeks on Sundays at 04:00.", "category": "fact", "importance": 0.5, "project": INFRA},
    {"content": "Ada prefers small commits with the reason in the body.", "category": "preference", "importance": 0.8, "pinned": True, "scope": "user:ada"},
    {"content": "We deploy on Tuesdays, never on Fridays.", "category": "convention", "importance": 0.6},
    {"content": "The payments service is switched per shop; the old provider stays for two weeks.", "category": "decision", "importance": 0.7, "project": SHOP, "tags": ["payments"]},
    {"content": "Redis was tried as a session store and was slower than PostgreSQL for our sizes.", "category": "lesson", "sector": "episodic", "importance": 0.2, "project": SHOP},
)  # fmt: skip

ENTITIES = (("BlockWriter", "technology"), ("Decimal", "technology"), ("payments service", "project"), ("lexer", "concept"), ("vault", "technology"), ("Ada", "person"), ("invoice", "concept"))  # fmt: skip
