"""Small talk: messages of greetings and affirmations alone, such as "thanks" or "yes, go ahead"."""

from clankersd.index.tokenize import STOP_WORDS, WORD

MAX_CHARACTERS = 100
"""Length above which a text is not examined: it has more words than small talk."""

GREETINGS = frozenset(
    """hi hello hey hiya howdy yo sup greetings morning afternoon evening good day night bye goodbye cheers welcome
    hallo moin servus guten tag morgen abend bonjour salut bonsoir hola buenas buenos dias ciao olá oi
    привет здравствуйте 你好 您好 早上好 晚上好 こんにちは おはよう 안녕 안녕하세요""".split()  # noqa: SIM905  # readable as a text
)
AFFIRMATIONS = frozenset(
    """y n k ok okay okey kk yes yeah yep yup ya no nope nah sure fine right correct exactly true agreed lgtm ack
    great perfect nice cool awesome excellent wonderful amazing brilliant super neat wow sweet sounds looks
    thanks thank thx ty please pls sorry hm hmm um uh ah oh haha lol
    go ahead continue proceed carry resume next done stop wait cancel abort retry try again redo undo approve approved
    accept accepted confirm confirmed reject rejected
    ja nein doch genau gut danke bitte weiter mach oui non merci bien vas continuer si sí vale gracias sigue claro
    sim não obrigado obrigada grazie да нет спасибо хорошо дальше продолжай
    好 好的 是 是的 对 不 不是 谢谢 继续 可以 はい いいえ ありがとう 続けて お願いします
    네 예 아니요 감사합니다 계속""".split()  # noqa: SIM905
)

EMPTY_WORDS = GREETINGS | AFFIRMATIONS | STOP_WORDS


def is_small_talk(text: str) -> bool:
    """Return whether a text consists of greetings, affirmations and stop words, or has no words at all."""
    return len(text) <= MAX_CHARACTERS and all(word.casefold() in EMPTY_WORDS for word in WORD.findall(text))
