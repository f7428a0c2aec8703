"""Candidates for memories, by rules: what was said plainly, which command worked, which files change together."""

import difflib
import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from clankers_protocol.memories import Candidate
from clankersd.index.words import STOP_WORDS
from clankersd.memories.extraction.noise import noise
from clankersd.memories.extraction.texts import closed, cut, ends, said, sentences
from clankersd.memories.likeness import content_hash
from clankersd.memories.sectors import classify

MOST_FIXES = 3
FIX_WITHIN = 10
"""Calls. What succeeds later than that has little to do with the failure."""

LONGEST_COMMAND = 200
ALIKE = 0.6
"""How alike two command lines are when one is the other put right."""

MOST_EDITED = 20
"""A session that edits more files says nothing about which belong together."""

OFTEN_TOGETHER = 3
"""Sessions in which files were edited together before that is worth knowing."""

LARGEST_GROUP = 6

EDITING = frozenset(
    """edit write multiedit multi_edit notebookedit notebook_edit apply_patch patch create create_file str_replace
    str_replace_editor str_replace_based_edit_tool write_file edit_file replace""".split()  # noqa: SIM905
)
"""Tools that change a file, in lower case."""


@dataclass(frozen=True)
class Said:
    """A message of a session."""

    id: str
    role: str
    text: str
    at: int


@dataclass(frozen=True)
class Call:
    """A tool call of a session; `success` is None where nobody told."""

    message_id: str | None
    name: str
    input: str
    success: bool | None
    error: str
    path: str | None
    at: int

    @property
    def failed(self) -> bool:
        return self.success is False or (self.success is None and bool(self.error))


@dataclass(frozen=True)
class Rule:
    """What a sentence looks like that says something to remember: the group `fact`, or all of it."""

    name: str
    category: str
    importance: float
    confidence: float
    signs: re.Pattern[str]


_LEAD = (
    r"^(?:(?:please|also|and|so|ok(?:ay)?|oh|btw|by the way|hey|right|just|but|yes|again|claude"
    r"|bitte|auch|und|übrigens|ach ja|also|ja|请|麻烦你?|另外|对了|顺便说一下|那么?)[,，:]?\s*)*"
)
_NO = r"^(?:no|nope|wrong|incorrect|actually|stop|wait|not quite|that'?s (?:wrong|not right|incorrect))\b[,.!:;\s–-]+"
_NEIN = r"^(?:nein|falsch|stopp?|halt|doch nicht|das (?:ist|war) falsch)\b[,.!:;\s–-]+"


def _rule(name: str, category: str, importance: float, confidence: float, *signs: str) -> Rule:
    # Each way of saying it has its own group of the same name, which one pattern may not have twice.
    numbered = [one.replace("(?P<fact>", f"(?P<fact{number}>") for number, one in enumerate(signs)]
    return Rule(name, category, importance, confidence, re.compile("|".join(numbered), re.IGNORECASE))


