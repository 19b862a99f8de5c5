"""Jobs at one model run in their order on one thread; their requests hear from them and may give them up."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from cartdeck_modelkit.owner import MOST_UNREAD_CHARACTERS, Job, Owner
from cartdeck_protocol.errors import CartdeckError, Code

LIMIT_S = 10.0


async def text_of(job: Job) -> str:
    async with asyncio.timeout(LIMIT_S):
        return "".join([text async for text in job.pieces()])


def gated() -> tuple[Callable[[Job], None], threading.Event, threading.Event]:
    """Work that says when it has begun and goes on when it is told to."""
    begun, gate = threading.Event(), threading.Event()

    def work(job: Job) -> None:
        begun.set()
        while not gate.wait(0.01):
            if job.is_cancelled:
                raise RuntimeError("given up")

    return work, begun, gate


def test_what_a_job_says_arrives_whole_and_in_order() -> None:
    async def run() -> str:
        def work(job: Job) -> None:
            for number in range(2000):
                job.say(f"{number},")

        job = Job(work)
        Owner("test").submit(job)
        return await text_of(job)

    assert asyncio.run(run()) == "".join(f"{number}," for number in range(2000))


def test_jobs_run_one_after_another_on_one_thread_and_know_their_place() -> None:
    async def run() -> None:
        owner, threads = Owner("test"), set[int]()
        work, begun, gate = gated()
        first = Job(work)
        owner.submit(first)
        await asyncio.to_thread(begun.wait, LIMIT_S)
        later = [Job(lambda _: threads.add(threading.get_ident())) for _ in range(3)]
        for job in later:
            owner.submit(job)
        assert [job.position for job in later] == [1, 2, 3]
        assert not any(job.is_over for job in later)
        gate.set()
        for job in (first, *later):
            await text_of(job)
        assert [job.position for job in later] == [0, 0, 0]
        assert len(threads) == 1
        assert threads != {threading.get_ident()}

    asyncio.run(run())


def test_a_job_that_is_given_up_while_it_waits_never_runs_and_makes_room() -> None:
    async def run() -> None:
        owner, ran = Owner("test"), list[int]()
        work, begun, gate = gated()
        running = Job(work)
        owner.submit(running)
        await asyncio.to_thread(begun.wait, LIMIT_S)
        waiting = [Job(lambda _, number=number: ran.append(number)) for number in range(3)]
        for job in waiting:
            owner.submit(job)
        waiting[1].cancel()
        assert waiting[1].is_over
        assert waiting[2].position == 2
        with pytest.raises(CartdeckError) as caught:
            await text_of(waiting[1])
        assert caught.value.code is Code.CANCELLED
        gate.set()
        await text_of(running)
        await text_of(waiting[0])
        await text_of(waiting[2])
        assert ran == [0, 2]

    asyncio.run(run())


def test_a_running_job_is_given_up_by_its_abort() -> None:
    async def run() -> None:
        owner, aborted = Owner("test"), threading.Event()
        work, begun, _ = gated()
        job = Job(work, abort=aborted.set)
        owner.submit(job)
        await asyncio.to_thread(begun.wait, LIMIT_S)
        job.cancel()
        assert aborted.is_set()
        with pytest.raises(RuntimeError, match="given up"):
            await text_of(job)

    asyncio.run(run())


def test_an_error_of_the_work_reaches_the_request_and_the_next_job_runs() -> None:
    async def run() -> None:
        def fail(_: Job) -> None:
            raise ValueError("broken")

        owner = Owner("test")
        broken, sound = Job(fail), Job(lambda job: job.say("fine"))
        owner.submit(broken)
        owner.submit(sound)
        with pytest.raises(ValueError, match="broken"):
            await text_of(broken)
        assert await text_of(sound) == "fine"

    asyncio.run(run())


def test_a_job_waits_for_a_reader_that_is_far_behind() -> None:
    async def run() -> None:
        block = "x" * (MOST_UNREAD_CHARACTERS + 1)
        said = threading.Event()

        def work(job: Job) -> None:
            job.say(block)
            said.set()

        job = Job(work)
        Owner("test").submit(job)
        pieces = job.pieces()
        assert await asyncio.wait_for(anext(pieces), LIMIT_S) == block
        assert [text async for text in pieces] == [""]
        assert said.is_set()

    asyncio.run(run())


def test_a_call_blocks_its_own_thread_and_brings_result_or_error() -> None:
    owner = Owner("test")
    assert owner.call(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        owner.call(lambda: 1 // 0)
    assert owner.call(threading.get_ident) == owner.call(threading.get_ident) != threading.get_ident()
