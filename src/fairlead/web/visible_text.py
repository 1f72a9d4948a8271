"""Makes control and direction-changing characters of untrusted text visible.

HTML escaping is not done here but by the templates.
"""

import unicodedata

# Characters that no terminal and no page shows as such: controls, and marks that change the direction of what follows.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_KEPT = "\t\n"


def visible(text: object) -> str:
    """Replace control and format characters by their codes, such as ``\\x1b``; tabs and newlines stay."""
    given = str(text)
    if given.isascii() and given.isprintable():
        return given
    return "".join(map(_shown, given))


def one_line(text: object) -> str:
    """Return the same on one line."""
    return visible(text).replace("\n", " ").replace("\t", " ")


def _shown(character: str) -> str:
    if character in _KEPT or unicodedata.category(character) not in _HIDDEN:
        return character
    number = ord(character)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{{{number:x}}}"
