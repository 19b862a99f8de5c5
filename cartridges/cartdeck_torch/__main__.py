"""`python -m cartdeck_torch`: the cartridge's command line."""

from cartdeck_sdk.command_line import main

main("cartdeck_torch")
