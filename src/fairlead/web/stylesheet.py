"""The stylesheet, inlined into each page: browsers paint nothing before it is loaded, and a request would delay that.

It is the only style that the content security policy allows, by its hash (CSP level 3, section 2.3.1, hash-source).
"""

import base64
import hashlib
from pathlib import Path

TEXT = (Path(__file__).parent / "static" / "style.css").read_text(encoding="utf-8")
SOURCE = f"'sha256-{base64.b64encode(hashlib.sha256(TEXT.encode()).digest()).decode()}'"
"""The name of it in ``style-src``."""
