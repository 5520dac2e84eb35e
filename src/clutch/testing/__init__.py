"""Shipped with Clutch: a seeded world that fails on purpose, the simulator, conformance suites and fakes."""
