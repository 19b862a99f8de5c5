"""The gguf cartridge: language models in GGUF files, through llama.cpp. Its handlers are in `handlers`; importing this
package loads none of them."""
