"""Tokenising: additional forms of a text's words, and the words of a query."""

import re
import unicodedata
from itertools import product

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clankersd.index.tokenize import (
    MAX_QUERY_WORDS,
    MAX_WORDS_WITH_NUMBERS,
    STOP_WORDS,
    count_words,
    describe_dropped_words,
    other_forms,
    query_words,
)

NASTY = [
    '"',
    "'",
    "*",
    "^",
    "-",
    "(",
    ")",
    "NEAR(",
    " AND ",
    " OR ",
    " NOT ",
    "text:",
    "{a b}:",
    "\x00",
    "🐢",
    "漢字",
    "_",
]
any_text = st.one_of(st.text(), st.lists(st.one_of(st.sampled_from(NASTY), st.text(max_size=5))).map("".join))


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("parseHTTPResponse", ["parsehttpresponse", "parse", "http", "response"]),
        ("getUserById2", ["getuserbyid2", "user", "id", "2"]),
        ("XMLReader", ["xmlreader", "xml", "reader"]),
        ("snake_case_name", ["snake", "case", "name"]),
        ("__init__", ["init"]),
        ("MAX_RETRY_COUNT", ["max", "retry", "count"]),
        ("daemon/clankersd/index.py", ["daemon", "clankersd", "index", "py"]),
        ("C:\\Users\\ada\\notes.md", ["c", "users", "ada", "notes", "md"]),
        ("https://example.org/a-b?c=d", ["https", "example", "org", "b", "c"]),
        ("utf8 x86_64", ["utf8", "x86", "64"]),
        ("Straße Ölçü", ["straße", "ölçü"]),
    ],
)
def test_query_words_of_a_name_are_the_name_and_its_parts(query: str, words: list[str]) -> None:
    assert query_words(query) == words


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("漢", ["漢"]),
        ("漢字", ["漢字"]),
        ("東京都庁", ["東京", "京都", "都庁"]),
        ("日本語 and 中文", ["日本", "本語", "中文"]),
        ("Python言語", ["言語", "python"]),
        ("ひらがな", ["ひら", "らが", "がな"]),
        ("カタカナ", ["カタ", "タカ", "カナ"]),
    ],
)
def test_query_words_of_cjk_text_are_bigrams_or_a_single_character(query: str, words: list[str]) -> None:
    assert query_words(query) == words


def test_stop_words_are_dropped_unless_there_are_no_other_words() -> None:
    assert query_words("what is the plan for it") == ["plan"]
    assert query_words("to be or not to be") == ["to", "be", "or", "not"]
    assert query_words("The Who") == ["the", "who"]


def test_query_words_are_unique_and_in_order() -> None:
    assert query_words("zebra apple Zebra zebra") == ["zebra", "apple"]


def test_operators_are_ordinary_words() -> None:
    assert query_words("foo NEAR bar") == ["foo", "near", "bar"]
    assert query_words('"foo" NOT -bar* text:baz ^qux') == ["foo", "bar", "text", "baz", "qux"]


def test_query_without_words_has_no_words() -> None:
    assert query_words("") == query_words(' \x00 *"()🐢 -^: ') == []


def test_long_query_is_reduced_to_its_beginning_and_end_with_a_note() -> None:
    query = " ".join(f"word{number}" for number in range(100_000))
    words = query_words(query)
    assert (words[0], words[-1]) == ("word0", "word99999")
    assert len(words) == MAX_QUERY_WORDS
    characters = "of 988,889 characters the first and last 5,000 were read"
    searched = "of 1,138 words the first 40 and the last 24 were searched for"
    assert describe_dropped_words(query) == f"{characters}; {searched}"
    note = "of 100 words the first 40 and the last 24 were searched for"
    assert describe_dropped_words(" ".join(f"word{number}" for number in range(100))) == note
    assert describe_dropped_words(" ".join(f"word{number}" for number in range(64))) is None


