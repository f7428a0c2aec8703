"""Checks that tell secrets from words, placeholders, references and pieces of code.

A `Check` gets the value, the full text, and the position of the value in it; texts are bytes.
"""

import base64
import binascii
import re
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from math import log2


def is_random(value: bytes) -> bool:
    """Tell whether letters and digits alternate often, and are not only hexadecimal."""
    if len(value) < 16 or HEX.fullmatch(value):
        return False
    if b"/" in value and (b"-" in value or b"_" in value):  # of neither alphabet of base64: `owner/name-of-a-model`
        return False
    value = value[:MAX_RANDOM_BYTES]
    kinds = [_KIND[byte] for byte in value]
    changes = sum(a != b for a, b in pairwise(kinds)) / len(value)
    if kinds.count("0") < 2 or changes < 0.3:
        return False
    entropy = -sum(n / len(value) * log2(n / len(value)) for n in Counter(value).values())
    return entropy >= (3.5 if "A" in kinds and "a" in kinds else 3.6 if len(value) < 24 else 4.0)


MAX_RANDOM_BYTES = 256
HEX = re.compile(rb"[0-9a-fA-F-]+")
_KIND = ["0" if 48 <= b <= 57 else "A" if 65 <= b <= 90 else "a" if 97 <= b <= 122 else "." for b in range(256)]


Check = Callable[[bytes, bytes, int], bool]

_REFERENCE = re.compile(
    rb"\$(?!(?:y|gy|apr1|argon2i?d?)\$)[A-Za-z_{(]|\$\d{1,2}(?![a-z]?\$)|%[A-Za-z_]{1,40}%|%[sdvr(]"
    rb"|\{[{%$]?|<[^>\n]{0,80}>|\[redacted:|\*{2,}|\.{3}|[xX]{3,}(?![a-wyzA-WYZ0-9])|@[A-Z_]{2,40}@|#\{"
)
ATTRIBUTE = re.compile(
    rb"\A[A-Za-z_][A-Za-z0-9_]*+(?:\[[^\]]{0,40}\])?\.[A-Za-z_]|->|::|\A\.{0,2}/|\A~/|\A[a-z]{2,10}://"
    rb"|\A[\^~<>=v]{0,3}[\d.,_]+[a-zA-Z%]{0,3}\Z|\A0x(?![0-9a-fA-F]{64}\Z)"
)
PATH = re.compile(rb"\.{0,2}/[^=]{0,400}\.[a-z]{1,5}\Z|~/|[a-z]{2,10}://")
HEX_KEY = re.compile(rb"0x[0-9a-fA-F]{64}")
_WORD = re.compile(rb"[A-Za-z]+(?:[ _./:-][A-Za-z]+)*+[?!.:]?")
WORDS_WITH_NUMBERS = re.compile(rb"(?:[A-Za-z]+\d{0,4}|v?\d{1,4})(?:[ _./:-](?:[A-Za-z]+\d{0,4}|v?\d{1,4}))*+")
_PLACEHOLDER = re.compile(
    rb"your|my[-_]|<|example|change[-_ ]?(?:me|it|this)|placeholder|replace|dummy|redacted|insert|todo"
    rb"|fixme|sample|xxxx|\*\*\*|foobar|"
    rb"enter[-_ ]|put[-_ ]|\A(?:none|null|true|false|undefined|nil|string|str|text|password|passwd"
    rb"|secret|token|changeme|test|admin|pass|pwd)\Z"
)
_ALGORITHM = re.compile(
    rb"(?:utf|sha|md|base|argon|pbkdf|oauth|http|hs|rs|es|aes|rsa|ed|bcrypt|scrypt|p|v|x|ipv|tls|iso"
    rb"|latin|sha3|blake|python|py|rc|des|i18n|l10n|k8s|s3|ec|h)[-_]?\d{1,5}(?:[-_.][a-z0-9]{1,12})*"
)


def is_reference(data: bytes, at: int) -> bool:
    """Tell whether a value only refers to a secret, or shows where one would be."""
    return _REFERENCE.match(data, at) is not None


def is_placeholder(value: bytes) -> bool:
    lowered = value.lower()
    if not _PLACEHOLDER.search(lowered):
        return False
    return len(value) < 32 or WORDS_WITH_NUMBERS.fullmatch(value) is not None or b"<" in value


