"""What is kept beside experiments, for longer than any of them: models, templates, defaults, webhooks."""
