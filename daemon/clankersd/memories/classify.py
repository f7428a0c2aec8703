"""What kind of memory a text is, found from its words when nobody says."""

import re

DEFAULT = "semantic"
MAX_CONCEPTS = 20
SHORTEST, LONGEST = 3, 49

SECTOR_BOOST = {"reflective": 1.2, "semantic": 1.1, "procedural": 1.0, "emotional": 0.9, "episodic": 0.8}
"""What a sector adds to how well a memory fits a question."""

SECTOR_BY_CATEGORY = {
    "preference": "emotional", "codebase": "semantic", "fact": "semantic", "entity": "semantic",
    "decision": "reflective", "gotcha": "procedural", "pattern": "procedural", "fix": "procedural",
    "turn_summary": "reflective", "task_completion": "episodic", "event": "episodic",
}  # fmt: skip
"""The sector of a category, where it has one."""

# In the order in which a tie is decided.
_SIGNS = {
    "emotional": r"\b(prefers?|likes?|loves?|hates?|dislikes?|annoy\w*|frustrat\w*|happy|unhappy|enjoys?|favou?rite"
    r"|tired of|sick of|glad|worried|wants?)\b",
    "reflective": r"\b(decid\w+|because|lesson|learn(ed|t)|reali[sz]\w+|insight|turns out|trade-?offs?|should have"
    r"|instead of|conclu\w+|in hindsight|rationale|chose|favou?rs)\b",
    "episodic": r"\b(yesterday|today|tomorrow|last (week|month|night|time)|asked|said|told|happened|met|discussed"
    r"|(mon|tues|wednes|thurs|fri|satur|sun)day|on 20\d\d-\d\d-\d\d|finished|completed|this (morning|afternoon))\b",
    "procedural": r"\b(run|runs|use|install|deploy\w*|build|how to|steps?|first|then|execute|command|configure|set up"
    r"|restart|must be run|workflow|before committing|make sure)\b|`[^`]+`|\$ ",
    "semantic": r"\b(is|are|has|have|contains?|located|lives in|means|consists|stores?|supports?|listens|version)\b",
}
_PATTERNS = {sector: re.compile(signs, re.IGNORECASE) for sector, signs in _SIGNS.items()}
# What a name may be made of, a run at a time: each run is looked at once, however long it is.
_RUN = re.compile(r"`([^`\n]{1,200})`|([\w./-]+)")
_NAME = re.compile(
    r"(?:[\w.-]+/)+[\w.-]+\.\w+"  # paths
    r"|[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]+)+"  # CamelCase
    r"|[a-z0-9]+(?:_[a-z0-9]+)+"  # snake_case
)


def classify(content: str, category: str | None = None) -> str:
    """The sector of a text: its category's, or the one whose signs it shows most."""
    if category in SECTOR_BY_CATEGORY:
        return SECTOR_BY_CATEGORY[category]
    counts = {sector: len(pattern.findall(content)) for sector, pattern in _PATTERNS.items()}
    best = max(counts.values())
    return next(sector for sector, count in counts.items() if count == best) if best else DEFAULT


def find_concepts(content: str) -> list[str]:
    """Names in a text that it may be looked for by: code, paths, CamelCase, snake_case."""
    found: dict[str, None] = {}
    for code, run in _RUN.findall(content):
        name = code or run.strip("./-")
        if SHORTEST <= len(name) <= LONGEST and (code or _NAME.fullmatch(name)):
            found[name] = None
    return list(found)[:MAX_CONCEPTS]
