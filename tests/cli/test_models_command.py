"""`thalweg models`: the list that the registry has, and where a refusal points."""

from __future__ import annotations

import json

import pytest

from thalweg.cli import main
from thalweg.errors import UnsupportedModelError
from thalweg.models import registry


def test_it_lists_what_is_served_with_a_word_on_each(capsys):
    assert main(["models", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {r["architecture"] for r in rows} >= set(registry.ARCHITECTURES)
    assert all(r["what"] for r in rows)


def test_it_says_why_a_known_name_is_not_served_and_counts(capsys):
    assert main(["models", "--json"]) == 0
    rows = {r["architecture"]: r for r in json.loads(capsys.readouterr().out)}
    assert main(["models", "--counts", "--json"]) == 0
    counts = json.loads(capsys.readouterr().out)
    assert counts["native"] >= 59
    assert sum(counts.values()) == sum(r["field"] for r in rows.values()) == 430
    assert rows["LlamaForCausalLM"]["served"] == "native"
    assert rows["TransformersForCausalLM"]["served"] == "fallback"
    assert rows["TransformersForSequenceClassification"]["served"] == "refused"
    assert "the model's own class" in rows["TransformersForSequenceClassification"]["what"]
    assert main(["models", "Helium"]) == 0
    assert capsys.readouterr().out.startswith(f"{rows['HeliumForCausalLM']['served']} ")
    assert main(["models", "--only", "refused", "Medusa"]) == 0
    said = capsys.readouterr().out
    assert "of 430 names" in said
    assert not any(line.startswith(("native", "fallback")) for line in said.splitlines())


def test_a_part_of_a_name_is_enough_and_one_that_nobody_has_is_told(capsys):
    assert main(["models", "gpt-oss"]) == 0
    assert "GptOssForCausalLM" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["models", "nobody's"])
    assert "nothing here has" in capsys.readouterr().err


def test_a_refusal_says_what_is_nearest():
    with pytest.raises(UnsupportedModelError, match=r"nearest are Qwen3.*`thalweg models` lists all"):
        registry.family({"architectures": ["Qwen33ForCausalLM"], "model_impl": "thalweg"})
