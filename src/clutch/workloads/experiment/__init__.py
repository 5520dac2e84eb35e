"""Experiments: one file describes code, hyperparameters, search, resources and storage; the best model comes out."""
