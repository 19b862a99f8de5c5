# pyright: basic
# Of torch's names many have no types.
"""Owns a language model whose leader this process is: it alone draws tokens, and tells the other ranks each step.

It does not know processes. A group that lost a rank is made anew by the next text, weights and all.
"""

import gc
import time
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch

from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_torch.device import Meaning, meaning_of
from cartdeck_torch.engine.causal import TextGenerator
from cartdeck_torch.engine.collective import (
    Step,
    abort_group,
    join_group,
    leave_group,
    share_bytes,
    share_tokens,
    tell,
)
from cartdeck_torch.engine.kv_cache import KvCaches
from cartdeck_torch.engine.prompting import Prompt
from cartdeck_torch.engine.shares import Share, load_share
from cartdeck_torch.engine.torch_device import TorchDevice
from cartdeck_torch.folder import ModelFolder
from cartdeck_torch.generation import Generation
from cartdeck_torch.job import Job
from cartdeck_torch.parallel.group import LONGEST_START_S, RankGroup, start_ranks
from cartdeck_torch.parallel.shares import check_devices, check_shares, device_of
from cartdeck_torch.parallel.work import COMPUTE, LOAD, START, RankWork, group_timeout_s
from cartdeck_torch.settings import LoadSettings

SLICE_TOKENS = 128
"""Of a prompt at a time. A cancel acts between two of them: inside of one every rank waits for the others."""
_LAST_WORDS_S = 5.0
"""How long the leader, whose step failed, waits to hear which rank is gone: a machine with much else to do is slow to
tell, and where none is gone, it was waited for them far longer."""


