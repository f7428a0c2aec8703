"""Words of queries that need special care: words that say little, and abbreviations that programmers use."""

GENERIC_WEIGHT = 0.2
"""Weight of a word that says how something is asked, or in which language the program is, not what it is about."""

GENERIC_WORDS = frozenset(
    """conversation conversations mention mentioned discuss discussed discussion throughout across comprehensive summary
    summarize summarise overview different various aspects items brought please tell show give suggest want wanted need
    help know example examples using use used way ways including related specific session sessions chat earlier previous
    previously
    怎么 么样 什么 为什 如何 请帮 帮我 一下 可以 我们 你们 这个 那个 一首 一个
    くだ ださ さい です ます せん して てく えて 教え
    해줘 주세 세요 니다 습니 나요 까요 어떻 떻게
    python javascript typescript java golang kotlin php perl""".split()  # noqa: SIM905  # as a text it can be read
)

_GROUPS = """
    string str, integer int, boolean bool, dictionary dict, character char, object obj, function func, variable var,
    parameter param, argument arg, attribute attr, value val, number num, index idx, length len, column col,
    position pos, pointer ptr, buffer buf, iterator iter, expression expr, regex regexp, reference ref,
    directory dir folder, temporary tmp temp, source src, destination dest dst, address addr,
    environment env, configuration config, database db, repository repo, library lib, package pkg, dependency dep,
    application app, administrator admin, authentication auth, development dev, production prod,
    documentation docs, document doc, description desc, specification spec, information info, message msg, image img,
    request req, response resp, context ctx, command cmd, utility util, button btn,
    error err, exception exc, execute exec, initialize init, delete del remove, convert conv, calculate calc compute,
    maximum max, minimum min, average avg mean, random rand, current cur, previous prev,
    kubernetes k8s
"""


def _other_spellings() -> dict[str, tuple[str, ...]]:
    spellings: dict[str, tuple[str, ...]] = {}
    for group in _GROUPS.split(","):
        words = group.split()
        for word in words:
            spellings[word] = tuple(other for other in words if other != word)
    return spellings


OTHER_SPELLINGS = _other_spellings()
"""Words that mean the same in a program, by word: a search for one also finds the others."""
