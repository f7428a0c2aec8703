"""Classification of memory texts by keywords: the sector, if none is given, and the concepts they name."""

import re

DEFAULT_SECTOR = "semantic"
MAX_CONCEPTS = 20
MIN_CONCEPT_CHARS = 3
MAX_CONCEPT_CHARS = 49

SECTOR_BOOST = {"reflective": 1.2, "semantic": 1.1, "procedural": 1.0, "emotional": 0.9, "episodic": 0.8}
"""Factor of each sector in the score of a search result."""

SECTOR_BY_CATEGORY = {
    "preference": "emotional", "codebase": "semantic", "fact": "semantic", "entity": "semantic",
    "decision": "reflective", "gotcha": "procedural", "pattern": "procedural", "fix": "procedural",
    "turn_summary": "reflective", "task_completion": "episodic", "event": "episodic",
}  # fmt: skip
"""Sector of each category that determines one."""

# The first sector wins a tie.
_SECTOR_WORDS = {
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
_PATTERNS = {sector: re.compile(signs, re.IGNORECASE) for sector, signs in _SECTOR_WORDS.items()}
# Inline code, or a run of characters that names consist of. Matching run by run takes linear time.
_CODE_OR_RUN = re.compile(r"`([^`\n]{1,200})`|([\w./-]+)")
_NAME = re.compile(
    r"(?:[\w.-]+/)+[\w.-]+\.\w+"  # paths
    r"|[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]+)+"  # CamelCase
    r"|[a-z0-9]+(?:_[a-z0-9]+)+"  # snake_case
)


def classify(content: str, category: str | None = None) -> str:
    """Return the sector of a category, or else the sector with the most keywords in the text."""
    if category in SECTOR_BY_CATEGORY:
        return SECTOR_BY_CATEGORY[category]
    counts = {sector: len(pattern.findall(content)) for sector, pattern in _PATTERNS.items()}
    best = max(counts.values())
    if not best:
        return DEFAULT_SECTOR
    return next(sector for sector, count in counts.items() if count == best)


def find_concepts(content: str) -> list[str]:
    """Return the distinct names in a text: inline code, paths, CamelCase and snake_case words."""
    names: dict[str, None] = {}
    for code, run in _CODE_OR_RUN.findall(content):
        name = code or run.strip("./-")
        if MIN_CONCEPT_CHARS <= len(name) <= MAX_CONCEPT_CHARS and (code or _NAME.fullmatch(name)):
            names[name] = None
    return list(names)[:MAX_CONCEPTS]