def follows_type_name(data: bytes, at: int) -> bool:
    """Tell whether the value belongs to the name of a type, as the hash in `"AWS::IAM::AccessKey": "62d91b17…"`."""
    return _TYPE_NAME.search(data, max(0, at - 80), at) is not None


_TYPE_NAME = re.compile(rb"::[A-Z][A-Za-z0-9]{1,60}[\"']?:[ \t]{0,3}[\"']?\Z")


def is_own_name(value: bytes, name: bytes) -> bool:
    return value.lower().strip(b"_-0123456789") in name.lower()


def is_word(value: bytes, name: bytes) -> bool:
    """Tell whether a value is plain words, or a name much like its own."""
    is_plain = _WORD.fullmatch(value) is not None and not looks_shuffled(value) and not has_irregular_case(value)
    return is_plain or is_own_name(value, name)


def has_irregular_case(value: bytes) -> bool:
    """Tell whether a run of letters has the capitals of a generated password: no name has `UxG` and `bD` in it."""
    return len(value) >= 10 and value.isalpha() and len(_CAPITAL.findall(value)) > 1 and bool(_ODD_CASE.search(value))


_CAPITAL = re.compile(rb"[a-z][A-Z]")
_ODD_CASE = re.compile(rb"[A-Z][a-z][A-Z]")


def is_mixed(value: bytes) -> bool:
    """Tell whether letters are mixed with digits, or with signs that no name has."""
    letters = any(65 <= byte <= 90 or 97 <= byte <= 122 or byte > 127 for byte in value)
    return letters and any(48 <= byte <= 57 or byte in b"!@#%^&*+=?~$" for byte in value)


def looks_shuffled(value: bytes) -> bool:
    """Tell whether letters alone look random: lower and upper case alternate as in no name."""
    kinds = [_KIND[byte] for byte in value if _KIND[byte] != "."]
    if len(kinds) < 16 or len(kinds) < len(value) * 0.8:
        return False
    if sum(a == "A" and b == "a" for a, b in pairwise(kinds)) < len(kinds) / 10:
        return False
    # CamelCase has single capitals; random letters have some in a row, and single small letters between capitals.
    text = "".join(kinds)
    return "AA" in text and "AaA" in text


def is_token(value: bytes, prefix: int) -> bool:
    """Tell whether a match of a rule is more than words and fillers."""
    tail = value[prefix:]
    if len(set(tail)) == 1 and tail[:1] in b"xX0*.-_":
        return False
    digits = any(48 <= byte <= 57 for byte in tail)
    cased = any(65 <= byte <= 90 for byte in tail) and any(97 <= byte <= 122 for byte in tail)
    if not (digits or cased or tail.isupper()) and _JOINT.search(tail):
        return False
    return not _is_hyphenated(tail) and not _FILLER.search(tail.lower())


_FILLER = re.compile(rb"your[-_]?|placeholder|x{8,}|\*{4}|\.{4}|-here\b|-key-|dummy")


def reads_as_words(value: bytes) -> bool:
    """Tell whether a value is words and small numbers, joined by hyphens, underscores or capitals."""
    if _DOTTED.fullmatch(value) or _is_hyphenated(value):
        return True
    return _CAMEL.fullmatch(value) is not None and not looks_shuffled(value) and not is_random(value)


def is_camel_case(value: bytes) -> bool:
    """Tell whether a value is a name such as `bufferInt64Check`, however random it looks."""
    if sum(48 <= byte <= 57 for byte in value) > 4:
        return False
    return all(not part or _CAMEL.fullmatch(part) or _SIMPLE_WORD.fullmatch(part) for part in value.split(b"_"))


_SIMPLE_WORD = re.compile(rb"[A-Z]?[a-z]+\d{0,4}|[A-Z]+\d{0,4}")


def _is_hyphenated(value: bytes) -> bool:
    parts = WORDS_WITH_NUMBERS.fullmatch(value) and _JOINT.split(value)
    return bool(parts and len(parts) > 2 and max(map(len, parts)) < 16)


_JOINT = re.compile(rb"[ _./:-]")
_CAMEL = re.compile(rb"_*[A-Za-z]+\d{0,5}(?:[A-Z]{1,4}\d{0,4}[a-z]{2,}\d{0,4})+")
_DOTTED = re.compile(rb"[A-Za-z_]\w*+(?:\.[A-Za-z_]\w*+)++")


def _is_mixed_value(value: bytes, _data: bytes, _at: int) -> bool:
    value = value.rstrip(b".,:")
    if len(value) < 5 or is_placeholder(value) or ATTRIBUTE.search(value):
        return False
    if _FILE.search(value) and not is_random(value):
        return False
    return is_mixed(value) and not _ALGORITHM.fullmatch(value.lower())


