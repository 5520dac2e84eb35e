"""A run as a callback of training libraries. Each module imports its library, so nothing imports them here."""
