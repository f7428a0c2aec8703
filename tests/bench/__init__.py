"""Benchmarks: ratios against a baseline measured in the same run."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # where pytest finds the helpers too
