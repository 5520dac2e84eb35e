"""Clutch: experiments, notebooks and reinforcement learning on one cluster, under one scheduler."""

__version__ = "0.1.0"
