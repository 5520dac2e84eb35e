"""WHAT USERS HOLD: clients of a cluster, sync and async, and the objects they give."""
