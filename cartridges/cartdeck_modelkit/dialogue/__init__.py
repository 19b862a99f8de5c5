"""Owns dialogues in OpenAI's shape: messages, templates, tools and their calls.

It does not know models.
"""
