"""Owns models that lie on a hub: which files, over which requests, into which cache.

It does not know the wire or handlers.
"""
