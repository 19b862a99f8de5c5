"""Owns the way from a repository of a model hub to a model that answers, as one job: add, update, rollback.

It does not know a hub, a file format or an engine: it asks caps, and edits the catalog.
"""
