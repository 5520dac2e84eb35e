"""What follows from an event, noun by noun.

Every function here is a generator of facts. The caller folds each fact before it asks for the next, so a decision sees
what it has decided so far; nothing here writes to the state. Two rules keep that safe: an error is raised before the
first fact, never after it; and a loop over things in the state runs over a copy, and looks each one up again.
"""
