"""`python -m hibari_cartridge …`: the cartridge without a host."""

from cartdeck_sdk.command_line import main

main("hibari_cartridge")
