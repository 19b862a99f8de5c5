"""Owns calls from one cartridge to another, through the engine."""
