"""Makes control and direction-changing characters of untrusted text visible, for the web page and for terminals.

HTML escaping is not done here but by the templates.
"""

import re
import unicodedata
from functools import cache

# Characters that no terminal and no page shows as such: controls, and marks that change the direction of what follows.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_KEPT = "\t\n"
_COLOUR = r"\[[0-9;:]*m"


def visible(text: object) -> str:
    """Replace control and format characters by their codes, such as ``\\x1b``; tabs and newlines stay."""
    string = str(text)
    if string.isascii() and string.isprintable():
        return string
    return "".join(map(_shown, string))


def one_line(text: object) -> str:
    """Return the same on one line."""
    return visible(text).replace("\n", " ").replace("\t", " ")


def on_terminal(text: str) -> str:
    """Replace what moves a terminal's cursor, retitles or reverses it, or worse; colours, tabs and line ends stay."""
    if text.isascii() and text.isprintable():
        return text
    return _moving().sub(lambda match: _code(match[0]), text)


@cache
def _moving() -> re.Pattern[str]:
    # Compiled late, as each command imports this module.
    return re.compile(
        rf"\x1b(?!{_COLOUR})|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
    )


def _shown(character: str) -> str:
    if character in _KEPT or unicodedata.category(character) not in _HIDDEN:
        return character
    return _code(character)


def _code(character: str) -> str:
    number = ord(character)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{{{number:x}}}"
