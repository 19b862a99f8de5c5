"""The echo cartridge: an example of a small one, and a double that behaves badly on request."""
