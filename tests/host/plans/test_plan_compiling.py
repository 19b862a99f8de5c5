"""The compiler: caps, arguments by type, loops, and every fault before anything starts."""

import time
from typing import Any

import pytest

from cartdeck import CartdeckError, Code
from cartdeck.discovery import Cartridge
from cartdeck.plans import CompiledPlan, Plan, compile_plan
from cartdeck.router import Router
from cartdeck_protocol.caps import Requirement, build_manifest


def compiled(router: Router, text: str, **depths: int) -> CompiledPlan:
    return compile_plan(Plan.parse(text), router, depths=depths)


def fault(router: Router, text: str, **depths: int) -> CartdeckError:
    with pytest.raises(CartdeckError) as caught:
        compiled(router, text, **depths)
    return caught.value


def bindings(plan: CompiledPlan, step: str) -> dict[str, tuple[str, int]]:
    return {one.source: (one.argument.name, one.loops) for one in plan.steps[step].bindings}


def test_speech_becomes_a_vector_by_way_of_a_summary(router: Router) -> None:
    plan = compiled(
        router,
        "speech -> transcribe-speech -> transcript\ntranscript -> generate-text -> summary\n"
        "generate-text.max-tokens = 64\nsummary -> embed-text -> vectors",
    )
    assert bindings(plan, "generate-text") == {"transcript": ("prompt", 0)}
    assert str(plan.values["speech"].media) == "media:audio"
    assert [(value.name, value.depth) for value in plan.outputs] == [("vectors", 1)]
    assert all(step.loops == 0 for step in plan.steps.values())


def test_a_folder_of_images_becomes_one_sequence_of_vectors(router: Router) -> None:
    text = "images -> describe-image -> texts\ntexts -> embed-text -> vectors"
    plan = compiled(router, text, images=1)
    assert (plan.steps["describe-image"].loops, plan.steps["embed-text"].loops) == (1, 0)
    assert plan.values["texts"].depth == plan.values["vectors"].depth == 1


def test_sources_go_where_their_kinds_fit_whatever_their_order(router: Router) -> None:
    base = "p media:enc=utf-8;page\nl media:enc=utf-8;line\nm media:enc=utf-8;mark\n"
    for order in ("(p, l, m)", "(m, p, l)", "(l, m, p)"):
        plan = compiled(router, f"{base}{order} -> pair -> x")
        assert bindings(plan, "pair") == {"l": ("line", 0), "p": ("page", 0), "m": ("mark", 0)}


def test_an_input_that_declares_nothing_goes_by_name_then_to_what_is_needed(router: Router) -> None:
    assert bindings(compiled(router, "(a, page) -> pair -> x"), "pair") == {"a": ("line", 0), "page": ("page", 0)}
    assert bindings(compiled(router, "(line, b) -> pair -> x"), "pair") == {"line": ("line", 0), "b": ("page", 0)}
    assert bindings(compiled(router, "(photo, prompt) -> describe-image -> x"), "describe-image") == {
        "photo": ("image", 0), "prompt": ("prompt", 0),
    }  # fmt: skip


def test_of_several_faults_the_first_in_the_text_is_told(router: Router) -> None:
    assert fault(router, "b -> no-two -> c\na -> no-one -> b").details["line"] == 1
    assert fault(router, "b -> echo -> c\necho.no = 1\na -> no-one -> b").details["line"] == 2
    assert fault(router, "b -> echo -> c\na -> no-one -> b\nd -> no-three -> e").details["line"] == 2


def test_two_ways_that_are_equally_good_are_an_error_with_both(router: Router) -> None:
    error = fault(router, "(a, b) -> pair -> x")
    assert error.code is Code.BAD_PLAN
    assert set(error.details["candidates"]) == {"a as line, b as page", "a as page, b as line"}
    assert "Declare" in str(error)


