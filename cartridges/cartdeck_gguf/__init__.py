"""The gguf cartridge: language models in GGUF files, through llama.cpp. Importing it loads no engine."""

from cartdeck_gguf.handlers import cartridge

__all__ = ["cartridge"]
