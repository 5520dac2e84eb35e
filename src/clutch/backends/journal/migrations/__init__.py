"""How the journal's schema came to be, step by step; run in place when a journal is opened."""
