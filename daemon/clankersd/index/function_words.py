"""Function words of languages other than English, which say as little in a query as its stop words do.

In a store of English texts they are rare, so that a question in German would find every text in German. They are
dropped only from a query in their language, since many are words of English or names in programs as well.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

MIN_WORDS, MIN_AMBIGUOUS_WORDS = 2, 3
"""Function words of more than one letter that a query in a language has: the second number if all of them may be other
words as well."""

_WORDS = {
    "de": """aber alle allem allen aller alles als also am an andere anderen auch auf aus bei beim bin bis bist bitte da
        dabei damit dann das dass daß dein deine dem den denn der des dessen die dies diese diesem diesen dieser dieses
        dir doch dort du durch ein eine einem einen einer eines er es etwa etwas euch eure für fuer gegen gibt hab habe
        haben hat hatte hatten hier hin ich ihm ihn ihnen ihr ihre im immer in ins ist ja jede jedem jeden jeder jedes
        jetzt kann kannst kein keine keinen können koennen könnte mal man mein meine mich mir mit muss müssen nach nicht
        nichts noch nun nur ob oder ohne sehr seit sein seine sich sie sind so soll sollen sollte sondern sonst über
        ueber um und uns unser unsere unter vom von vor war waren warum was weil welche welchem welchen welcher welches
        wenn wer werde werden wie wieder wieso will wir wird wo wobei wurde wurden würde zu zum zur zwar zwischen""",
    "fr": """alors au aucun aussi autre aux avec avoir bien ce cela celle celui ces cet cette ceux chez comme comment
        dans de depuis des donc du elle elles en encore entre est et était été être eux faire fait faut il ils je la le
        les leur leurs lui ma mais me mes mon même ne nos notre nous on ont ou où par parce pas peu peut plus pour
        pourquoi quand que quel quelle quelles quels qu qui quoi sa sans se ses si son sont sous sur ta tes ton tous
        tout toute toutes tu un une vos votre vous ça j l n y""",
    "es": """al algo alguna alguno ante antes aquí así aunque bien cada como cómo con cual cuál cuando cuándo de del
        desde donde dónde el él ella ellas ellos en entre era es esa ese eso esta está están estas este esto estos fue
        ha hace hacer hasta hay la las le les lo los más me mi mis muy nada ni no nos nosotros otra otro otros para pero
        poco por porque que qué quien quién se sea ser si sí sido sin sobre son su sus también te tiene tienen todo
        todos tu un una uno unos ya yo e o u y""",
    "it": """ad agli ai al alla alle allo anche ancora avere bene che chi ci come con cosa così cui da dal dalla dalle
        degli dei del della delle dello di dove era essere fa fare fra gli ha hai hanno ho il in io la le lei li lo loro
        lui ma me mi mia mio molto ne nel nella nelle nello noi non nostro ogni per perché perchè più può poi qual quale
        quando quanto quella quelle quelli quello questa queste questi questo qui se sei senza si sia siamo sono sopra
        sta su sua sui sul sulla suo te ti tra tu tutti tutto un una uno vi voi e i l o""",
    "pt": """ainda ao aos as às até com como da das de dela dele depois do dos ela ele eles em entre era essa esse esta
        está estão este eu foi há isso isto já lhe mais mas me mesmo meu minha muito na nas nem no nos nós não onde os
        ou para pela pelas pelo pelos por porque qual quando que quê quem se sem ser seu sua são só também tem temos
        tinha tudo um uma umas você vocês e o""",
    "nl": """aan als alle bij dan dat de deze die dit doen door dus een en er geen had heb hebben heeft hem het hier hij
        hoe hun ik in is ja je jij kan kunnen maar me meer men met mij mijn moet moeten na naar niet niets nog nu of om
        omdat ons onze ook op over te tegen toch toen tot uit uw van veel voor waar waarom wanneer want was wat we wel
        welke werd werden wie wij wil worden wordt zal ze zelf zich zij zijn zo zonder zou""",
    "pl": """aby ale bez był była było być co czy dla do dlaczego gdzie go ich ile jak jaka jaki jakie jest już kiedy
        która które który lub ma mi mnie na nad nie od po pod przez przy się są ta tak także tam te tego tej ten to tu
        tylko tym za ze że żeby i o u w z""",
    "sv": """att av de den det du då en ett från för hade har hur inte jag kan med men mot nu när och om på sin ska som
        så till under ut utan var varför vi är eller""",
    "ru": """без бы был была было быть вас во вот все вы где да даже для до его ее её если есть ещё же за из или им их
        как какая какие какой когда кто ли меня мне можно мы на надо нас не ни но ну нужно об он она они от по почему
        при со так такой там то только ты уже что чтобы эта эти это этот в и к о с у я""",
}
FUNCTION_WORDS = {language: frozenset(words.split()) for language, words in _WORDS.items()}

_AMBIGUOUS = frozenset(
    """al alle als am ante as att bin bis bitte chez com come comment con dan dat de del dem den der des die dies dir
    dit do door dos du een el em en era es esse est et fa fait fare fin for fra go ha had hat hay het hem her hier hin
    hun il in ins is ist la las le les li lo los ma mal man mas me men met mi mil min mon mot na ne nel no nod non nos
    nu nun ob of om on ons op os ou over par para pas per plus po pod por pour qu que sa se sei ser ses si sin sole son
    sta su sub sur ta tak tam te tem ten tes ti to ton tot tot tu um un under uno ut van var ver vi vos war was we wie
    will wo yo za ze zo zu""".split()  # noqa: SIM905  # as a text it can be read
)
"""Words of these that English, programs or names have as well."""


def find_language(words: Iterable[str], english: AbstractSet[str]) -> str | None:
    """Return the language that a query is in; None for English, for any that is not listed, or if it cannot be told.

    `words` are the words of the query in small letters, `english` the function words of English.
    """
    given = frozenset(words)
    best, language = 0, None
    for candidate, function_words in FUNCTION_WORDS.items():
        found = {word for word in given & function_words - english if len(word) > 1}  # others are names of variables
        needed = MIN_WORDS if found - _AMBIGUOUS else MIN_AMBIGUOUS_WORDS
        if len(found) >= max(needed, best + 1) and len(found) > len(given & english - function_words):
            best, language = len(found), candidate
    return language
