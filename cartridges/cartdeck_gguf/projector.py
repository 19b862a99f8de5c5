"""Owns the projector of a model that sees: found, checked against the model, loaded, and images turned into what the
model sees among its tokens.

It does not know requests. Everything but `find_projector` and `check_projector` runs on the thread that owns the model.
"""

import ctypes
import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cartdeck_gguf.loading import import_engine, native_log
from cartdeck_gguf.model_kind import PROJECTOR, kind_of_other, not_wanted
from cartdeck_gguf.projector_soundness import check_sound_projector
from cartdeck_modelkit.gguf.header import Header, read_header
from cartdeck_modelkit.image import RgbImage
from cartdeck_protocol.errors import CartdeckError, Code, failure

if TYPE_CHECKING:
    from cartdeck_gguf import llama
    from cartdeck_gguf.context import Context

BATCH_TOKENS: Final = 512
_SAME_WIDTH: Final = frozenset({"mlp", "mlp_norm", "gemma3", "idefics3", "internvl", "pixtral", "llama4"})
"""Kinds of projector whose `projection_dim` is the width of the model that they belong to."""

_MISMATCH: Final = re.compile(r"mismatch between text model|n_embd", re.IGNORECASE)
_TEXT, _IMAGE = 0, 1


def find_projector(model: Path) -> Path | None:
    """The projector beside a model: the one file of its folder that has mmproj in its name; None where there is none.

    Raises `BAD_ARGUMENT` for several: one of them is to be named.
    """
    folder = model if model.is_dir() else model.parent
    found = sorted(path for path in folder.glob("*.gguf") if "mmproj" in path.name.lower() and path != model)
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:5])
        raise failure(Code.BAD_ARGUMENT, f"{folder} has {len(found)} projectors: {names}; name the one to use",
                      argument="projector")  # fmt: skip
    return found[0] if found else None


def check_projector(path: Path, model: Header) -> Header:
    """The header of the projector at `path`, once it is known to be whole, to see images, and to fit `model`.

    Raises what `read_header` raises, `BAD_MODEL_FILE` for what is no sound projector, `PROJECTOR_MISMATCH` for one that
    is made for a model of another width or sees no images.
    """
    header = read_header(path)
    header.check_complete()
    found = kind_of_other(header)
    if found != PROJECTOR:
        raise not_wanted(header, found or f"a model ({header.architecture})", PROJECTOR)
    if header.metadata.get("clip.has_vision_encoder") is not True:
        message = f"{path.name} sees no images"
        raise failure(Code.PROJECTOR_MISMATCH, message, argument="projector", details={"path": str(path)})
    check_sound_projector(header)
    width = header.integer("clip.vision.projection_dim")
    kind = header.text("clip.projector_type") or header.text("clip.vision.projector_type")
    wanted = model.integer(f"{model.architecture}.embedding_length")
    if kind in _SAME_WIDTH and width and wanted and width != wanted:
        raise _mismatch(path, model.path, f"it gives {width} numbers a token, and the model takes {wanted}")
    return header


