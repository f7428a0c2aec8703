"""The daemon."""

import sys

# structlog loads rich where it is installed, to print tracebacks in colour: a quarter of our start, for nothing.
if "rich" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment]
    import structlog  # noqa: F401

    del sys.modules["rich"]
