"""Owns how a size in bytes is told to a person. It does not know of what."""


def size_text(size_bytes: float) -> str:
    """A size as people read it: `4.9 GB`, `92.9 MB`, `512 B`."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.1f} {unit}"
    return f"{size_bytes:.0f} B"
