"""An experiment's brain: told what happened, it answers with wishes. Pure; see ``core.controller``."""
