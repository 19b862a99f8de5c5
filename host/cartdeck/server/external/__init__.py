"""Owns models that another OpenAI-compatible server answers for: the one place where the engine's process talks to it.

It does not know which models those are: a catalog says so.
"""
