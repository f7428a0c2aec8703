"""`make soak`: mixed load with kills and faults, compared with a model of every acknowledged operation."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # where pytest finds the helpers too