def test_numbers_in_a_pasted_log_are_dropped_and_in_a_short_query_kept() -> None:
    assert query_words("port 8080") == ["port", "8080"]
    log = "\n".join(f"2026-11-{day} 0x7ffe{day} deadbeef{day} step alpha{chr(97 + day)}" for day in range(16))
    assert query_words(log) == ["step", *(f"alpha{chr(97 + day)}" for day in range(16))]
    assert describe_dropped_words(log) == "49 numbers were left out, since the query looks like a log"


PROSE = """Which commit fixed the flaky login test that failed on the staging runner every Monday morning, was it
3bf8fb80 or issue 4711, and does the proxy still listen on port 8443 after the certificate was renewed last week?"""

LIST = """Please look at these issues before the release and tell which of them block the migration of users:
1. the export of invoices fails in issue 4711
2. nobody can log in with an old password
3. the proxy refuses large uploads from phones
4. dates in the report are wrong after midnight
5. see commit 3bf8fb80 for the fix that was tried"""


@pytest.mark.parametrize(("query", "rarest"), [(PROSE, ["3bf8fb80", "4711", "8443"]), (LIST, ["4711", "3bf8fb80"])])
def test_numbers_and_hashes_in_prose_are_kept(query: str, rarest: list[str]) -> None:
    words = query_words(query)
    assert len(words) > MAX_WORDS_WITH_NUMBERS
    assert [word for word in words if word in rarest] == rarest
    assert describe_dropped_words(query) is None


PYTHON_TRACE = "\n".join(
    f'  File "/srv/app/module_{name}.py", line {37 * n + 11}, in handle_{name}\n    return process_{name}(request)'
    for n, name in enumerate(["alpha", "beta", "gamma", "delta", "epsilon"])
)
JAVA_TRACE = "\n".join(
    f"    at org.example.{name}.Service.run{name.title()}(Service{name.title()}.java:{100 + 7 * n})"
    for n, name in enumerate(["alpha", "beta", "gamma", "delta", "epsilon"])
)
NODE_TRACE = "TypeError: x is undefined " + " ".join(
    f"at {name} (/app/src/{name}.js:{12 + n}:{5 + n})"
    for n, name in enumerate(["read", "parse", "load", "start", "boot", "main"])
)
LOG = "\n".join(
    f"2026-11-18T06:2{n}:0{n} worker-{n} INFO request {4000 + n} took {31 + n} ms for {name}"
    for n, name in enumerate(["alice", "bob", "carol", "dave", "erin", "frank"])
)


@pytest.mark.parametrize("query", [PYTHON_TRACE, JAVA_TRACE, NODE_TRACE, LOG], ids=["python", "java", "node", "log"])
def test_numbers_in_logs_and_stack_traces_are_dropped_with_a_note(query: str) -> None:
    assert not [word for word in query_words(query) if word.isdigit()]
    assert "numbers were left out, since the query looks like a log" in str(describe_dropped_words(query))


@pytest.mark.parametrize(
    ("text", "forms"),
    [
        ("call parseConfigFile now", "parse config file"),
        ("plain words only", ""),
        ("snake_case", ""),  # the tokenizer parts it already
        ("東京都", "東 京 都 東京 京都"),
        ("readUtf8Line", "read utf 8 line"),
        ("café — parseConfig, HTTPServer…", "parse config http server"),
        ("naïve—loadFile—über", "load file"),
        ("parseConfig 東京", "parse config 東 京 東京"),
    ],
)
def test_other_forms_are_parts_of_names_and_cjk_unigrams_and_bigrams(text: str, forms: str) -> None:
    assert sorted(other_forms(text).split()) == sorted(forms.split())


@given(any_text)
def test_query_words_of_any_text_are_never_syntax(text: str) -> None:
    """Each is letters and digits, so that quoted it is one string to FTS5, whatever it says."""
    for word in query_words(text):
        assert word
        assert word == word.lower() or not word.isascii()
        assert not set(word) & set("\"'*^-():{}+ \x00_\n\t")
    assert len(query_words(text)) <= MAX_QUERY_WORDS
    assert count_words(text) >= 1
    assert "\x00" not in other_forms(text)