_FILE = re.compile(
    rb"/|\.(?:py|js|ts|go|rs|txt|md|json|ya?ml|toml|zip|gz|tar|7z|rar|csv|sql|conf|cfg|ini|pem|key|sh|c"
    rb"|h|xml|html?|pdf|log|env|lock)\Z"
)


def _is_option_value(value: bytes, _data: bytes, _at: int) -> bool:
    """Accept what follows an option that takes a password: also a plain word, but no port, file or further option."""
    if value[:1] == b"-" or is_placeholder(value) or _FILE.search(value) or (value.isdigit() and len(value) < 6):
        return False
    return not ATTRIBUTE.search(value)


_SMALL_P = frozenset(
    b"mongo mongosh mongodump mongorestore mongoexport mongoimport cqlsh rdesktop twine influx plink pscp arangosh "
    b"couchbase-cli cypher-shell 7z 7za 7zz rar unrar".split()
)
_LARGE_P = frozenset(b"knife sqlcmd bcp isql zip unzip mosquitto_pub mosquitto_sub ipmitool".split())
_MYSQL = frozenset(
    b"mysql mysqldump mysqladmin mysqlimport mysqlshow mysqlcheck mariadb mariadb-dump mariadb-admin".split()
)
_USER_OPTIONS = (b" -u", b" -U", b" --user")
MAX_COMMAND_BYTES, MAX_EARLIER_OPTIONS = 300, 4


def _is_password_option(value: bytes, data: bytes, at: int) -> bool:
    """Accept what follows `-p` where the program before takes a password there."""
    if not _is_option_value(value, data, at):
        return False
    line = data[max(0, at - MAX_COMMAND_BYTES) : at]
    command, dash, option = line[max(map(line.rfind, (b"\n", b"|", b";", b"&", b"\\n"))) + 1 :].rpartition(b" -")
    if not dash or command.count(b" -p") > MAX_EARLIER_OPTIONS:
        return False
    words = {word.strip(b"\"'`($").rpartition(b"/")[2] for word in command.split()}
    small = option[:1] == b"p"
    apart = option.rstrip(b"\"'\\")[-1:] in b" =" or option[1:2] in (b"'", b'"')
    if small and (b"sshpass" in words or (b"login" in words and apart) or (not apart and words & _MYSQL)):
        return True
    if words & (_SMALL_P if small else _LARGE_P):
        return is_mixed(value)
    return apart and any(each in command for each in _USER_OPTIONS) and _is_mixed_value(value, data, at)


def _is_signature(value: bytes, data: bytes, at: int) -> bool:
    """Accept the signature of a signed address."""
    before = data[max(0, at - 40) : at].lower()
    return _SIGNATURE.search(before) is not None and _is_tokenish(value, data, at)


_SIGNATURE = re.compile(rb"[?&;](?:amp;)?(?:x-(?:amz|goog|oss)-)?(?:sig|signature|security-token)=\Z")
_QUERY_NAME = re.compile(rb"[?&][a-z0-9_.-]{0,30}=\Z")


def _is_query_value(value: bytes, data: bytes, at: int) -> bool:
    """Accept the value of a query parameter that is called a key or token."""
    before = data[max(0, at - 40) : at].lower()
    if not _QUERY_NAME.search(before) or is_placeholder(value):
        return False
    return is_random(value) or (HEX.fullmatch(value) is not None and len(value) >= 32)


def _is_openssl_pass(value: bytes, data: bytes, at: int) -> bool:
    before = data[max(0, at - 20) : at].lower()
    return re.search(rb"-pass(?:in|out)?\s{1,3}\\?[\"']?pass:\Z", before) is not None and _is_option_value(
        value, data, at
    )


_SQL_USER = re.compile(
    rb"(?i)\b(?:create|alter|grant|set|change|drop)\b.{0,200}\b(?:user|role|login|to|password|identified)\b"
)


def _is_sql_password(value: bytes, data: bytes, at: int) -> bool:
    """Accept a password in a statement that makes or changes an account."""
    line = data[max(0, at - 250) : at]
    return _SQL_USER.search(line[line.rfind(b"\n") + 1 :]) is not None and not is_placeholder(value)


