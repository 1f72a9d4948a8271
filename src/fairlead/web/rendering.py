"""Renders views as HTML by templates with their filters, and computes digests by which changes are detected."""

import hashlib
import re
import time
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from fairlead.frozen import dataclass
from fairlead.text.quantities import describe_duration
from fairlead.text.visible_text import one_line, visible
from fairlead.web import inline_assets
from fairlead.web.addresses import MENU
from fairlead.web.phases import shape_of
from fairlead.web.view import Answer

HERE = Path(__file__).parent
DAY_S = 86_400.0
# A span that is counted up, as `_duration` writes it: the page counts it by itself.
_CLOCK = re.compile(r"<time[^>]*>[^<]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """A rendered view.

    Attributes:
        main: Content of ``<main>``, the only part that changes while the page is open.
        digest: Changes whenever more than a running clock has changed.
    """

    title: str
    main: str
    digest: str
    look_again_s: float

    def page(self, path: str, trouble: str | None, reader: str | None = None) -> str:
        """Render the whole page; with a named reader it has a button to sign out."""
        return environment().get_template("page.html").render(
            title=self.title, main=Markup(self.main), digest=self.digest, path=path, trouble=trouble, menu=MENU,
            reader=reader, style=Markup(inline_assets.STYLE), script=Markup(inline_assets.SCRIPT),
        )  # fmt: skip


def render(answer: Answer, now: float) -> Rendered:
    """Render a view."""
    main = environment().get_template(answer.template).render(**answer.values, now=now)
    digest = hashlib.sha256(_CLOCK.sub("", main).encode()).hexdigest()[:16]
    return Rendered(title=one_line(answer.title), main=main, digest=digest, look_again_s=answer.look_again_s)


def refusal(title: str, message: str) -> Rendered:
    """Render the reason for an error."""
    main = environment().get_template("refusal.html").render(title=title, message=message)
    return Rendered(title=title, main=main, digest="", look_again_s=60.0)


def sign_in(message: str | None) -> str:
    """Render the sign-in page."""
    return environment().get_template("sign_in.html").render(message=message, style=Markup(inline_assets.STYLE))


@cache
def environment() -> Environment:
    """Return the template environment. All output is escaped, and control characters are made visible."""
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        finalize=_finalize,
    )
    made.filters |= {
        "clock": _clock, "duration": _duration, "line": one_line, "percent": lambda part: f"{100 * part:.1f}%",
        "count": lambda number: f"{number:,}",
    }  # fmt: skip
    made.globals |= {"shape_of": shape_of}
    return made


def _finalize(value: Any) -> Any:
    return value if isinstance(value, Markup) else visible(value)


def _clock(at: float, now: float, *, seconds: bool = False) -> Markup:
    """Format a time of today without its day, any other with it."""
    local = time.localtime(at)
    today = time.localtime(now)[:3] == local[:3]
    form = ("%H:%M:%S" if seconds else "%H:%M") if today else ("%F %T" if seconds else "%F %H:%M")
    exact = datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
    # The machine's own clock, in the words of `fairlead status`.
    return Markup('<span class="at" title="{}">{}</span>').format(exact, time.strftime(form, local))


def _duration(seconds: float, *, running: bool = False) -> Markup:
    """Format a duration; the page's script counts a running one up."""
    text = describe_duration(seconds if seconds < 1 else float(round(seconds)))
    if not running:
        return escape(text)
    return Markup('<time data-counts="{}">{}</time>').format(f"{seconds:.0f}", text)
