"""The cartridge hibari. Its handlers are in `handlers`, which is imported when a host starts it."""
