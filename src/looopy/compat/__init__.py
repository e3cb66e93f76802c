"""Faces with the names of other libraries, over the same agents, loops and stores."""
