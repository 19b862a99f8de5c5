"""`python -m rapidocr_cartridge …`: the cartridge without a host."""

from cartdeck_sdk.command_line import main

main("rapidocr_cartridge")
