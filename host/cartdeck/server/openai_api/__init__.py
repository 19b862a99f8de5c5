"""The endpoints that OpenAI's clients know: texts, dialogues, vectors, recordings.

They do not know which model stands behind a name, nor who else asks.
"""
