"""Names of models, and what of a catalog holds while the server runs: origins, what is kept and when, how each does.

It knows no HTTP.
"""
