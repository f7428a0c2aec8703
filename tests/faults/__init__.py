"""`make faults`: storage faults injected into a daemon under load."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # where pytest finds the helpers too
