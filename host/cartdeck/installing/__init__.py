"""Owns cartridges that are brought here from elsewhere: environments of their own, registrations, the lock."""
