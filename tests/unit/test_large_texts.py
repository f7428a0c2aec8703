"""A large text is redacted in pieces to the same text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clankersd.redaction import engine, large_texts

PARTS = st.sampled_from(
    [
        "plain words of a log\n",
        "password=hunter2hunter2\n",
        "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMIK7MDENGbPxRfiCYzzzzzzzzKEY1\n",
        "Authorization: Bearer abcdefgh12345678abcdefgh\n",
        "token: ghp_abcdefghijklmnopqrstuvwxyz0123456789 ",
        "<private>not for you\n",
        "</private>\n",
        "-----BEGIN RSA PRIVATE KEY-----\n",
        "MIIEowIBAAKCAQEAx9Zk\n" * 3,
        "-----END RSA PRIVATE KEY-----\n",
        "https://user:secretpw99@example.org/path\n",
        "é漢字 ",
        "\n\n",
        "x" * 90,
    ]
)


@given(parts=st.lists(PARTS, max_size=60))
def test_redact_in_pieces_gives_what_redacting_at_once_gives(parts: list[str]) -> None:
    text = "".join(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_texts, "PIECE_CHARACTERS", 256)
        assert large_texts.redact_in_pieces(text, engine._redact) == engine._redact(text)


def test_split_between_secrets_cuts_a_long_text_into_short_pieces() -> None:
    text = "".join(f"line {number} of nothing in particular\n" for number in range(40_000))
    pieces = list(large_texts.split_between_secrets(text, engine._redact))
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= large_texts.PIECE_CHARACTERS
