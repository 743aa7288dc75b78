"""Workers on other machines: servers that run them, and loaders that reach them over ZeroMQ."""
