# pyright: basic
# Of torch's names many have no types.
"""Owns BLIP: a description of an image, token by token (Li et al. 2022).

It does not know image files: pixels come in, RGB.
"""

from collections.abc import Callable
from typing import Any

import torch
from tokenizers.decoders import DecodeStream
from transformers import BlipForConditionalGeneration, StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from cartdeck_modelkit.image import RgbImage
from cartdeck_protocol.errors import Code, failure
from cartdeck_torch.describing import Description
from cartdeck_torch.engine.loading import check_ids, load_weights, refusing
from cartdeck_torch.engine.pixels import PixelReader
from cartdeck_torch.engine.stopping import layers_of, stopping
from cartdeck_torch.engine.tokens import read_tokenizer
from cartdeck_torch.engine.torch_device import TorchDevice
from cartdeck_torch.folder import ModelFolder
from cartdeck_torch.job import Job
from cartdeck_torch.settings import LoadSettings


class Captioner:
    """A BLIP model on its device."""

    def __init__(
        self, folder: ModelFolder, settings: LoadSettings, device: TorchDevice, *, report: Callable[[float], None]
    ) -> None:
        self.tokenizer = read_tokenizer(folder)
        self.pixels = PixelReader(folder)
        self.model, dtype, self.notice = load_weights(
            BlipForConditionalGeneration,
            folder,
            settings,
            device,
            report=report,
            unused=("text_decoder.bert.embeddings.position_ids",),
        )
        self.device, self.torch_dtype = device.device, dtype
        self.dtype = str(dtype).removeprefix("torch.")
        text = self.model.config.text_config
        self.most_tokens = int(text.max_position_embeddings)
        self.vocabulary_size = int(text.vocab_size)
        self._name = folder.name
        self._layers = layers_of(self.model)
        with refusing(folder):
            self._end, self._begin = int(text.sep_token_id), int(text.bos_token_id)
            check_ids([self._end, self._begin], self.vocabulary_size, name=self._name)

    def describe(self, image: RgbImage, description: Description, job: Job) -> None:
        """Says the image's description on `job`, its prompt left out. Raises `CONTEXT_OVERFLOW`, `CANCELLED`."""
        description.completion_tokens = 0
        prompt = self.tokenizer.encode(description.prompt or "", add_special_tokens=False).ids
        check_ids(prompt, self.vocabulary_size, name=self._name)
        description.prompt_tokens = len(prompt)
        room = self.most_tokens - len(prompt) - 2
        if room < 1:
            raise failure(
                Code.CONTEXT_OVERFLOW,
                f"a prompt of {len(prompt):,} tokens does not fit a text of {self.most_tokens:,}",
                argument="prompt",
                phase="inference",
            )
        description.most_tokens = min(description.max_tokens, room)
        values = self.pixels.read([image]).to(self.device, self.torch_dtype)
        job.stop.check()
        description.prompt_done = len(prompt)
        ids = torch.tensor([[self._begin, *prompt, self._end]], device=self.device)
        with torch.inference_mode(), stopping(self._layers, job):
            self.model.generate(
                pixel_values=values,
                input_ids=ids,  # the library takes the mark of the end off again
                attention_mask=torch.ones_like(ids),
                max_new_tokens=description.most_tokens,
                min_new_tokens=0,
                do_sample=False,
                num_beams=1,
                streamer=_Speaker(self.tokenizer, {self._end}, description, job),
                stopping_criteria=StoppingCriteriaList([_Stop(job)]),
            )
        if description.finish_reason is None:
            description.finish_reason = "length"


class _Speaker(BaseStreamer):
    """Turns tokens into text on a job as they come; what comes first is the prompt."""

    def __init__(self, tokenizer: Any, ends: set[int], description: Description, job: Job) -> None:
        self._tokenizer = tokenizer
        self._ends = ends
        self._description = description
        self._job = job
        self._stream = DecodeStream(skip_special_tokens=True)
        self._is_prompt = True

    def put(self, value: Any) -> None:
        if self._is_prompt:
            self._is_prompt = False
            return
        for token in value.reshape(-1).tolist():
            if token in self._ends:
                self._description.finish_reason = "stop"
                continue
            self._description.completion_tokens += 1
            text = self._stream.step(self._tokenizer, token)
            if text:
                self._job.say(text)
            else:
                self._job.touch()

    def end(self) -> None:
        return None


class _Stop(StoppingCriteria):
    """Raises `CANCELLED` between two tokens."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        self._job.stop.check()
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)