BY_USER = (
    _rule(
        "remember", "fact", 0.8, 0.9,
        _LEAD + r"(?:i (?:want|need|would like|'d like) you to |you (?:should|must) )?"
        r"(?:remember|keep in mind|bear in mind|don'?t forget)(?: that\b| this\b)?\s*[:,]?\s+"
        r"(?!when |how |what |why |if |whether |me\b|us\b|about it)(?P<fact>.+)$",
        _LEAD + r"(?:note|make a note|take note|fyi|for future reference)(?: that\b|\s*[:,])\s*(?P<fact>.+)$",
        _LEAD + r"(?:merke? dir|denke? (?:daran|dran)|beachte?|notiere?(?: dir)?|vergiss nicht),? dass .+$",
        _LEAD + r"(?:merke? dir|denke? (?:daran|dran)|notiere?(?: dir)?|vergiss nicht|zur erinnerung)(?: bitte)?\s*[:,]"
        r"\s*(?!dass\b)(?P<fact>.+)$",
        _LEAD + r"你?要?(?:记住|记一下|记得|牢记|注意|别忘了|不要忘记)(?:一下)?[:：,，]?\s*(?P<fact>.+)$",
    ),
    _rule(
        "from-now-on", "preference", 0.8, 0.85,
        _LEAD + r"(?:from now on|going forward|from here on(?: out)?|in (?:the )?future|henceforth|next time)\b[,:]?\s+"
        r"(?!(?:we|it|this|that|i) (?:might|may|could|would)\b)(?P<fact>.+)$",
        _LEAD + r"(?P<fact>.{8,}?),? (?:from now on|going forward|in (?:the )?future)[.!]*$",
        _LEAD + r"(?:ab jetzt|ab sofort|von nun an|in zukunft|zukünftig|künftig|fortan|nächstes mal)\b[,:]?\s+.+$",
        _LEAD + r"(?:从现在(?:开始|起)|以后|今后|往后|下次)(?:都)?[,，]?\s*(?P<fact>.+)$",
    ),
    _rule(
        "correction", "fact", 0.75, 0.8,
        _NO + r"(?:please )?(?P<fact>(?:use|prefer|call|name|write|put|run|do|take|it'?s|it is|that'?s|we use|we call|the)"
        r"\b.{2,150}?(?:\binstead of\b|\brather than\b|\bin place of\b|,? (?:and )?not\b).{2,150})$",
        _LEAD + r"(?:no[,.!]* )?(?P<fact>(?:don'?t|do not) use .{2,80}?[,;.:–-]+\s*(?:use|but|instead|take)\b.{2,120})$",
        _NO + r"(?P<fact>(?:it'?s|it is|the|we use|we have|our|this (?:project|repo\w*|service))\b"
        r"(?!.{0,80}\b(?:still|again|fail\w*|broken|errors?|not working|fine|ok)\b).{8,250})$",
        _NEIN + r"(?:bitte )?(?P<fact>(?:nimm|nutze?|benutze?|verwende|schreib\w*|es (?:ist|heißt)|wir \w+)\b.{2,120}?"
        r"\b(?:statt|anstatt|anstelle|nicht)\b.{2,120})$",
        r"^(?:nein[,.!]*\s*)?(?P<fact>.{0,60}\bnicht\b.{2,80},? sondern\b.{2,120})$",
        r"^(?:不对?|错了?|不行)[，,。.！!\s]+(?P<fact>.{0,40}(?:代替|替代|而不是|而是|改用|不是).{1,80})$",
        r"^(?:不[，,]\s*)?(?P<fact>(?:不要|别|不用)再?用.{1,40}?[，,、]\s*(?:请|要|而是|应该)?(?:改)?用.{1,60})$",
        r"^(?P<fact>.{0,30}不是.{1,40}?[，,]?(?:而是|[，,]是).{1,60})$",
    ),
    _rule(
        "preference", "preference", 0.7, 0.75,
        _LEAD + r"(?P<fact>(?:i|we)(?:'d| would| really| strongly| generally| usually| much)* "
        r"(?:prefer|rather|favou?r|hate|dislike|can'?t stand|do(?:n'?t| not) like)\b.{3,})$",
        _LEAD + r"(?P<fact>my (?:preference|preferred|favou?rite)\b.{3,})$",
        _LEAD + r"(?P<fact>(?:you (?:should|must) |we |i )?(?:always|never)\b(?! (?:mind|gets?|got|sees?|saw|have|had|fails?"
        r"|works?|worked|said|asked|told|wanted|run into|seems?|happens?|understood|knew|thought)\b).{5,})$",
        _LEAD + r"(?P<fact>ich (?:bevorzuge|ziehe .{2,60} vor|mag (?:lieber|kein\w*|nicht)|hätte lieber|würde lieber|hasse"
        r"|will (?:immer|nie|kein\w*))\b.{3,})$",
        _LEAD + r"(?P<fact>(?:immer|nie|niemals|stets|grundsätzlich)\b(?! (?:wieder|noch)\b).{5,})$",
        _LEAD + r"(?P<fact>wir \w+ (?:immer|nie|niemals|stets)\b.{3,})$",
        _LEAD + r"(?P<fact>我们?(?:更|比较|一般|通常|个人)?(?:喜欢|偏好|倾向于|偏爱|讨厌|不喜欢|习惯).{2,})$",
        _LEAD + r"(?P<fact>(?:我们?)?(?:总是|始终|一律|务必|必须始终|永远不要|永远别|绝不|绝对不要|从不|千万别|千万不要).{2,})$",
    ),
    _rule(
        "decision", "decision", 0.7, 0.7,
        _LEAD + r"(?P<fact>(?:we|i)(?:'ve| have)? (?:now |finally )?(?:decided|agreed|settled|opted|chosen|chose)\b.{5,})$",
        _LEAD + r"(?P<fact>let'?s (?:go with|use|stick (?:with|to)|switch to|adopt|standardi[sz]e on|settle on|keep using)"
        r"\b.{3,})$",
        _LEAD + r"(?P<fact>(?:we'?re|we are) (?:going with|sticking (?:with|to)|switching to|moving (?:over )?to)\b.{3,})$",
        r"^(?:the )?decision(?: (?:is|was))?\s*(?::|to\b)\s*(?P<fact>.{8,})$",
        _LEAD + r"(?P<fact>wir haben (?:uns )?.{0,100}?(?:entschieden|geeinigt|beschlossen)\b.{0,100})$",
        _LEAD + r"(?P<fact>lass(?:t)? uns .{3,80} (?:nehmen|verwenden|nutzen|benutzen|bleiben)\b.{0,80})$",
        _LEAD + r"(?P<fact>wir (?:bleiben bei|setzen auf|wechseln (?:zu|auf)|entscheiden uns (?:für|gegen))\b.{3,})$",
        _LEAD + r"(?P<fact>(?:我们|咱们|我)?(?:已经|最终|还是)?(?:决定|选定|选择了|商定|一致同意).{2,})$",
        _LEAD + r"(?P<fact>(?:就用|咱们用|我们采用|我们改用|我们就用).{2,})$",
    ),
)  # fmt: skip
BY_ASSISTANT = (
    _rule(
        "cause", "gotcha", 0.55, 0.5,
        r"^(?P<fact>the (?:root cause|underlying (?:problem|issue|cause))\b.{0,40}? (?:was|is)\b.{10,})$",
        r"^(?:it )?turns out(?: that)?,?\s+(?P<fact>.{15,})$",
        r"^(?P<fact>die (?:eigentliche )?ursache\b.{0,30} (?:war|ist)\b.{10,})$",
        r"^(?P<fact>(?:根本原因|问题的原因)(?:是|在于).{4,})$",
    ),
    _rule(
        "decision", "decision", 0.6, 0.55,
        r"^(?P<fact>we(?:'ve| have)? (?:decided|agreed|settled)\b.{5,})$",
        r"^(?P<fact>wir haben (?:uns )?.{0,100}?(?:entschieden|geeinigt|beschlossen)\b.{0,100})$",
        r"^(?P<fact>我们(?:已经|最终)?(?:决定|商定).{2,})$",
    ),
)  # fmt: skip
_RULES = {"user": BY_USER, "assistant": BY_ASSISTANT}

