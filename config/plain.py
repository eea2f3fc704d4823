"""Make text of strangers harmless to read: nothing hidden, nothing forged."""

import re
from typing import Any

# Controls, what turns the direction of text, and what has no width: they would hide or forge what is read.
INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]"
)


def plain(text: str) -> str:
    r"""Write characters that cannot be seen as escapes (\x1b, \u202e); tabs and line ends stay."""
    return INVISIBLE.sub(_escape, text.replace("\r\n", "\n"))


def harmless(row: Any) -> Any:
    """Make every text of a row plain, for a row that is shown and never saved."""
    vars(row).update(
        {name: _plain_in(value) for name, value in vars(row).items() if not name.startswith("_")}
    )
    return row


def _plain_in(value: Any) -> Any:
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, list):
        return [_plain_in(each) for each in value]
    if isinstance(value, dict):
        return {plain(str(name)): _plain_in(each) for name, each in value.items()}
    return value


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