class Projector:
    """A loaded projector. `close` frees it, before its model is closed."""

    def __init__(self, path: Path, model: "llama.Model", *, threads: int) -> None:
        """Loads the projector that `check_projector` found. Raises `PROJECTOR_MISMATCH`, `BAD_MODEL_FILE`."""
        engine = import_engine()
        self._native: Any = engine.VISION
        self.path = path
        capabilities = self._native.mtmd_get_cap_from_file(os.fsencode(path))
        if not capabilities.inp_vision:
            raise _mismatch(path, model.path, "the engine finds no eyes in it")
        params = self._native.mtmd_context_params_default()
        params.use_gpu = engine.can_use_gpu()
        params.n_threads = threads
        params.print_timings = False
        params.warmup = False
        self._context: Any = self._native.mtmd_init_from_file(os.fsencode(path), model.handle, params)
        if not self._context:
            said = "; ".join(native_log.errors()[-3:]) or "the engine gave no reason"
            if _MISMATCH.search(said):
                raise _mismatch(path, model.path, said)
            raise failure(
                Code.BAD_MODEL_FILE,
                f"the engine cannot load the projector {path.name}: {said[:300]}",
                argument="projector",
                phase="load",
                details={"log": native_log.tail(), "found": said[:300]},
            )

    def read(self, image: RgbImage) -> "list[list[int] | SeenImage]":
        """What stands for the image in a prompt: the image itself, and the tokens that this kind of model wants around
        it. Each `SeenImage` in it is to be closed.

        Raises `BAD_IMAGE` for one that the projector cannot take, `UNSUPPORTED` for one too large to be seen at once.
        """
        native = self._native
        pixels = (ctypes.c_uint8 * len(image.pixels)).from_buffer_copy(image.pixels)
        bitmap = native.mtmd_bitmap_init(image.width, image.height, pixels)
        chunks = native.mtmd_input_chunks_init()
        try:
            marker = native.mtmd_get_marker(self._context) or native.mtmd_default_marker()
            text = native.mtmd_input_text(text=marker, text_len=len(marker), add_special=False, parse_special=True)
            bitmaps = (ctypes.c_void_p * 1)(bitmap)
            status = native.mtmd_tokenize(self._context, chunks, ctypes.byref(text), bitmaps, 1)
            if status:
                what = f"the projector {self.path.name} cannot take an image of {image.width} by {image.height} pixels"
                raise failure(Code.BAD_IMAGE, f"{what} (mtmd_tokenize gave {status})", argument="image")
            parts: list[list[int] | SeenImage] = []
            for index in range(native.mtmd_input_chunks_size(chunks)):
                parts.append(self._part(native.mtmd_input_chunks_get(chunks, index), image, index))
            return parts
        finally:
            native.mtmd_input_chunks_free(chunks)
            native.mtmd_bitmap_free(bitmap)

    def _part(self, chunk: Any, image: RgbImage, index: int) -> "list[int] | SeenImage":
        native = self._native
        count = int(native.mtmd_input_chunk_get_n_tokens(chunk))
        if native.mtmd_input_chunk_get_type(chunk) == _TEXT:
            size = ctypes.c_size_t()
            tokens = native.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(size))
            return list(tokens[: size.value])
        if count > BATCH_TOKENS and native.mtmd_decode_use_non_causal(self._context, chunk):
            message = f"the image becomes {count} tokens, and the model can see {BATCH_TOKENS} of one image at once"
            raise failure(Code.UNSUPPORTED, message, argument="image")
        seen_by = f"{self.path}|{image.width}x{image.height}|{index}|".encode()
        key = hashlib.sha256(seen_by + image.pixels).digest()
        return SeenImage(native, self._context, native.mtmd_input_chunk_copy(chunk), key=key)

    def close(self) -> None:
        """Frees it."""
        if self._context:
            self._native.mtmd_free(self._context)
            self._context = None


class SeenImage:
    """An image, or a part of a large one, as an `Insert` of a prompt: encoded when its turn comes."""

    def __init__(self, native: Any, projector: Any, chunk: Any, *, key: bytes) -> None:
        self._native = native
        self._projector = projector
        self._chunk = chunk
        self._positions = int(native.mtmd_input_chunk_get_n_pos(chunk))
        self._key = key

    @property
    def positions(self) -> int:
        """How many places of the sequence it takes."""
        return self._positions

    @property
    def key(self) -> bytes:
        """The same for the same pixels, seen by the same projector."""
        return self._key

    def compute(self, context: "Context", *, sequence: int, position: int) -> None:
        """Encodes the image and has the model see it.

        Raises `CANCELLED` once it is closed, `DEVICE_FAULT` when the engine fails or its computation is given up.
        """
        native = self._native
        if self._chunk is None:
            raise failure(Code.CANCELLED, "the image is no longer wanted", phase="inference")
        if native.mtmd_encode_chunk(self._projector, self._chunk):
            raise _fault("the projector failed to encode an image")
        vectors = native.mtmd_get_output_embd(self._projector)
        end = ctypes.c_int32()
        status = native.mtmd_helper_decode_image_chunk(
            self._projector, context.handle, self._chunk, vectors, position, sequence, BATCH_TOKENS,
            ctypes.byref(end), native.mtmd_helper_post_decode_callback(), None,
        )  # fmt: skip
        if status or end.value != position + self._positions:
            raise _fault(f"the model failed to see an image (llama_decode gave {status})")

    def close(self) -> None:
        """Frees what is kept of it."""
        if self._chunk is not None:
            self._native.mtmd_input_chunk_free(self._chunk)
            self._chunk = None


def _mismatch(projector: Path, model: Path, why: str) -> CartdeckError:
    return failure(
        Code.PROJECTOR_MISMATCH,
        f"the projector {projector.name} does not fit {model.name}: {why[:300]}",
        argument="projector",
        phase="load",
        details={"projector": str(projector), "model": str(model)},
    )


def _fault(message: str) -> CartdeckError:
    return failure(Code.DEVICE_FAULT, message, phase="inference", details={"log": native_log.tail()})
