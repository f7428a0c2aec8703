"""Prompts that ask for nothing which could be recalled."""

import re
import unicodedata

from clankersd.index.chunker import CJK
from clankersd.index.tokenize import STOP_WORDS

FEWEST_LETTERS = 8
CJK_LETTERS = 3
"""What a CJK character counts: two or three of them say what a word of eight letters says."""

_COMMAND = re.compile(r"/[\w:.-]+(\s|$)")  # not a path: that has another slash
_OF_THE_HARNESS = re.compile(r"<(command|local-command|task|system|bash|user-memory)-")
_WORD = re.compile(r"\w+")
_CJK = re.compile(f"[{CJK}]")

GREETINGS = frozenset(
    """hi hello hey hiya howdy yo sup greetings morning afternoon evening good day night bye goodbye cheers welcome
    hallo moin servus guten tag morgen abend bonjour salut bonsoir hola buenas buenos dias ciao olá oi
    привет здравствуйте 你好 您好 早上好 晚上好 こんにちは おはよう 안녕 안녕하세요""".split()  # noqa: SIM905  # as a text it can be read
)
AFFIRMATIONS = frozenset(
    """y n k ok okay okey kk yes yeah yep yup ya no nope nah sure fine right correct exactly true agreed lgtm ack
    great perfect nice cool awesome excellent wonderful amazing brilliant super neat wow sweet sounds looks
    thanks thank thx ty please pls sorry hmm ah oh haha lol
    go ahead continue proceed carry resume next done stop wait cancel abort retry try again redo undo approve approved
    accept accepted confirm confirmed reject rejected
    ja nein doch genau gut danke bitte weiter mach oui non merci bien vas continuer si sí vale gracias sigue claro
    sim não obrigado obrigada grazie да нет спасибо хорошо дальше продолжай
    好 好的 是 是的 对 不 不是 谢谢 继续 可以 はい いいえ ありがとう 続けて お願いします
    네 예 아니요 감사합니다 계속""".split()  # noqa: SIM905
)


def why_trivial(prompt: str) -> str | None:
    """Why nothing is looked for with this prompt; None when it is worth it."""
    text = unicodedata.normalize("NFC", prompt).strip()
    if _COMMAND.match(text):
        return "a slash command"
    if _OF_THE_HARNESS.match(text):
        return "the harness's own message"
    words = [word.casefold() for word in _WORD.findall(text)]
    if not words:
        return "no words"
    telling = [word for word in words if word not in AFFIRMATIONS and word not in GREETINGS and word not in STOP_WORDS]
    if not telling:
        return "a greeting" if any(word in GREETINGS for word in words) else "an affirmation"
    return "too short" if sum(map(_letters, telling)) < FEWEST_LETTERS else None


def _letters(word: str) -> int:
    return len(word) + (CJK_LETTERS - 1) * len(_CJK.findall(word))
