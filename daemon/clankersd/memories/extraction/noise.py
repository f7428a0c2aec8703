"""Noise filter: texts not worth remembering, like small talk, questions, anger, code, secrets and prompt injections."""

import re
from functools import cache

from clankersd.index.tokenize import STOP_WORDS
from clankersd.memories.extraction.message_text import count_ideographs, has_secret

MIN_WORDS = 3
MIN_IDEOGRAPHS = 5
MAX_SYMBOL_SHARE = 0.18
MAX_WORD_CHARS = 80

_POLITE = (
    "hi|hello|hey|yo|good (?:morning|evening|afternoon|night)|thanks?|thank you|thx|cheers|please|ok(?:ay)?|sure|yes"
    "|yeah|yep|no|nope|great|perfect|cool|nice|awesome|excellent|wonderful|lgtm|sounds good|looks good|got it|well done"
    "|done|good job|so much|very much|a lot|there|all|again|team|everyone|bye|see you|you too|go ahead|continue|go on"
    "|hallo|moin|servus|grüß (?:dich|gott)|guten (?:tag|morgen|abend)|danke|schön|dir|sehr|vielen dank|bitte|ja|nein"
    "|gut|super|passt|alles klar|genau|zusammen|tschüss|weiter|mach weiter"
    "|你好|您好|嗨|早上好|晚上好|大家好|谢谢你?|多谢|感谢|非常|好的?|行|可以|没问题|不客气|收到|继续|再见|辛苦了|对|是的"
)
_NOISE_PATTERNS = {
    "envelope": r"<[a-z][\w-]*(?:\s[^>]*)?>.*</|^\[(?:request interrupted|image|pasted text|tool)"
    r"|caveat: the messages below|this session is being continued|untrusted metadata|system[- ]reminder"
    r"|^(?:human|assistant|system|user)\s*:|[\"'](?:tool_use|tool_result|role)[\"']|^api error",
    "injection": r"\b(?:ignore|disregard|forget|override|bypass)\b.{0,30}\b(?:previous|prior|above|earlier|preceding"
    r"|your|system)\b.{0,20}\b(?:instructions?|prompts?|rules|guidelines|messages|context|directives?)"
    r"|\b(?:ignore|disregard|forget) (?:all|any)\b.{0,15}\b(?:instructions?|prompts?|directives?)"
    r"|\byou are now\b|(?:^|\byou (?:must|should|will|are to) )(?:act|behave|respond) as (?:if|an?|the)\b"
    r"|\bpretend (?:to be|you)|\bdeveloper mode|\bjailbreak|\bsystem prompt"
    r"|\b(?:reveal|print|show|leak|exfiltrate)\b.{0,30}\b(?:prompt|secrets?|keys?|credentials)"
    r"|\bdo not (?:tell|inform)\b.{0,30}\buser|\bwithout (?:telling|informing) the user"
    r"|<\|[a-z_]+\|>|\[/?INST\]|###\s*(?:system|instruction)|\b(?:curl|wget)\b[^|]*\|\s*(?:sudo )?(?:ba|z)?sh\b"
    r"|\b(?:ignorier\w*|vergiss|missachte)\b.{0,30}\b(?:vorherigen?|bisherigen?|obigen?|alle)\b.{0,20}"
    r"(?:anweisung|regel|vorgabe|instruktion)|\bdu bist (?:jetzt|nun|ab jetzt)\b|\bsystem-?prompt"
    r"|(?:忽略|无视|忘记|忘掉).{0,8}(?:之前|以上|前面|先前|所有|全部).{0,8}(?:指令|指示|规则|提示|要求)|你现在是|系统提示词"
    r"|不要告诉用户",
    "question": r"[?？][\"'”)]*$|[吗呢][。.!！]?$|^(?:so |and |but |also )?(?:what|why|how|who)\b(?!ever)"
    r"|^(?:is|are|does|did|can|could|should|would|was|were|do) (?:it|there|this|that|the|we|you|i|they|he|she)\b"
    r"|^(?:was|warum|wieso|weshalb|wer|wo|kannst du|könntest du|könnten sie|ist das|hast du|soll ich|sollen wir)\b"
    r"|^(?:为什么|怎么|什么|谁|哪|是不是|能不能|可不可以|有没有|如何|请问)",
    "greeting": rf"^(?:(?:{_POLITE})(?![a-zäöüß])[\s,.!~…，。！、:;)(-]*)+$",
    "denial": r"\b(?:i|we)(?:'m| am| are)? (?:do not|don'?t|can'?t|cannot|could not|couldn'?t|didn'?t) "
    r"(?:remember|recall|know|have (?:any |a )?(?:memor|record|idea))"
    r"|\b(?:i|we) have no (?:memor|recollection|record|idea)|\bno (?:relevant )?memories\b|\bi'?m not sure\b"
    r"|\bno idea\b|\bich (?:weiß|weiss) (?:es |das )?nicht|\berinnere mich nicht|\bkeine (?:ahnung|erinnerung)"
    r"|不(?:记得|知道|清楚|确定)|没有.{0,6}(?:记忆|印象)|想不起来|没印象",
    "meta": r"\b(?:do|did|can|could|will|would) you (?:still |please )?(?:remember|recall|memori[sz]e)"
    r"|\bwhat (?:do|did) you (?:remember|know about)|\byour memor(?:y|ies)\b|\bmemory[_.][a-z]"
    r"|\b(?:save|store|add|put|write|commit) (?:this|that|it|them) (?:to|in|into) (?:your |the )?memor"
    r"|\bremember (?:me|this (?:chat|conversation|session)|what (?:i|we) (?:said|told|talked))\b"
    r"|\b(?:erinnerst du dich|kannst du dich (?:daran )?erinnern|hast du (?:dir )?(?:das )?gemerkt|dein\w* gedächtnis)"
    r"|你还?记得|记忆(?:里|库|系统|功能|中)|(?:保存|存|写)(?:到|进|入)记忆|我(?:刚才)?说了什么",
    "frustration": r"\b(?:wtf|ffs|f+u+c+k\w*|shit\w*|damn\w*|bullshit|crap|stupid|idiot\w*|useless|moron\w*"
    r"|you (?:always|never|keep|constantly) (?!must|should)|stop (?:doing|breaking|changing|ignoring|messing)"
    r"|how many times|i (?:already|just) (?:told|said)|i never (?:said|asked|told|wanted)|are you (?:kidding|serious)"
    r"|(?:this|that) is (?:ridiculous|insane|wrong again|terrible|hopeless)|never ?mind|forget it)\b|!!!"
    r"|\b(?:verdammt\w*|schei(?:ß|ss)\w*|so ein mist|blödsinn|nervt|wie oft (?:denn )?noch|vergiss es(?! nicht)"
    r"|du \w+ (?:immer|ständig|dauernd|schon wieder))\b"
    r"|妈的|他妈|卧槽|操你|垃圾(?!回收|收集)|傻逼|蠢|烦死|气死|受够了|你(?:怎么|为什么)?(?:又|总是|老是)|算了|说了多少遍",
}


