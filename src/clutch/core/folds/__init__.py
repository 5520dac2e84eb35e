"""How the state moves on, noun by noun.

Each handler takes one fact at its word. The tables of the machines still refuse a move that is not an arrow, so a
tampered journal stops the start instead of producing nonsense. Nothing else writes to a ``State``.
"""