class ParallelTextGenerator(TextGenerator):
    """The leader's share of a language model, and the other ranks."""

    def __init__(
        self,
        folder: ModelFolder,
        settings: LoadSettings,
        device: TorchDevice,
        *,
        report: Callable[[float], None],
        ranks: RankGroup | None = None,
    ) -> None:
        """`ranks` were started before, while this process imported what it needs; without them they are started now."""
        self._folder, self._settings, self._torch_device = folder, settings, device
        self._group = ranks
        self._job: Job | None = None
        self._is_open = False
        """Whether the other ranks listen for steps."""
        try:
            check_shares(folder, settings.tensor_parallel)
            check_devices(device.name, ranks=settings.tensor_parallel, devices=_gpus(device.device))
        except CartdeckError:
            self.close()
            raise
        super().__init__(folder, settings, device, report=report)
        self._layers = []  # they would outlive the model, and are not asked here
        self.caches = _SharedCaches(self.model.config, self, kind=settings.kv_cache)

    @property
    def rank_pids(self) -> list[int]:
        """The processes of the other ranks."""
        return [] if self._group is None else self._group.pids

    @property
    def is_whole(self) -> bool:
        """Whether every rank is there."""
        return self._group is not None and self._group.is_whole

    def give_away(self) -> RankGroup | None:
        """The other ranks, for another model; this one has none then."""
        group, self._group = self._group, None
        leave_group()
        self._ending.detach()
        if group is not None:
            group.meet_anew()
        return group

    def close(self) -> None:
        """Ends the other ranks; the next text starts new ones."""
        group, self._group = self._group, None
        if group is not None:
            group.close()
        leave_group()

    def generate(self, generation: Generation, job: Job) -> None:
        """As `TextGenerator.generate`. Raises `DEVICE_FAULT` besides where a rank is lost, and what a rank raises."""
        if not self.is_whole:
            self._start_anew(generation, job)
        self._job = job
        self._is_open = False
        try:
            super().generate(generation, job)
            self._end()
        except CartdeckError:
            # raised between two steps, where every rank listens
            self._end()
            raise
        except BaseException as error:
            self._lose(error)
            raise

    def begin(self, tokens: int) -> None:
        """The ranks listen, and take a cache for so many tokens."""
        assert self._group is not None
        self._group.check()
        self._group.ask(COMPUTE)
        self._is_open = True
        tell(Step.TAKE, device=self.device, value=tokens)

    def _compute_prompt(self, prompt: Prompt, cache: Any, generation: Generation, job: Job) -> torch.Tensor:
        if prompt.seen is not None:
            data = prompt.seen.to_bytes()
            tell(Step.SEE, device=self.device, value=len(data))
            share_bytes(data, len(data), device=self.device)
        return super()._compute_prompt(prompt, cache, generation, job)

    def _step(self, ids: list[int], cache: Any, **images: Any) -> torch.Tensor:
        assert self._job is not None
        logits: torch.Tensor | None = None
        number = self.caches.number(cache)
        size = len(ids) if images else SLICE_TOKENS
        for first in range(0, len(ids), size):
            self._job.stop.check()
            started_s = time.monotonic()
            part = ids[first : first + size]
            if len(part) == 1:
                tell(Step.TOKEN, device=self.device, value=part[0], cache=number)
            else:
                tell(Step.TOKENS, device=self.device, value=len(part), cache=number)
                share_tokens(part, len(part), device=self.device)
            logits = super()._step(part, cache, **images)
            self._check_group(started_s)
        assert logits is not None
        return logits

    def _check_group(self, started_s: float) -> None:
        """Raises where what was just computed may be that of a group that was ended, which means nothing.

        A GPU computes behind the program's back: it is waited for first, for a rank may be lost meanwhile. What waited
        there for as long as ranks wait for each other was cut off by NCCL's own watch, which tells nobody.
        """
        is_late = False
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            is_late = time.monotonic() - started_s >= group_timeout_s()
        if is_late or not self.is_whole:
            raise RuntimeError("a rank was lost")

    def _stopping(self, job: Job) -> AbstractContextManager[None]:
        """Inside a step no rank may leave the others."""
        return nullcontext()

    def _end(self) -> None:
        """The ranks wait for another text."""
        if not self._is_open:
            return
        try:
            tell(Step.END, device=self.device)
        except (RuntimeError, ValueError) as error:  # a group that was ended meanwhile is a ValueError
            self._lose(error)
        self._is_open = False

    def _lose(self, error: BaseException) -> None:
        """A step failed, and the ranks no longer know where the others are: all are ended. Raises what a rank failed
        with, else `DEVICE_FAULT` for what leaves the leader's device whole; returns for memory that ran out and for a
        device that is lost, of which the worker knows what to do."""
        group = self._group
        self._is_open = False
        try:
            if group is not None and meaning_of(error) is not Meaning.OUT_OF_MEMORY:
                group.wait_for_failure(_LAST_WORDS_S)
                if self._torch_device.device.type == "cuda" and meaning_of(error) is Meaning.POISON:
                    return
                words = (str(error).strip() or type(error).__name__).splitlines()[0][:500]
                message = f"the ranks lost each other: {words}; the next request starts all of them anew"
                raise failure(Code.DEVICE_FAULT, message, phase="inference") from error
        finally:
            self.close()

    def _start_anew(self, generation: Generation, job: Job) -> None:
        self.close()
        self.model: Any = None
        self.caches.clear()
        gc.collect()
        self._torch_device.release_cached()

        def report(_: float) -> None:
            job.stop.check()
            job.touch()

        self.model, _, _ = self._load(self._folder, self._settings, self._torch_device, report=report)

    def _load(
        self, folder: ModelFolder, settings: LoadSettings, device: TorchDevice, *, report: Callable[[float], None]
    ) -> tuple[Any, torch.dtype, str | None]:
        ranks = settings.tensor_parallel
        if not self.is_whole:
            self.close()
            self._group = start_ranks(ranks)
        group = cast("RankGroup", self._group)
        group.on_failure = abort_group
        self._ending = weakref.finalize(self, group.close)

        def work(rank: int) -> RankWork:
            return RankWork(
                path=str(folder.path),
                store=str(group.store),
                rank=rank,
                ranks=ranks,
                threads=device.threads,
                device=device_of(rank, device.name),
                dtype=settings.dtype,
                kv_cache=settings.kv_cache,
                timeout_s=group_timeout_s(),
            )

        def tell_all(part: float) -> None:
            group.check()
            report((part + (ranks - 1) * group.progress) / ranks)

        try:
            group.wait(lambda _: report(0.0), limit_s=LONGEST_START_S)  # they import since they were started
            group.ask(START, work)
            group.wait(lambda _: report(0.0), limit_s=LONGEST_START_S)
            group.ask(LOAD, work)
            join_group(device.device, work(0), look=lambda: tell_all(0.0))

            made = load_share(folder, settings, device, share=Share(0, ranks), report=tell_all)
            group.wait(lambda part: report((1.0 + (ranks - 1) * part) / ranks))
        except CartdeckError:
            self.close()
            raise
        except BaseException as error:
            self._lose(error)
            raise
        return made


class _SharedCaches(KvCaches):
    """The leader's caches; the other ranks make theirs as it does."""

    def __init__(self, config: Any, leader: ParallelTextGenerator, *, kind: str) -> None:
        super().__init__(config, kind=kind)
        self._leader = leader
        self._first: Any = None

    def take(self, tokens: int) -> Any:
        self._leader.begin(tokens)
        self._first = super().take(tokens)
        return self._first

    def copy(self, cache: Any) -> Any:
        tell(Step.COPY, device=self._leader.device)
        return super().copy(cache)

    def number(self, cache: Any) -> int:
        """By which the ranks know it."""
        return 0 if cache is self._first else 1


def _gpus(device: torch.device) -> int:
    return torch.cuda.device_count() if device.type == "cuda" else 0
