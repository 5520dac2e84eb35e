"""What we stand on: one folder per Protocol, one file per way. Each has a conformance suite in ``clutch.testing``."""
