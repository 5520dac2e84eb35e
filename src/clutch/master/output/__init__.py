"""What tasks print: written exactly once by offset, read as lines, apart from the decision loop."""
