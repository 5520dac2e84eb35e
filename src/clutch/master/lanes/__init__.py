"""What the output lane and the metrics lane stand on: a file or connections of their own, and rows with versions."""