def _is_user_value(value: bytes, data: bytes, at: int) -> bool:
    """Accept the password in `-u user:password`: of a web client any, otherwise one that looks like a password."""
    line = data[max(0, data.rfind(b"\n", max(0, at - 300), at), at - 300) : at]
    if value.isdigit() or is_placeholder(value):
        return False
    return _WEB_CLIENT.search(line) is not None or (_is_mixed_value(value, data, at) and len(value) >= 6)


_WEB_CLIENT = re.compile(rb"curl|wget|(?<![a-z])https?(?![a-z])|skopeo|xh ")


def _is_tokenish(value: bytes, _data: bytes, _at: int) -> bool:
    """Accept a run of characters that does not look like words."""
    if is_placeholder(value):
        return False
    if not any(48 <= byte <= 57 for byte in value):
        return looks_shuffled(value)
    return (
        (any(_KIND[byte] in "aA" for byte in value) and not WORDS_WITH_NUMBERS.fullmatch(value))
        or is_random(value)
        or bool(HEX.fullmatch(value))
    )


def is_credential(value: bytes, data: bytes, at: int) -> bool:
    """Accept an authorization: a token, or base64 of `user:password`."""
    if follows_type_name(data, at):
        return False
    if _is_tokenish(value, data, at):
        return True
    try:
        user, colon, password = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return False
    return bool(colon and password and user.isprintable() and password.isprintable())


def _is_cookie(value: bytes, data: bytes, at: int) -> bool:
    values = [pair.partition(b"=")[2].strip() for pair in value.split(b";")]
    return any(len(each) >= 8 and not is_reference(each, 0) and _is_tokenish(each, data, at) for each in values)


def _is_element(value: bytes, _data: bytes, _at: int) -> bool:
    return b" " not in value.strip() and not is_placeholder(value.strip()) and not ATTRIBUTE.search(value.strip())


_READS_PASSWORD = re.compile(
    rb"--(?:password|token)-stdin|--with-token|--passphrase-fd|passwd|sudo .{0,40}-[a-zA-Z]{0,3}S"
)


def _is_piped(value: bytes, data: bytes, at: int) -> bool:
    """Accept a here-string whose command reads a password from its input."""
    line = data[max(0, at - MAX_COMMAND_BYTES) : at]
    return _READS_PASSWORD.search(line[line.rfind(b"\n") + 1 :]) is not None and _is_option_value(value, data, at)


_CALL = re.compile(
    rb"(?i)(?:client|token|api_?key|secret|auth|sign|verify|login|configure|credentials?|bearer|search|api|init|analytics)"
    rb"\((?:[^()\"'\n]{0,60},|\\?[\"'][^\"'\n]{0,60}\\?[\"'],)?[ \t]?\\?[\"']\Z"
)


def _is_call_argument(value: bytes, data: bytes, at: int) -> bool:
    """Accept a token that a function is called with whose name says that it takes one."""
    return _is_url_token(value, data, at) and _CALL.search(data, max(0, at - 100), at) is not None


def _is_strong(value: bytes, _data: bytes, _at: int) -> bool:
    """Accept what only a generated password looks like: lower and upper case and digits that alternate often."""
    value = value.rstrip(b".!?")
    kinds = [_KIND[byte] for byte in value]
    if len(value) < 8 or not {"0", "a", "A"} <= set(kinds) or is_placeholder(value) or ATTRIBUTE.search(value):
        return False
    return sum(a != b for a, b in pairwise(kinds)) >= 0.4 * len(value) and not _FILE.search(value)


def _is_url_token(value: bytes, _data: bytes, _at: int) -> bool:
    return is_random(value) or (HEX.fullmatch(value) is not None and len(value) >= 32)


CHECKS: dict[str, Check] = {
    "url-token": _is_url_token,
    "piped": _is_piped,
    "any": lambda value, _data, _at: not is_placeholder(value),
    "mixed": _is_mixed_value,
    "option": _is_option_value,
    "command": _is_password_option,
    "signature": _is_signature,
    "query": _is_query_value,
    "openssl": _is_openssl_pass,
    "sql": _is_sql_password,
    "user": _is_user_value,
    "token": _is_tokenish,
    "credential": is_credential,
    "cookie": _is_cookie,
    "element": _is_element,
    "said": lambda value, data, at: len(value) >= 6 and _is_mixed_value(value, data, at),  # in prose: no plain word
    "random": lambda value, _data, _at: is_random(value),
    "strong": _is_strong,
    "call": _is_call_argument,
    "words": lambda value, _data, _at: True,
}
