"""Owns what a GGUF file says of itself, and what the model in it will take; for whoever runs it or only fetches it.

It does not know llama.cpp.
"""