def test_a_source_that_fits_nothing_is_told_with_what_the_cap_takes(router: Router) -> None:
    error = fault(router, "speech -> transcribe-speech -> t\nspeech2 media:image\nspeech2 -> transcribe-speech -> u")
    assert (error.code, error.details["line"], error.details["column"]) == (Code.BAD_PLAN, 3, 1)
    assert error.details["candidates"] == ["audio media:audio"]


def test_text_of_one_kind_may_be_the_main_input_of_another_but_names_nothing(router: Router) -> None:
    plan = compiled(router, "s -> download-model -> path\npath -> model-info -> info")
    assert bindings(plan, "model-info") == {"path": ("model", 0)}
    error = fault(router, "a -> generate-text -> text\ntext -> model-info -> info")
    assert "fits no argument of model-info" in str(error)
    assert "fits no argument of generate-text" in str(
        fault(router, "s -> download-model -> path\npath -> generate-text -> x")
    )


def test_more_sources_than_arguments_do_not_fit(router: Router) -> None:
    error = fault(router, "a media:audio\nb media:audio\n(a, b) -> transcribe-speech -> x")
    assert "do not fit beside each other" in str(error)


def test_what_an_input_is_must_be_one_thing_for_all_that_take_it(router: Router) -> None:
    error = fault(router, "x -> transcribe-speech -> a\nx -> describe-image -> b")
    assert (error.code, error.details["candidates"]) == (Code.BAD_PLAN, ["media:image", "media:audio"])
    plan = compiled(router, "x -> generate-text -> a\nx -> shout -> b")  # text is text
    assert plan.values["x"].readers == ("generate-text", "shout")


@pytest.mark.parametrize(
    ("text", "code", "line", "column", "words"),
    [
        ("a -> generate-txt -> b", Code.NO_SUCH_CAP, 1, 6, "generate-text"),
        ("x cap:generate-text;nobody\na -> x -> b", Code.NO_SUCH_CAP, 1, 3, "generate-text"),
        ("a -> shout -> b\nshout.lin = 3", Code.UNKNOWN_ARGUMENT, 2, 7, "line"),
        ("a -> repeat -> b\nrepeat.times = -3", Code.BAD_ARGUMENT, 2, 8, "-3"),
        ("a -> repeat -> b\nrepeat.times = many", Code.BAD_ARGUMENT, 2, 8, "many"),
        ("() -> shout -> b", Code.MISSING_ARGUMENT, 1, 7, "line"),
        ("a -> pair -> b", Code.MISSING_ARGUMENT, 1, 6, "page"),
        ("a -> discard -> b", Code.BAD_PLAN, 1, 17, "gives nothing"),
    ],
)
def test_a_fault_of_a_step_has_its_place_and_candidates(
    router: Router, text: str, code: Code, line: int, column: int, words: str
) -> None:
    error = fault(router, text)
    assert (error.code, error.details["line"], error.details["column"]) == (code, line, column), str(error)
    assert words in f"{error} {error.details.get('candidates')}"


def test_a_cap_that_two_serve_alike_is_ambiguous(router: Router) -> None:
    twice = Router([*{route.cartridge.name: route.cartridge for route in router.routes}.values()] * 2, ())
    error = fault(twice, "a -> shout -> b")
    assert (error.code, error.details["line"]) == (Code.AMBIGUOUS_CAP, 1)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("b -> x -> a\nx echo\na -> y -> b\ny echo", ["x", "y", "x"]),
        ("a -> echo -> a", ["echo", "echo"]),
        ("(a, c) -> x -> b\nx pair\nb -> y -> c\ny shout\nc -> z -> d\nz shout", ["x", "y", "x"]),
    ],
)
def test_a_cycle_is_told_as_a_path(router: Router, text: str, path: list[str]) -> None:
    error = fault(router, text)
    assert error.code is Code.PLAN_CYCLE
    assert error.details["path"] == path
    assert "line" in error.details


