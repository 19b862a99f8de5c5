"""The command line; knows the engine's public names only."""
