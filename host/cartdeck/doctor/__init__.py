"""Owns the examination of an installation: what works here, what does not, and what to do. It mends next to nothing."""
