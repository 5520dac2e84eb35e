from __future__ import annotations

import sys
from pathlib import Path

# The killable master of the push API is the one that takes metrics.
sys.path.append(str(Path(__file__).parents[1] / "push"))