@cache
def _patterns() -> dict[str, re.Pattern[str]]:
    """Compile the patterns on first use: most daemons never need them."""
    return {reason: re.compile(pattern, re.IGNORECASE) for reason, pattern in _NOISE_PATTERNS.items()}


_CODE = re.compile(
    r"^(?:import [\w.]+;?$|from [\w.]+ import |def \w+\(|class \w+[(:{]|(?:async )?function\b|(?:const|let|var) \w+ ?="
    r"|return\b.*;$|#include|package \w+;|fn \w+|pub |SELECT .+ FROM |INSERT INTO |CREATE TABLE |diff --git|Traceback"
    r"|at \S+\(.*:\d+\)|File \".*\", line \d+|npm ERR!|error(?:\[E\d+\])?:|\d{4}-\d\d-\d\d[T ]\d\d:\d\d"
    r"|[\[{]\s*[\"'\[{]|\w+\(.*\);?$)"
)
_INLINE = re.compile(r"`[^`]*`")
_SYMBOL = re.compile(r"[{}\[\]();=<>|&$#@\\+*^~]")
_WORD = re.compile(r"[^\W\d_][\w'’-]*|\d[\w.]*")
# Words that only refer to something outside the sentence.
_REFERRING_WORDS = STOP_WORDS | frozenset(
    """that's it's let's don't use using go do try keep stick pick take make option first second third last next
    previous approach way thing stuff version before later instead always never remember note please ok okay fine good
    better prefer works work working still right wrong correct actually really maybe think guess want need
    das dies diese dieser dieses es so den die der ein eine einen nimm nehmen machen mach wie vorher lieber immer nie
    bitte uns wir ich ist sind und""".split()  # noqa: SIM905  # as a text it can be read
)
_REFERRING_IDEOGRAPHS = re.compile(r"[这那就用它个吧了的请记住别忘以后第一二三种方案法样做选是要不也都我们你]")


def noise_reason(text: str) -> str | None:
    """Return the reason why a text is not worth remembering; None if it is."""
    if has_secret(text):
        return "secret"
    for reason, pattern in _patterns().items():
        if pattern.search(text):
            return reason
    if _CODE.search(text) or any(len(word) > MAX_WORD_CHARS for word in text.split()):
        return "code"
    prose = _INLINE.sub("", text)
    if len(_SYMBOL.findall(prose)) > MAX_SYMBOL_SHARE * max(1, len(prose.replace(" ", ""))):
        return "code"
    if count_ideographs(text) >= MIN_IDEOGRAPHS:
        is_vague = len(_REFERRING_IDEOGRAPHS.sub("", text)) < 3
    else:
        words = _WORD.findall(text)
        content_words = [word for word in words if word.lower().replace("’", "'") not in _REFERRING_WORDS]
        is_vague = len(words) < MIN_WORDS or not content_words
    return "vague" if is_vague else None


def harm_reason(text: str) -> str | None:
    """Return the reason why a text must never be stored (a secret, a prompt injection, a harness tag), or None."""
    if has_secret(text):
        return "secret"
    for reason in ("envelope", "injection"):
        if _patterns()[reason].search(text):
            return reason
    return None
