"""A run on several ranks: what they do together, where one of them speaks, and what all must hear alike."""
