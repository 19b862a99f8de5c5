"""Owns what a caller holds: arguments in, events and the result out."""
