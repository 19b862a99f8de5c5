"""Owns the catalog: named models, how each is run here, and what stands in for it.

It does not know requests, processes or a server: it reads, checks and edits one TOML file, and chooses from it.
"""
