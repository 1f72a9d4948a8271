"""Serves a predictor: ``python -m fairlead.runtime.serving [module:Class]``; see ``--help``, and docs/predictors.md."""

from __future__ import annotations

import os
import sys
import time

began = time.monotonic()


def main() -> None:
    """Serve, and exit with the server's exit code."""
    from fairlead.runtime.serving.settings import read_settings

    try:
        settings = read_settings(sys.argv[1:], os.environ)
    except ValueError as error:
        sys.exit(f"error: {error}")
    try:
        import aiohttp  # noqa: F401 (to report a missing extra before anything else is tried)
        import numpy  # noqa: F401
        import prometheus_client  # noqa: F401
    except ImportError as error:
        sys.exit(
            f"error: {error.name} is not installed where the predictor runs; `pip install 'fairlead[serve]' numpy`"
        )
    import asyncio

    from fairlead.runtime.serving.server import serve_until_signalled

    code = asyncio.run(serve_until_signalled(settings, began=began))
    sys.stdout.flush()
    sys.stderr.flush()
    # A normal exit would wait for the thread of a predict() that hangs.
    os._exit(code)


if __name__ == "__main__":
    main()
