"""Owns models that lie in wheels: fetched by pip from whatever index it is set up for, unpacked and verified.

It does not know the wire or handlers.
"""
