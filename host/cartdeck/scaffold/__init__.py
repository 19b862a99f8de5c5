"""Owns the first files of a new cartridge: what is written there, and from what. It does not know the engine."""
