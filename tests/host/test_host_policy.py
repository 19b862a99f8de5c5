"""Decisions without processes: when to start again, whom to evict, who waits, who would wait for ever."""

from cartdeck.pool import policy
from cartdeck.pool.policy import Action, Failures, Lease, Seat, SessionKey, Shortage, Standing
from cartdeck.settings import RestartSettings
from cartdeck_protocol.errors import CartdeckError, Code, failure

LIMITS = RestartSettings()
KEY = SessionKey("gguf", '{"model":"a"}')
OTHER = SessionKey("gguf", '{"model":"b"}')


def died(text: str = "it exited with status 1") -> CartdeckError:
    return failure(Code.CARTRIDGE_DIED, text, phase="loading")


def fail_times(count: int) -> tuple[Failures, list[float]]:
    """The record after `count` failures in a row, each as soon as it may start again; and the pauses."""
    failures: Failures | None = None
    now_s, pauses = 100.0, []
    for number in range(count):
        failures = policy.after_failure(failures, died(f"failure {number}"), now_s=now_s, limits=LIMITS)
        pauses.append(failures.retry_at_s - now_s)
        now_s = failures.retry_at_s
    assert failures is not None
    return failures, pauses


def test_pauses_double_up_to_the_longest() -> None:
    assert fail_times(4)[1] == [10.0, 20.0, 40.0, 80.0]
    assert fail_times(9)[1][-1] == 300.0
    assert fail_times(2000)[1][-1] == 300.0


def test_during_a_pause_the_first_error_is_told_with_the_time_that_is_left() -> None:
    failures, _ = fail_times(2)
    refused = policy.refusal(KEY, failures, now_s=failures.retry_at_s - 7.0)
    assert refused is not None
    assert refused.code is Code.CARTRIDGE_DIED
    assert refused.phase == "loading"
    assert "failure 0" in refused.message
    assert refused.details["retry_after_s"] == 7.0
    assert policy.refusal(KEY, failures, now_s=failures.retry_at_s) is None
    assert policy.refusal(KEY, None, now_s=0.0) is None


def test_the_fifth_failure_in_a_row_is_quarantine_with_the_first_error() -> None:
    assert not fail_times(4)[0].is_quarantined
    failures, _ = fail_times(5)
    refused = policy.refusal(KEY, failures, now_s=1e9)
    assert refused is not None
    assert refused.code is Code.QUARANTINED
    assert "failure 0" in refused.message
    assert refused.details["first_error"] == "CARTRIDGE_DIED"


def seat(key: SessionKey, **changes: object) -> Seat:
    values: dict[str, object] = {
        "is_loading": False,
        "is_ending": False,
        "open_requests": 0,
        "used_at_s": 0.0,
        "is_stuck": False,
    }
    return Seat(key, **{**values, **changes})  # type: ignore[arg-type]  # a record of plain values


def test_a_free_place_is_taken() -> None:
    assert policy.place([], limit=1).action is Action.START
    assert policy.place([seat(KEY, open_requests=1)], limit=2).action is Action.START


def test_the_idle_one_unused_for_longest_makes_room() -> None:
    seats = [seat(KEY, used_at_s=5.0), seat(OTHER, used_at_s=3.0)]
    placement = policy.place(seats, limit=2)
    assert (placement.action, placement.victim) == (Action.EVICT, OTHER)


def test_busy_and_loading_sessions_are_never_evicted() -> None:
    seats = [seat(KEY, open_requests=1), seat(OTHER, is_loading=True)]
    assert policy.place(seats, limit=2).action is Action.WAIT


def test_nobody_is_evicted_while_a_place_is_about_to_be_free() -> None:
    seats = [seat(KEY), seat(OTHER, is_ending=True)]
    assert policy.place(seats, limit=2).action is Action.WAIT


def test_when_all_places_wait_for_the_asking_call_it_is_a_deadlock() -> None:
    stuck = seat(KEY, open_requests=1, is_stuck=True)
    assert policy.place([stuck], limit=1).action is Action.DEADLOCK
    assert policy.place([stuck, seat(OTHER, open_requests=1)], limit=2).action is Action.WAIT


def stuck(key: str, leases: dict[str, list[tuple[bool, set[str]]]]) -> bool:
    def look(at: SessionKey) -> list[Lease]:
        return [
            Lease(is_own=own, waits_for=frozenset(SessionKey(name) for name in names))
            for own, names in leases.get(at.cartridge, [])
        ]

    return policy.is_stuck(SessionKey(key), look)


def test_a_session_that_the_own_chain_fills_is_stuck() -> None:
    assert stuck("a", {"a": [(True, set())]})
    assert stuck("a", {"a": [(True, set()), (True, set())]})
    assert not stuck("a", {"a": [(True, set()), (False, set())]})
    assert not stuck("a", {"a": []})


def test_chains_that_wait_for_one_another_are_stuck() -> None:
    # the own chain holds a and wants b; another holds b and waits for a
    assert stuck("b", {"a": [(True, set())], "b": [(False, {"a"})]})
    # the other waits for c, which gets on
    assert not stuck("b", {"a": [(True, set())], "b": [(False, {"c"})], "c": [(False, set())]})
    # a ring of three, entered from outside of the own chain
    assert stuck("b", {"b": [(False, {"c"})], "c": [(False, {"d"})], "d": [(False, {"b"})]})


def test_one_that_can_go_on_frees_all_who_wait_for_it_by_whatever_way() -> None:
    # a waits for c itself, and for b, which waits for c: c gets on
    leases: dict[str, list[tuple[bool, set[str]]]] = {
        "a": [(False, {"c", "b"})],
        "b": [(False, {"c"})],
        "c": [(False, set())],
    }
    assert not any(stuck(key, leases) for key in "abc")


def test_a_wait_for_memory_is_stuck_when_those_that_are_stuck_hold_too_much() -> None:
    def look(spare_bytes: int, **held: int) -> bool:
        standing: dict[str, Standing] = {
            "ask": Shortage({SessionKey(name): size for name, size in held.items()}, spare_bytes),
            "own": [Lease(is_own=True, waits_for=frozenset())],
            "busy": [Lease(is_own=False, waits_for=frozenset())],
            "waiting": [Lease(is_own=False, waits_for=frozenset({SessionKey("ask")}))],
            "idle": [],
        }
        return policy.is_stuck(SessionKey("ask"), lambda at: standing[at.cartridge])

    assert look(300, own=700)
    assert not look(300, own=300, busy=700)
    assert not look(300, own=200, idle=700)
    assert look(300, own=200, waiting=200), "one that waits for this very memory, or for what this one holds"
    assert not look(300, busy=700)
    assert look(-1)