# "Remember this:", with what is to be remembered in the next sentence.
_ANNOUNCED = re.compile(
    _LEAD + r"(?:(?:remember|note|keep in mind)(?: this| the following)?|merke? dir(?: das| folgendes)?|记住|注意)\s*[:：]$",
    re.IGNORECASE,
)
_REASON = re.compile(
    r"^(?:because|otherwise|since|the reason|reason:|that way|weil|denn|sonst|andernfalls|因为|否则|这样)", re.IGNORECASE
)
_TO = re.compile(r"^to (?=[a-z])", re.IGNORECASE)
_PREFERENCE = re.compile(
    r"\b(?:prefer\w*|always|never|immer|nie|niemals|bevorzug\w*)\b|喜欢|总是"
    r"|^(?:use|do|don'?t|put|call|name|write|run|take|nimm|nutze?|benutze?|verwende|schreib\w*)\b|^(?:不要|别|不用|改?用)",
    re.IGNORECASE,
)
_BEGINNING = frozenset(
    """use run put call name write keep make take always never prefer let
    wir ich es immer nie niemals stets nimm nutz nutze benutze verwende""".split()  # noqa: SIM905
)

# Commands that look around: their failing says nothing, and neither does what is tried after them.
_LOOKING = frozenset(
    """ls cat head tail grep rg find fd cd echo pwd which sed awk wc tree stat file less diff test true sleep kill ps
    curl""".split()  # noqa: SIM905
)
_WORDLESS = re.compile(r"^(?:sudo |time |env |[A-Z_][A-Z0-9_]*=\S+ |cd [^&;|]+ && )+")


def candidates(messages: Iterable[Said]) -> list[Candidate]:
    """What the messages say plainly and is worth keeping, in their order, each once."""
    found: dict[str, Candidate] = {}
    for message in messages:
        for candidate in _of_message(message):
            found.setdefault(content_hash(candidate.content), candidate)
    return list(found.values())


def _of_message(message: Said) -> Iterable[Candidate]:
    rules = _RULES.get(message.role, ())
    told = sentences(ends(said(message.text))) if rules else []
    for number, sentence in enumerate(told):
        after = told[number + 1] if number + 1 < len(told) else ""
        if _ANNOUNCED.match(sentence) and after:
            sentence, after = f"Remember: {after}", ""
        for rule in rules:
            if fact := _fact(rule, sentence):
                if not noise(sentence) and not noise(fact):
                    yield _candidate(rule, fact, after, message)
                break


def _fact(rule: Rule, sentence: str) -> str | None:
    match = rule.signs.search(sentence)
    if match is None:
        return None
    return next((part for part in match.groups() if part), sentence).strip(" ,:：，")


def _candidate(rule: Rule, fact: str, after: str, message: Said) -> Candidate:
    content = _clean(fact)
    if _REASON.match(after) and not noise(after):
        content = cut(f"{content} {closed(after)}")
    category = "preference" if rule.category == "fact" and _PREFERENCE.search(content) else rule.category
    return Candidate(
        content=content,
        category=category,
        sector=classify(content, category),  # type: ignore[arg-type]  # it knows only sectors
        importance=rule.importance,
        confidence=rule.confidence,
        rule=rule.name,
        message_id=message.id,
    )


