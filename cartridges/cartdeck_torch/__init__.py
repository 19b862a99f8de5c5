"""The torch cartridge: models in safetensors files, through PyTorch and transformers. Its handlers are in `handlers`;
importing this package loads none of them."""