@given(any_text)
def test_query_words_of_any_text_match_without_an_error(text: str) -> None:
    db = apsw.Connection(":memory:")
    db.execute("CREATE VIRTUAL TABLE t USING fts5 (text, tokenize = 'porter unicode61 remove_diacritics 2')")
    for word in query_words(text):
        db.execute("SELECT * FROM t WHERE t MATCH ?", (f'"{word}"',)).fetchall()
    db.close()


@given(st.text(st.characters(codec="utf-8", categories=["L", "N"]), min_size=1, max_size=12))
def test_query_words_of_letters_and_digits_find_themselves(word: str) -> None:
    """What stands in a text is found by asking for it as it stands there."""
    db = apsw.Connection(":memory:")
    db.execute("CREATE VIRTUAL TABLE t USING fts5 (text, extra, tokenize = 'porter unicode61 remove_diacritics 2')")
    db.execute("INSERT INTO t VALUES (?, ?)", (word, other_forms(word)))
    asked = query_words(word)
    found = any(db.execute("SELECT 1 FROM t WHERE t MATCH ?", (f'"{one}"',)).fetchall() for one in asked)
    db.close()
    assert found, asked


def test_decomposed_accent_is_part_of_its_word() -> None:
    """As the tokenizer sees it; macOS writes file names so."""
    assert query_words("re\u0301sume\u0301s") == query_words("r\u00e9sum\u00e9s")


def test_stop_words_are_in_the_form_in_which_they_are_looked_up() -> None:
    assert all(word == word.lower() and word.isalpha() for word in STOP_WORDS)


@pytest.mark.parametrize(
    "text", ["σφάλμα", "йогурт её", "데이터베이스", "データベース", "Königsbrücke", "thất bại", "ΣΦΆΛΜΑ", "naïveParser"]
)
def test_other_forms_of_decomposed_words_are_those_of_composed_ones(text: str) -> None:
    """macOS writes file names so, and what is pasted from them."""
    decomposed = unicodedata.normalize("NFD", text)
    assert decomposed != text
    known = {word.lower() for word in re.findall(r"\w+", text) if word.isalpha()}
    assert known | set(other_forms(text).split()) >= set(other_forms(decomposed).split()) >= set(query_words(text))
    assert query_words(decomposed) == query_words(text)


def test_word_with_very_many_accents_is_composed_in_linear_time() -> None:
    text = "a" + "\u0301\u0316" * 200_000
    assert set(other_forms(text).split()) == {"á"}


def test_word_has_other_forms_if_a_capital_is_inside_it() -> None:
    hump = re.compile("[a-z][A-Z]|[A-Z]{2}[a-z]")
    words = ["".join(letters) for length in range(6) for letters in product("aA1_", repeat=length)]
    assert {word for word in words if other_forms(word)} == {word for word in words if hump.search(word)}


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("Warum flackern die Suchergebnisse?", ["flackern", "suchergebnisse"]),
        ("Comment fonctionne le cache de l'application ?", ["fonctionne", "cache", "application"]),
        ("por qué falla la prueba", ["falla", "prueba"]),
        ("почему не работает авторизация", ["работает", "авторизация"]),
        ("waarom werkt de test niet", ["werkt", "test"]),
        # English, programs, and what may be either
        ("why does die() kill the process", ["die", "kill", "process"]),
        ("sin cos tan", ["sin", "cos", "tan"]),
        ("locale de en fr", ["locale", "de", "en", "fr"]),
        ("list del dict pop", ["list", "del", "dict", "pop"]),
        ("plus size car", ["plus", "size", "car"]),
        ("for i in range(10)", ["range", "10"]),
        ("und", ["und"]),
        ("wie ist das denn", ["wie", "ist", "das", "denn"]),
    ],
)
def test_function_words_of_another_language_are_dropped_from_a_query_in_it(query: str, words: list[str]) -> None:
    assert query_words(query) == words
