"""Owns `python -m cartdeck_models …`. It does not know the commands: the SDK has them."""

from cartdeck_sdk.command_line import main

main("cartdeck_models")
