"""HTTP: routes over the master's services. Nothing here decides."""
