"""What holds for every test."""

import os
import signal

import pytest
from hypothesis import settings

# Before anything imports them, wherever it is: their asserts say what they saw.
pytest.register_assert_rewrite(
    "clutch.testing.access_suite",
    "clutch.testing.blobs_ground",
    "clutch.testing.blobs_suite",
    "clutch.testing.blobs_suite_faults",
    "clutch.testing.containers_suite",
    "clutch.testing.journal_suite",
    "clutch.testing.journal_suite_faults",
    "clutch.testing.journal_suite_views",
    "clutch.testing.machines_suite",
    "clutch.testing.metrics_suite",
    "clutch.testing.names_suite",
    "clutch.testing.output_suite",
    "clutch.testing.transports_suite",
)

# What is started in the background, or by nohup, ignores these, and would pass that on to everything a test starts. A
# handler is not passed on.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for _number in (signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, lambda number, frame: None)

# Each run draws the same examples, so that a change is judged by what it changed; ``make explore`` draws new ones.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=1000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("CLUTCH_EXAMPLES", "same"))
