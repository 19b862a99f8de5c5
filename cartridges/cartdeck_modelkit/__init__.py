"""Owns what cartridges that run models share: the three phases, provenance, and text as it comes.

It does not know any model library, nor what a model is made of.
"""
