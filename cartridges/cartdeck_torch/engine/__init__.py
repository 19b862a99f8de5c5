"""Owns everything that touches torch and transformers: imported by the device's worker, in its thread.

Nothing outside of it imports those libraries. What it gives to others is plain data.
"""
