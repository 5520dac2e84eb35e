"""One file per step; each names the step before it."""
