"""Phrases by which people state something to remember, in English, German and Chinese."""

import re
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Rule:
    """A pattern of sentences that state something to remember: the group `fact`, or all of the sentence."""

    name: str
    category: str
    importance: float
    confidence: float
    pattern: str

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """The pattern, compiled on first use: most daemons never need it."""
        return re.compile(self.pattern, re.IGNORECASE)


LEAD = (
    r"^(?:(?:please|also|and|so|ok(?:ay)?|oh|btw|by the way|hey|right|just|but|yes|again|claude"
    r"|bitte|auch|und|übrigens|ach ja|also|ja|请|麻烦你?|另外|对了|顺便说一下|那么?)[,，:]?\s*)*"
)
_NO = r"^(?:no|nope|wrong|incorrect|actually|stop|wait|not quite|that'?s (?:wrong|not right|incorrect))\b[,.!:;\s–-]+"
_NEIN = r"^(?:nein|falsch|stopp?|halt|doch nicht|das (?:ist|war) falsch)\b[,.!:;\s–-]+"


def _rule(name: str, category: str, importance: float, confidence: float, *patterns: str) -> Rule:
    # A group name may occur once in a regular expression, so the groups are numbered.
    numbered = [pattern.replace("(?P<fact>", f"(?P<fact{number}>") for number, pattern in enumerate(patterns)]
    return Rule(name, category, importance, confidence, "|".join(numbered))


