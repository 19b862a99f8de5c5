"""The checks themselves, one module for each concern."""
