"""Large bytes under names: checkpoints, notebook chunks, parameters, code bundles."""
