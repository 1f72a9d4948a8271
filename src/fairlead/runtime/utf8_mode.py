"""Decodes paths, arguments and variables as UTF-8 in Fairlead's own processes, whatever the locale of a shell."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def enter() -> None:
    """Execute this program once more in Python's UTF-8 mode, if Python does not decode paths as UTF-8.

    Python chooses that mode by itself in the locale C, but not with ``PYTHONUTF8=0`` or in a locale such as
    ``de_DE.ISO-8859-1``. Open descriptors that may be inherited and the process id stay; call it before anything else.
    """
    words = getattr(sys, "orig_argv", None)  # from Python 3.10 on
    if words and sys.getfilesystemencoding() != "utf-8":
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *words[1:]])


def is_chosen_by(env: Mapping[str, str]) -> bool:
    """Return whether Python decodes paths as UTF-8 in an environment; False if that depends on the machine."""
    mode = env.get("PYTHONUTF8")
    locale = next((env[name] for name in ("LC_ALL", "LC_CTYPE", "LANG") if env.get(name)), "C")
    is_utf8 = locale.lower().replace("-", "").endswith("utf8")
    return mode == "1" or is_utf8 or (mode != "0" and locale in ("C", "POSIX"))
