"""Owns nothing: the HTTP server's modules stand beside it, README.md says which is which.

It imports none of them: starlette and uvicorn belong to the extra `server`, and the engine works without.
"""
