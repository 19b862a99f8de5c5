"""Owns one running cartridge: its process, pipes, start, health and end."""
