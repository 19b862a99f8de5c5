"""Owns which sessions there are: places, queues, memory, failures."""