def test_a_chain_of_a_thousand_compiles_and_as_a_ring_is_one_cycle(router: Router) -> None:
    lines = [f"s{i} cap:echo;test\nv{i} -> s{i} -> v{i + 1}" for i in range(1000)]
    began = time.process_time()
    plan = compiled(router, "\n".join(lines))
    assert time.process_time() - began < 3
    assert len(plan.steps) == 1000
    assert len(fault(router, "\n".join([*lines, "back echo\nv1000 -> back -> v0"])).details["path"]) == 1002


LOOPS: list[Any] = [
    # text, depths of inputs, loops of the last step, depth of what it gives
    ("x -> shout -> y", {"x": 0}, 0, 0),
    ("x -> shout -> y", {"x": 1}, 1, 1),
    ("x -> shout -> y", {"x": 2}, 2, 2),
    ("x -> split -> y", {"x": 0}, 0, 1),
    ("x -> split -> y", {"x": 1}, 1, 2),
    ("x -> join -> y", {"x": 0}, 0, 0),
    ("x -> join -> y", {"x": 1}, 0, 0),
    ("x -> join -> y", {"x": 2}, 1, 1),
    ("(x, z) -> join -> y", {"x": 0, "z": 0}, 0, 0),
    ("(x, z) -> join -> y", {"x": 1, "z": 0}, 0, 0),
    ("(x, z) -> join -> y", {"x": 2, "z": 1}, 1, 1),
    ("(line, page) -> pair -> y", {"line": 1, "page": 0}, 1, 1),
    ("(line, page) -> pair -> y", {"line": 2, "page": 1}, 2, 2),
    ("x -> split -> l\nl -> shout -> m\nm -> join -> y", {"x": 0}, 0, 0),
    ("x -> split -> l\nl -> shout -> m\nm -> join -> y", {"x": 1}, 1, 1),
]


@pytest.mark.parametrize(("text", "depths", "loops", "depth"), LOOPS)
def test_loops_follow_from_what_meets_what(
    router: Router, text: str, depths: dict[str, int], loops: int, depth: int
) -> None:
    plan = compiled(router, text, **depths)
    last = next(step for step in plan.steps.values() if step.step.target == "y")
    assert (last.loops, plan.values["y"].depth) == (loops, depth)


def test_an_input_that_only_sequences_take_is_a_sequence(router: Router) -> None:
    assert compiled(router, "x -> join -> y").values["x"].depth == 1
    assert compiled(router, "x -> join -> y\nx -> shout -> z").values["x"].depth == 0


def test_a_cap_that_gives_back_its_input_gives_what_it_was_given(router: Router) -> None:
    plan = compiled(router, "x media:audio\nx -> identity -> y\ny -> transcribe-speech -> z")
    assert str(plan.values["y"].media) == "media:audio"


def test_a_default_model_that_only_a_cartridge_without_its_libraries_reads_is_a_fault_of_the_step() -> None:
    def cartridge(name: str, more: str = "", *needs: Requirement) -> Cartridge:
        text = f'name = "{name}"\nversion = "1.0.0"\ntitle = "x"\ndescription = "x"\ncaps = ["embed-text"]\n{more}'
        return Cartridge(
            build_manifest(f'{text}tags = ["{name}"]\nholds_instances = true\n'), ("x",), name, False, needs
        )

    gguf = cartridge("gguf", 'accepts = ["*gguf*"]\n')
    router = Router([gguf, cartridge("torch", "", Requirement(module="torch", install="pip install it"))], ())
    error = fault(router, "t -> embed-text -> v")
    assert (error.code, error.details["line"], error.details["step"]) == (Code.CARTRIDGE_UNAVAILABLE, 1, "embed-text")
    assert "which lacks torch (bring it with: pip install it)" in error.message
    for text in (
        "t -> embed-text -> v\nembed-text.model = 'a.gguf'",
        "t -> embed-text -> v\nembed-text cap:embed-text;gguf",
    ):
        assert compiled(router, text).steps["embed-text"].route.cartridge is gguf