def _clean(fact: str) -> str:
    fact = _TO.sub("", fact)
    first = re.split(r"[ '’,]", fact, maxsplit=1)[0].lower()
    if first in STOP_WORDS or first in _BEGINNING:  # any other may be a name that is written small
        fact = fact[0].upper() + fact[1:]
    return closed(fact)


def fixes(calls: list[Call]) -> list[Candidate]:
    """Commands that failed, and what worked in their place soon after."""
    found: dict[str, Candidate] = {}
    for number, failed in enumerate(calls):
        wrong = _command(failed) if failed.failed else None
        right = wrong and _worked_instead(failed, wrong, calls[number + 1 : number + 1 + FIX_WITHIN])
        if wrong and right:
            candidate = _fix(wrong, right[0], failed, right[1])
            if not noise(candidate.content.replace("`", "")) or noise(candidate.content) in (None, "code"):
                found.setdefault(candidate.content, candidate)
    return list(found.values())[:MOST_FIXES]


def _worked_instead(failed: Call, wrong: str, later: list[Call]) -> tuple[str, Call] | None:
    for call in later:
        command = _command(call) if call.name == failed.name else None
        if command is None or call.success is not True:
            continue
        if command == wrong:  # something else was put right, not the command
            return None
        if _alike(wrong, command):
            return command, call
    return None


def _alike(wrong: str, right: str) -> bool:
    program, other = wrong.split()[:2], right.split()[:2]
    if len(program) == 2 and program == other:
        return True
    return difflib.SequenceMatcher(None, wrong, right, autojunk=False).ratio() >= ALIKE


def _fix(wrong: str, right: str, failed: Call, worked: Call) -> Candidate:
    why = next((line.strip() for line in failed.error.splitlines() if line.strip()), "")
    because = f" ({cut(why, 100).rstrip('.')})" if why and not noise(why) == "secret" else ""
    return Candidate(
        content=f"`{wrong}` failed{because}; `{right}` worked.",
        category="fix",
        sector="procedural",
        importance=0.6,
        confidence=0.6,
        rule="fix",
        message_id=worked.message_id or failed.message_id,
    )


def _command(call: Call) -> str | None:
    """The command line of a call; None where there is none, or none worth remembering."""
    line = _WORDLESS.sub("", command_line(call.input) or "").strip()
    program = line.partition(" ")[0].rpartition("/")[2]
    if not line or "\n" in line or "`" in line or len(line) > LONGEST_COMMAND or program in _LOOKING:
        return None
    return line


def command_line(tool_input: str) -> str | None:
    """What a shell was given, as harnesses write it down: `{"command": …}`, a list, or the line itself."""
    try:
        given: Any = msgspec.json.decode(tool_input)
    except msgspec.DecodeError:
        return None
    if isinstance(given, dict):
        given = given.get("command", given.get("cmd"))
    if isinstance(given, list) and all(isinstance(part, str) for part in given):
        given = given[-1] if given[:2] == ["bash", "-lc"] else " ".join(given)
    return given if isinstance(given, str) else None


def changed_together(own: set[str], by_session: Mapping[str, set[str]]) -> list[list[str]]:
    """Of the files a session edited, those that are edited together: often, and rarely one without the other."""
    if not 2 <= len(own) <= MOST_EDITED:
        return []
    groups: list[set[str]] = []
    for one, other in itertools.combinations(sorted(own), 2):
        if _belong_together(one, other, by_session):
            touching = [group for group in groups if group & {one, other}]
            groups = [group for group in groups if group not in touching] + [{one, other}.union(*touching)]
    return [sorted(group) for group in groups if len(group) <= LARGEST_GROUP]


def _belong_together(one: str, other: str, by_session: Mapping[str, set[str]]) -> bool:
    both = sum(1 for edited in by_session.values() if one in edited and other in edited)
    either = sum(1 for edited in by_session.values() if one in edited or other in edited)
    return both >= OFTEN_TOGETHER and both * 2 >= either


def together(groups: Iterable[list[str]], root: str | None) -> list[Candidate]:
    """A candidate for each group of files that change together; inside the project paths are its own."""
    return [_together([_inside(path, root) for path in group], group) for group in groups]


def _together(names: list[str], files: list[str]) -> Candidate:
    listed = ", ".join(f"`{name}`" for name in names[:-1])
    return Candidate(
        content=f"{listed} and `{names[-1]}` are edited together.",
        category="codebase",
        sector="semantic",
        importance=0.4,
        confidence=0.6,
        rule="files",
        message_id=None,
        files=files,
    )


def _inside(path: str, root: str | None) -> str:
    return path.removeprefix(root.rstrip("/") + "/") if root else path
