"""Names: where is X, for as long as X lives."""