USER_RULES = (
    _rule(
        "remember", "fact", 0.8, 0.9,
        LEAD + r"(?:i (?:want|need|would like|'d like) you to |you (?:should|must) )?"
        r"(?:remember|keep in mind|bear in mind|don'?t forget)(?: that\b| this\b)?\s*[:,]?\s+"
        r"(?!when |how |what |why |if |whether |me\b|us\b|about it)(?P<fact>.+)$",
        LEAD + r"(?:note|make a note|take note|fyi|for future reference)(?: that\b|\s*[:,])\s*(?P<fact>.+)$",
        LEAD + r"(?:merke? dir|denke? (?:daran|dran)|beachte?|notiere?(?: dir)?|vergiss nicht),? dass .+$",
        LEAD + r"(?:merke? dir|denke? (?:daran|dran)|notiere?(?: dir)?|vergiss nicht|zur erinnerung)(?: bitte)?\s*[:,]"
        r"\s*(?!dass\b)(?P<fact>.+)$",
        LEAD + r"你?要?(?:记住|记一下|记得|牢记|注意|别忘了|不要忘记)(?:一下)?[:：,，]?\s*(?P<fact>.+)$",
    ),
    _rule(
        "from-now-on", "preference", 0.8, 0.85,
        LEAD + r"(?:from now on|going forward|from here on(?: out)?|in (?:the )?future|henceforth|next time)\b[,:]?\s+"
        r"(?!(?:we|it|this|that|i) (?:might|may|could|would)\b)(?P<fact>.+)$",
        LEAD + r"(?!i\b|there\b)(?P<fact>.{8,}?),? (?:from now on|going forward)[.!]*$",
        LEAD + r"(?:ab jetzt|ab sofort|von nun an|in zukunft|zukünftig|künftig|fortan|nächstes mal)\b[,:]?\s+.+$",
        LEAD + r"(?:从现在(?:开始|起)|以后|今后|往后|下次)(?:都)?[,，]?\s*(?P<fact>.+)$",
    ),
    _rule(
        "correction", "fact", 0.75, 0.8,
        _NO + r"(?:please )?"
        r"(?P<fact>(?:use|prefer|call|name|write|put|run|do|take|it'?s|it is|that'?s|we use|we call|the)\b.{2,150}?"
        r"(?:\binstead of\b|\brather than\b|\bin place of\b|,? (?:and )?not\b).{2,150})$",
        LEAD + r"(?:no[,.!]* )?"
        r"(?P<fact>(?:don'?t|do not) use .{2,80}?[,;.:–-]+\s*(?:use|but|instead|take)\b.{2,120})$",
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
        LEAD + r"(?P<fact>(?:i|we)(?:'d| would| really| strongly| generally| usually| much)* "
        r"(?:prefer|rather|favou?r|hate|dislike|can'?t stand|do(?:n'?t| not) like)\b.{3,})$",
        LEAD + r"(?P<fact>my (?:preference|preferred)\b.{3,})$",
        LEAD + r"(?P<fact>(?:you (?:should|must) |we |i )?(?:always|never)\b"
        r"(?! (?:mind|gets?|got|sees?|saw|have|had|been|fails?|works?|worked|said|asked|told|wanted|run into|seems?"
        r"|happens?|understood|knew|thought|heard|liked|loved|feel|felt|dreamed|wondered|here|there|happy|glad|an?|on|the"
        r"|good|nice|great|fun|so|\w+ing)\b).{5,})$",
        LEAD + r"(?P<fact>ich (?:bevorzuge|ziehe .{2,60} vor|mag (?:lieber|kein\w*|nicht)|hätte lieber|würde lieber"
        r"|hasse|will (?:immer|nie|kein\w*))\b.{3,})$",
        LEAD + r"(?P<fact>(?:immer|nie|niemals|stets|grundsätzlich)\b(?! (?:wieder|noch)\b).{5,})$",
        LEAD + r"(?P<fact>wir \w+ (?:immer|nie|niemals|stets)\b.{3,})$",
        LEAD + r"(?P<fact>我们?(?:更|比较|一般|通常|个人)?(?:喜欢|偏好|倾向于|偏爱|讨厌|不喜欢|习惯).{2,})$",
        LEAD + r"(?P<fact>(?:我们?)?"
        r"(?:总是|始终|一律|务必|必须始终|永远不要|永远别|绝不|绝对不要|从不|千万别|千万不要).{2,})$",
    ),
    _rule(
        "decision", "decision", 0.7, 0.7,
        LEAD + r"(?P<fact>(?:(?:we|i)(?:'ve| have)? (?:now |finally )?(?:decided|agreed|settled|opted)"
        r"|we(?:'ve| have)? (?:chosen|chose))\b.{5,})$",
        LEAD + r"(?P<fact>let'?s "
        r"(?:go with|use|stick (?:with|to)|switch to|adopt|standardi[sz]e on|settle on|keep using)\b.{3,})$",
        LEAD + r"(?P<fact>(?:we'?re|we are) "
        r"(?:going with|sticking (?:with|to)|switching to|moving (?:over )?to)\b.{3,})$",
        r"^(?:the )?decision(?: (?:is|was))?\s*(?::|to\b)\s*(?P<fact>.{8,})$",
        LEAD + r"(?P<fact>wir haben (?:uns )?.{0,100}?(?:entschieden|geeinigt|beschlossen)\b.{0,100})$",
        LEAD + r"(?P<fact>lass(?:t)? uns .{3,80} (?:nehmen|verwenden|nutzen|benutzen|bleiben)\b.{0,80})$",
        LEAD + r"(?P<fact>wir (?:bleiben bei|setzen auf|wechseln (?:zu|auf)|entscheiden uns (?:für|gegen))\b.{3,})$",
        LEAD + r"(?P<fact>(?:我们|咱们|我)?(?:已经|最终|还是)?(?:决定|选定|选择了|商定|一致同意).{2,})$",
        LEAD + r"(?P<fact>(?:就用|咱们用|我们采用|我们改用|我们就用).{2,})$",
    ),
)  # fmt: skip
ASSISTANT_RULES = (
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
ANNOUNCEMENT = re.compile(
    LEAD
    + r"(?:(?:remember|note|keep in mind)(?: this| the following)?|merke? dir(?: das| folgendes)?|记住|注意)\s*[:：]$",
    re.IGNORECASE,
)
"""A sentence that announces something to remember in the next one."""
