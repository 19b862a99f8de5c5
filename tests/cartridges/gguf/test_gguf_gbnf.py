"""A grammar is read before the engine sees it: what is wrong is said with its rule and place."""

import time

import pytest

from cartdeck_gguf.gbnf import check_gbnf
from cartdeck_protocol.errors import CartdeckError, Code


def error_of(text: str) -> CartdeckError:
    with pytest.raises(CartdeckError) as caught:
        check_gbnf(text)
    assert caught.value.code is Code.INVALID_GRAMMAR
    assert caught.value.argument == "grammar"
    return caught.value


@pytest.mark.parametrize(
    "text",
    [
        'root ::= "x"',
        'root::="x"',
        "root ::= .",
        'root ::= ("yes" | "no") "\\n"',
        'root ::=\n  "a" | # a note\n  "b"\n\n# the end',
        "root ::= [a-z]+ [^\\]\\n-]* [\\x41\\u00e4\\U0001F600]",
        'root ::= item{2} item{1,} item{0,3}\nitem ::= "a"',
        'root ::= (\n "a"\n | "b"\n)*\n',
        'root ::= expr\nexpr ::= term ("+" expr)?\nterm ::= [0-9]+ | "(" expr ")"',
        'root ::= "a" root | ""',
        'root ::= ws "x"\r\nws ::= [ \\t]*\r\n',
        'root ::= "say \\"hi\\" \\\\ [\\]"',
        "root ::= " + "(" * 200 + '"x"' + ")" * 200,
    ],
)
def test_a_grammar_that_the_engine_takes_is_let_pass(text: str) -> None:
    check_gbnf(text)


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ('root "x"', (1, 6, "root"), "expected ::="),
        ('root :::= "x"', (1, 6, "root"), "expected ::="),
        ("root ::= foo", (1, 10, "root"), "there is no rule 'foo'"),
        ('root ::= a\na ::= "x" )', (2, 11, "a"), "end of the line"),
        ('root ::= "x', (1, 10, "root"), "this text is never closed"),
        ("root ::= [a-z", (1, 10, "root"), "this class of characters is never closed"),
        ('root ::= ("x"\n', (1, 10, "root"), "this bracket is never closed"),
        ('root ::= "a"\n | "b"', (2, 2, "root"), "expected the name of a rule"),
        ('root ::= "\\q"', (1, 11, "root"), "an escape is one of"),
        ('root ::= "x"{3,1}', (1, 13, "root"), "from small to large"),
        ('root ::= "x"{5000}', (1, 13, "root"), "at most 2000"),
        ('root ::= "x"{a}', (1, 13, "root"), "such as {2}"),
        ("root ::= *", (1, 10, "root"), "expected an item"),
        ("@@@", (1, 1, None), "expected the name of a rule"),
        ("root ::= " + "(" * 5000 + '"x"' + ")" * 5000, (1, 210, "root"), "nested more than 200 deep"),
    ],
)
def test_a_fault_is_told_with_its_rule_and_place(text: str, place: tuple[int, int, str | None], words: str) -> None:
    error = error_of(text)
    assert words in str(error)
    assert (error.details["line"], error.details["column"], error.details["rule"]) == place
    assert f"line {place[0]}, column {place[1]}" in str(error)


@pytest.mark.parametrize("text", ['rout ::= "x"', "", "# nothing"])
def test_a_grammar_without_its_root_is_refused(text: str) -> None:
    assert "it has no rule 'root'" in str(error_of(text))


@pytest.mark.parametrize(
    ("text", "loop"),
    [
        ('root ::= root "x" | "y"', "root → root"),
        ('root ::= a\na ::= b\nb ::= a "x"', "a → b → a"),
        ('root ::= ""  root', "root → root"),
        ('root ::= (ws root)? "x"\nws ::= " "*', "root → root"),
        ('root ::= ("a"? | "b"{0,2}) root', "root → root"),
    ],
)
def test_a_rule_that_begins_with_itself_is_refused_by_name(text: str, loop: str) -> None:
    error = error_of(text)
    assert loop in str(error)
    assert error.details["rule"] == loop.partition(" ")[0]


def test_the_largest_grammars_are_read_in_no_time() -> None:
    chain = "".join(f"r{number} ::= r{number + 1}\n" for number in range(3000))
    for text in (f'root ::= r0\n{chain}r3000 ::= "x"?', "root ::= " + '("a" | ' * 190 + '"b"' + ")" * 190):
        started = time.process_time()
        check_gbnf(text)
        assert time.process_time() - started < 5
    assert "at most 65,536" in str(error_of("root ::= " + '"x" ' * 20_000))


@pytest.mark.parametrize(
    "text",
    [
        'root ::= a a a a a a a a\na ::= b b b b b b b b\nb ::= c c c c c c c c\nc ::= "x"? "x"? "x"? "x"?',
        'root ::= ("x"?){2000}',
        'root ::= "a" ("x"? "y"?){0,500} "b"',
        "root ::= " + '"x"? ' * 500,
    ],
)
def test_more_items_that_may_be_left_out_than_the_engine_bears_are_refused(text: str) -> None:
    with pytest.raises(CartdeckError) as caught:
        check_gbnf(text)
    assert caught.value.code is Code.INVALID_GRAMMAR
    assert "may be left out" in caught.value.message


def test_many_ways_on_and_many_repetitions_are_no_such_run() -> None:
    check_gbnf("root ::= (" + " | ".join(f'"w{number}"' for number in range(4000)) + ")? end\nend ::= [a-z]{0,2000}")
