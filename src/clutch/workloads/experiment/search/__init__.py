"""Search methods: which hyperparameters to try, how long, and whom to stop. Pure; one method a file."""
