"""Search methods that are processes: the loop that runs one, the ways it reaches a master, and the one we ship."""
