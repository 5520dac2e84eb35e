"""Where new nodes come from: one Protocol, one file per way."""
