"""Who may do what: users, groups, workspaces, roles, tokens, secrets, audit, usage."""
