"""Metrics that tasks report: kept once by sequence number, read as series, apart from the decision loop."""
