"""The stylesheet, which each page carries: a browser paints nothing before it has one, and asking again takes longer.

It is the one style that the content security policy lets in, by its hash (CSP level 3, section 2.3.1, hash-source).
"""

import base64
import hashlib
from pathlib import Path

TEXT = (Path(__file__).parent / "static" / "style.css").read_text(encoding="utf-8")
SOURCE = f"'sha256-{base64.b64encode(hashlib.sha256(TEXT.encode()).digest()).decode()}'"
"""The name of it in ``style-src``."""
