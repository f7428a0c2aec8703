"""Rewrite the shared SQL for PostgreSQL.

Features write SQL as SQLite reads it. PostgreSQL reads most of it too, with the functions of migrations/postgres. This
module rewrites what is left, which is syntax: parameters, hints for the planner, `iif`, aggregates into JSON.

A statement is rewritten once for each combination of parameters that are NULL, booleans or lists of integers
(docs/decisions/0025).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

MAX_STATEMENTS = 4096

_TOKEN = re.compile(
    r"(?P<string>'(?:[^']|'')*')|(?P<quoted>\"[^\"]*\")|(?P<comment>--[^\n]*)|(?P<cast>::\w+)|(?P<param>:[A-Za-z_]\w*)"
    r"|(?P<word>[A-Za-z_]\w*)|(?P<number>\d+(?:\.\d+)?)|(?P<space>\s+)|(?P<other>.)",
    re.DOTALL,
)
_NOCASE_EQUAL = re.compile(r"([\w.]+|:\w+)\s*=\s*([\w.]+|:\w+)\s+COLLATE NOCASE", re.IGNORECASE)
_NOCASE = re.compile(r"([\w.]+)\s+COLLATE NOCASE", re.IGNORECASE)
_INDEXED = re.compile(r"\bINDEXED BY \w+|\bNOT INDEXED\b")
_CROSS_JOIN = re.compile(r"\bCROSS JOIN\b")
_TEMPORARY = re.compile(r"\btemp\.(?=\w)")
_UNARY_PLUS = re.compile(r"\b(AND|OR|WHERE|ON|BY)\s+\+(?=[A-Za-z_])")
_MATCH = re.compile(r"\b(\w+)\s+MATCH\s+:(\w+)")
_STORES_TEXTS = re.compile(r"\b(?:INTO|UPDATE)\s+(chunks|memories)\b")

FUNCTIONS = {"char": "chr", "json": "json_minified", "group_concat": "string_agg", "json_object": "json_build_object"}
"""Functions of SQLite that have another name."""


@dataclass(frozen=True)
class Statement:
    """A statement for PostgreSQL, with the names of its parameters in order, and of those that are search queries.

    `texts` is the table in which it may store texts whose words are indexed, if any.
    """

    sql: str
    parameters: tuple[str, ...]
    queries: frozenset[str]
    texts: str | None


def translate(sql: str, params: Mapping[str, Any]) -> Statement:
    """Return the statement for these parameters."""
    kinds = []
    for name, value in params.items():
        if value is None:
            kinds.append((name, "NULL"))
        elif isinstance(
            value, bool
        ):  # fits a boolean and a number: PostgreSQL takes the type of a literal from its place
            kinds.append((name, "'1'" if value else "'0'"))
        elif isinstance(value, str) and value[:1] == "[" and _is_integer_list(value):
            kinds.append((name, "integers"))
    return _rewrite(sql, tuple(kinds))


def _is_integer_list(value: str) -> bool:
    return value[1:2].isdigit() or (value[1:2] == "-" and value[2:3].isdigit())


@lru_cache(maxsize=MAX_STATEMENTS)
def _rewrite(sql: str, kinds: tuple[tuple[str, str], ...]) -> Statement:
    queries = frozenset(found[2] for found in _MATCH.finditer(sql))
    for pattern, replacement in (
        (_NOCASE_EQUAL, r"lower(\1) = lower(\2)"),
        (_NOCASE, r"lower(\1)"),
        (_INDEXED, ""),
        (_CROSS_JOIN, "JOIN"),
        (_TEMPORARY, ""),
        (_UNARY_PLUS, r"\1 "),
        (_MATCH, r"\1.words @@ :\2::tsquery"),
    ):
        sql = pattern.sub(replacement, sql)
    rewriter = _Rewriter(sql, dict(kinds))
    text = rewriter.rewrite()
    stores = _STORES_TEXTS.search(sql)
    return Statement(text, tuple(rewriter.parameters), queries, stores[1] if stores else None)


class _Rewriter:
    """Rewrites the tokens of one statement."""

    def __init__(self, sql: str, kinds: dict[str, str]) -> None:
        self.parameters: list[str] = []
        self._kinds = kinds
        self._tokens = [(found.lastgroup or "", found[0]) for found in _TOKEN.finditer(sql)]
        self._position = 0

    def rewrite(self) -> str:
        parts = []
        while self._position < len(self._tokens):
            parts.append(self._next())
        return "".join(parts)

    def _next(self) -> str:
        """Take a token, and of a function that is rewritten its arguments too."""
        kind, text = self._tokens[self._position]
        self._position += 1
        if kind == "comment":
            return ""
        if kind == "param":
            return self._parameter(text[1:])
        if kind != "word":
            return text
        word = text.lower()
        if word == "is":
            return text + self._distinct()
        if word in ("like", "glob"):
            return "ILIKE" if word == "like" else self._glob()
        if self._peek() == (0, "("):
            return self._call(word, text)
        return text

    def _parameter(self, name: str) -> str:
        literal = self._kinds.get(name)
        if literal is not None and literal != "integers":
            return literal
        if name not in self.parameters:
            self.parameters.append(name)
        return f"${self.parameters.index(name) + 1}"

    def _peek(self) -> tuple[int, str]:
        """Return the next token that is no space, and how many spaces come before it."""
        position = self._position
        while position < len(self._tokens) and self._tokens[position][0] in ("space", "comment"):
            position += 1
        return position - self._position, self._tokens[position][1] if position < len(self._tokens) else ""

    def _distinct(self) -> str:
        """Rewrite IS and IS NOT, which in SQLite compare any two values."""
        spaces, word = self._peek()
        negation = ""
        if word.upper() == "NOT":
            self._position += spaces + 1
            negation = " NOT"
            spaces, word = self._peek()
        if word.upper() in ("NULL", "TRUE", "FALSE", "DISTINCT"):
            return negation
        return " DISTINCT FROM" if negation else " NOT DISTINCT FROM"

    def _glob(self) -> str:
        spaces, pattern = self._peek()
        self._position += spaces + 1
        return "LIKE " + pattern.replace("%", r"\%").replace("*", "%")

    def _call(self, word: str, text: str) -> str:
        if word == "iif":
            condition, yes, no = self._arguments()
            return f"CASE WHEN {condition} THEN {yes} ELSE {no} END"
        if word == "json_group_array":
            return f"coalesce(json_agg({', '.join(self._arguments())})::text, '[]')"
        if word == "group_concat":
            arguments = self._arguments()
            return f"string_agg({', '.join(arguments if len(arguments) > 1 else [*arguments, repr(',')])})"
        if word == "json_each":
            [argument] = self._arguments()
            name = next((name for name in self._kinds if self._is_integers(name, argument)), None)
            if name is None:
                return f"json_each({argument})"
            is_aliased = self._peek()[1].upper() == "AS"
            return f"json_each_integer({argument})" + ("" if is_aliased else " AS json_each")
        return FUNCTIONS.get(word, text)

    def _is_integers(self, name: str, argument: str) -> bool:
        is_list = self._kinds[name] == "integers" and name in self.parameters
        return is_list and argument.strip() == f"${self.parameters.index(name) + 1}"

    def _arguments(self) -> list[str]:
        """Take the arguments of a call, up to its closing parenthesis."""
        spaces, _ = self._peek()
        self._position += spaces + 1
        arguments, depth = [""], 0
        while True:
            text = self._tokens[self._position][1]
            if text == ")" and depth == 0:
                self._position += 1
                return [argument.strip() for argument in arguments]
            if text == "," and depth == 0:
                self._position += 1
                arguments.append("")
                continue
            depth += {"(": 1, ")": -1}.get(text, 0)
            arguments[-1] += self._next()
